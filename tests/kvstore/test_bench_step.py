"""`kvstore bench step`: every way to keep KV gives the same logits, copies what it says, and is fitted as it grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers or cuda)")

import torch

from kvstore.bench import step
from kvstore.bench.steps import arms
from kvstore.bench.steps.arms import CONCATENATE, GATHER, KERNEL, RECOMPUTE, Measured, Plan, measure
from kvstore.bench.steps.caches import Concatenating, Gathered, Recompute, paged
from kvstore.bench.steps.growth import growth
from kvstore.bench.steps.model import SHAPES, Llama
from kvstore.cli import main
from kvstore.errors import StoreError

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
TOKEN_BYTES = 2 * 4 * 2 * 32 * 4  # K and V, layers, KV heads, head_dim, bytes of the tiny model


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def plan(*lengths: int, batch: int = 2, block_tokens: int = 16) -> Plan:
    return Plan("tiny", lengths, 1, batch, block_tokens, "float32", CPU)


def test_the_model_is_a_llama() -> None:
    """Its logits are those of transformers' own with the same weights."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")
    shape = SHAPES["tiny"]
    ours = Llama(shape, device=CPU, dtype=torch.float32)
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.load_state_dict(ours.weights)
    tokens = torch.randint(shape.vocabulary, (2, 37), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        expected = theirs(input_ids=tokens).logits[:, -1]
        torch.testing.assert_close(ours.forward(tokens, 0, Recompute()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block_tokens", [8, 16])
def test_all_ways_say_the_same_and_what_they_copy_is_counted(block_tokens: int) -> None:
    """At 31 tokens the new one begins no block, at 33 it does."""
    found = measure(plan(31, 33, 64, block_tokens=block_tokens))
    assert found.token_bytes == TOKEN_BYTES
    for length in (31, 33, 64):
        assert found.points[RECOMPUTE][length].copied == 0
        assert found.points[CONCATENATE][length].copied == 2 * (length - 1) * TOKEN_BYTES
        whole = -(-length // block_tokens) * block_tokens
        assert found.points[GATHER][length].copied == 2 * whole * TOKEN_BYTES
        assert all(0 < found.points[arm][length].difference < 1e-4 for arm in (CONCATENATE, GATHER))
        assert len(found.points[GATHER][length].seconds) >= 1
    assert KERNEL not in found.points
    assert "no CUDA device" in found.skipped[KERNEL]


def test_without_transformers_torch_concatenates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "_has_transformers", lambda: False)
    found = measure(plan(8, 16, 32))
    assert found.concatenated_by == "torch.cat"
    assert found.points[CONCATENATE][32].copied == 2 * 31 * TOKEN_BYTES


class OneBlockOff(Gathered):
    """Reads the blocks of the other sequence."""

    def _gather(self, layer: int, length: int) -> torch.Tensor:
        return super()._gather(layer, length).flip(1)


def test_wrong_kv_is_found_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(arms, "Gathered", OneBlockOff)
    with pytest.raises(StoreError, match="at 8 tokens 'paged, gathered' says other logits than 'recompute'"):
        measure(plan(8, 16, 32))
    assert (
        main(["bench", "step", "--model", "tiny", "--from", "8", "--to", "32", "--batch", "2", "--device", "cpu"]) == 2
    )
    assert "says other logits" in capsys.readouterr().err


def test_a_block_that_nobody_holds_is_found_out() -> None:
    """The pool's free blocks are NaN: a table that points at one cannot go unseen."""
    states = [(torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 8))]
    kv = paged(states, 39, 16)
    cache = Gathered(kv)
    cache.rewind(39)
    step_states = (torch.randn(1, 4, 1, 8), torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1, 8))
    assert torch.isfinite(cache(0, *step_states)).all()
    free = sorted(set(range(kv.pool.shape[1])) - set(kv.tables.flatten().tolist()))
    kv.tables[0, 1] = free[0]
    assert not torch.isfinite(cache(0, *step_states)).all()


def test_rewinding_gives_the_same_step_again() -> None:
    model = Llama(SHAPES["tiny"], device=CPU, dtype=torch.float32)
    tokens = torch.arange(20)[None]
    whole = Recompute(keep=True)
    with torch.inference_mode():
        model.forward(tokens, 0, whole)
        for cache in (Concatenating(whole.states), Gathered(paged(whole.states, 19, 8))):
            said = []
            for _ in range(2):
                cache.rewind(19)
                said.append(model.forward(tokens[:, 19:], 19, cache))
            assert torch.equal(said[0], said[1])


def test_growth_is_told_by_its_terms() -> None:
    lengths = [64, 128, 256, 512, 1024, 2048, 4096]
    assert growth(lengths, [3.0] * 7).kind == "constant"
    assert growth(lengths, [2 + 1e-3 * n for n in lengths]).kind == "linear"
    found = growth(lengths, [2 + 1e-3 * n + 1e-6 * n * n for n in lengths])
    assert found.kind == "quadratic"
    assert (found.fixed, found.per_token, found.per_pair) == pytest.approx((2, 1e-3, 1e-6))
    assert found.shares == pytest.approx([term / 22.873216 for term in (2, 4.096, 16.777216)])
    assert growth(lengths, [2 + 1e-4 * n for n in lengths]).kind == "constant"  # 17 % at the end
    falling = growth(lengths, [3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4])
    assert falling.kind == "constant"
    assert falling.per_token == falling.per_pair == 0


def test_output_for_people_and_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "step", "--model", "tiny", "--from", "8", "--to", "40", "--rounds", "1", "--device", "cpu"]
    kept: list[Measured] = []

    def once(given: Plan) -> Measured:
        kept.append(measure(given))
        return kept[-1]

    monkeypatch.setattr(arms, "measure", once)
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ways = found["models"]["tiny"]["arms"]
    assert [row["tokens"] for row in ways[RECOMPUTE]["steps"]] == [8, 16, 32, 40]
    assert ways[KERNEL] == {"skipped": kept[0].skipped[KERNEL]}
    assert {ways[arm]["growth"] for arm in (RECOMPUTE, CONCATENATE, GATHER)} <= {"constant", "linear", "quadratic"}
    assert found["machine"]["device"] == "cpu"
    printed = step.as_text("tiny", plan(8, 16, 32, 40, batch=1), kept[0])
    assert [line[:15].strip() for line in printed[4:8]] == [RECOMPUTE, CONCATENATE, GATHER, KERNEL]
    assert printed[7].split("skipped: ")[1].startswith("no CUDA device")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "1"], "--from 1"),
        (["--to", "100"], "--to 100"),
        (["--to", "9999999"], "--to 9999999"),
        (["--rounds", "0"], "--rounds 0"),
        (["--block-tokens", "0"], "--block-tokens 0"),
        (["--device", "tpu7"], "--device 'tpu7'"),
        (["--device", "cuda:77"], "--device 'cuda:77'"),
    ],
)
def test_failures_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "step", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from kvstore.cli import main
sys.exit(main(["bench", "step"]))
"""


def test_without_torch_it_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "kvstore bench: torch is not installed: pip install '.[transformers]' (or [cuda]) in kvscope's checkout"
    )


BY_KERNEL = """
import torch
from kvstore.bench.steps.arms import KERNEL, Plan, measure
torch.set_num_threads(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
found = measure(Plan("tiny", (18, 33, 72), 1, 2, 16, "float32", device), kernel=True)
points = found.points[KERNEL].values()
print(max(point.difference for point in points), sum(point.copied for point in points))
"""


def test_the_kernel_says_the_same() -> None:
    """On a CPU by Triton's interpreter, which has to be switched on before triton is loaded."""
    pytest.importorskip("triton", reason="triton is not installed (extra cuda)")
    pytest.importorskip("kvstore.kernels.decode")
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run(
        [sys.executable, "-c", BY_KERNEL], capture_output=True, text=True, cwd=ROOT, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    difference, copied = done.stdout.split()
    assert 0 < float(difference) < 1e-4
    assert int(copied) == 0
