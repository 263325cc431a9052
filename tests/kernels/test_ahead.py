"""The kernels compile for cards that are not there, and their code is what was meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra cuda)")
pytest.importorskip("triton", reason="triton is not installed (extra cuda)")

from kvstore.errors import BadRequest
from kvstore.kernels import ahead, cubin
from kvstore.kernels.ahead import TARGETS, Compiled, compile_apart

SASS = """
        /*0040*/                   ULDC UR10, c[0x0][0x238] ;
        /*00a0*/                   LDG.E R2, desc[UR16][R2.64] ;
        /*0290*/                   ATOMG.E.CAS.STRONG.GPU PT, R2, [R2], R4, R5 ;
        /*0aa0*/              @!P1 LDG.E.128.CONSTANT R56, desc[UR16][R6.64] ;
        /*0ab0*/              @!P1 LDGSTS.E.BYPASS.128 [R56], desc[UR16][R6.64] ;
        /*1ac0*/              @P0  STG.E.64 desc[UR4][R2.64], R8 ;
        /*1ad0*/                   LDG.E.ENL2.256 R8, R12, desc[UR4][R2.64] ;
"""
SPILLS = """
        /*0100*/                   STL.64 [R1+0x8], R4 ;
        /*0110*/              @!UP0 LDL R4, [R1] ;
"""


def test_instructions_are_told_apart() -> None:
    assert cubin.count(SASS, 72) == cubin.Code(registers=72, spill_bytes=0, wide=3, accesses=5)
    assert cubin.count(SASS + SPILLS, 255).spill_bytes == 12
    with pytest.raises(RuntimeError, match="no instruction"):
        cubin.count("nvdisasm: nothing to see", 0)


def test_a_fault_has_words() -> None:
    good = Compiled("moves", "gather", "sm_90", 4, registers=40, wide=8, accesses=9, wants_wide=True)
    assert good.fault == ""
    assert Compiled("moves", "gather", "sm_90", 4, wants_wide=True).fault == "no access of 16 bytes"
    assert Compiled("moves", "gather", "sm_90", 4, spills=12).fault == "spills 12 bytes a thread"
    assert Compiled("moves", "gather", "sm_90", 4, error="no such type").fault == "no such type"


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    return compile_apart()


def test_every_kernel_compiles_for_every_card_without_spills(compiled: list[Compiled]) -> None:
    assert [f"{kernel.name} on {kernel.target}: {kernel.fault}" for kernel in compiled if kernel.fault] == []
    assert all(kernel.registers > 0 for kernel in compiled)


def test_nothing_is_left_out(compiled: list[Compiled]) -> None:
    there = {(kernel.name, kernel.target) for kernel in compiled}
    ours = ("bitmap_allocate", "bitmap_free", "bitmap_count", "contention", "append-bf16-d128", "gather", "scatter")
    tables = ("block_table_update", "token_slots", "page_table")
    assert {(name, target) for name in (*ours, *tables) for target in TARGETS} <= there
    names = [(family, variant.name) for family, variant in ahead.all_variants()]
    assert len(names) == len(set(names)), "two variants have one name"


def test_a_copy_that_knows_nothing_of_its_alignment_is_caught() -> None:
    """The same kernel, told nothing of its addresses and strides: its loads must be seen to be narrow."""
    code = (
        "from dataclasses import asdict, replace; import json\n"
        "from kvstore.kernels import ahead, moves\n"
        "variant = replace(moves.variants()[0], divisible=frozenset())\n"
        "compiled = ahead.compile_one('moves', variant, 'sm_90')\n"
        "print(json.dumps(asdict(compiled) | {'fault': compiled.fault}))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["fault"] == "no access of 16 bytes"
    assert found["accesses"] > 0


def test_what_cannot_be_compiled_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    if ahead_is_interpreted():
        with pytest.raises(BadRequest, match="interpreter"):
            ahead.compile_all("sm_90")
        assert ahead.main(["sm_90"]) == 2
        assert "interpreter" in capsys.readouterr().err
    for share in ("0/0", "2/2", "-1/2", "1", "a/b"):
        with pytest.raises(SystemExit, match="2"):
            ahead.main([f"--part={share}"])
        assert "is no share" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["gfx942", "sm_10", "sm_70", "sm_999", "sm_90a", "90", ""])
def test_a_target_that_is_none_is_refused_before_anything_is_compiled(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_require_compiler", lambda: None)
    monkeypatch.setattr(ahead.subprocess, "run", lambda *_, **__: pytest.fail("a compiler was started"))
    with pytest.raises(BadRequest, match="is none that kernels are compiled for"):
        compile_apart(("sm_90", target))
    with pytest.raises(BadRequest, match="is none that kernels are compiled for"):
        ahead.compile_all(target)


@pytest.mark.parametrize("workers", [0, -1])
def test_nothing_is_compiled_without_a_worker(workers: int) -> None:
    with pytest.raises(BadRequest, match=f"{workers} workers compile nothing"):
        compile_apart(workers=workers)


def ahead_is_interpreted() -> bool:
    from kvstore.kernels.language import interpreted

    return interpreted()
