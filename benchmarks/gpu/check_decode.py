"""Paged decode attention against float64: types, shapes, windows, splits; ragged lengths, NaN in every unused place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu.check import Check
from gpu.exact import attention
from gpu.ops import Op, operator
from gpu.paged import Heads, Scene, scene
from gpu.scenes import Draw, name_of, poisoned
from gpu.tally import Tally

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
TOLERANCE = {F32: 2e-5, F16: 4e-3, BF16: 2e-2}
"""Largest error of an element over the largest exact number (policy): weights and output are rounded once each to the
query's type (by 2**-12 and 2**-9 at most), float32 products are three TF32 ones."""
NORM = {F32: 1e-5, F16: 1e-3, BF16: 8e-3}
"""Of the whole, ‖out − exact‖ / ‖exact‖ (policy): two roundings come to 4e-4 and 1.6e-3 by halves, a product of TF32
alone to 3e-4."""


LLAMA = Heads(32, 8, 128)


@dataclass(frozen=True, slots=True)
class Case:
    """`csr`: FlashInfer's page table instead of block tables. `splits`: 0 to let the launcher choose."""

    dtype: torch.dtype
    kv: torch.dtype | None = None
    heads: Heads = LLAMA
    block_tokens: int = 16
    q_len: int = 1
    window: int = 0
    softcap: float = 0.0
    csr: bool = False
    splits: int = 0
    peaked: float = 1.0

    def __str__(self) -> str:
        kind = name_of(self.dtype) + (f"/{name_of(self.kv)}" if self.kv else "")
        shape = f"{self.heads.query}:{self.heads.kv}×{self.heads.dim} blocks of {self.block_tokens}, q {self.q_len}"
        more = f"window {self.window}, cap {self.softcap:g}, splits {self.splits}" + (", csr" if self.csr else "")
        return f"{kind} {shape}, {more}"


def run(check: Check) -> None:
    op = operator("paged_decode", check.wrong)
    tallies: dict[str, Tally] = {}
    every = cases(check.cpu)
    # The second time nothing is compiled: as many fresh inputs for next to nothing.
    for number, case in enumerate(every if check.cpu else every * 2):
        kind = f"paged_decode {name_of(case.dtype)}" + (f", KV {name_of(case.kv)}" if case.kv else "")
        tally = tallies.setdefault(kind, Tally(check, kind, "of tolerance"))
        if check.left() > 0:
            draw = Draw(check.seed + number, check.device)
            worst = compared(op, case, ragged(draw, check.cpu), draw)
            tally.case(worst <= 1.0, str(case), worst)
        else:
            tally.leave_out()
    for tally in tallies.values():
        tally.tell()


def cases(cpu: bool) -> list[Case]:
    """The commonest first: what has no time is left out from the end."""
    if cpu:
        small = Heads(4, 2, 32)
        return [
            Case(BF16, heads=small), Case(F16, heads=small, q_len=2, window=9, peaked=4),
            Case(F32, heads=small, csr=True),
            Case(F16, E4M3, small, block_tokens=8, splits=2), Case(BF16, E5M2, small),
        ]  # fmt: skip
    return [
        Case(BF16), Case(F16), Case(BF16, E4M3), Case(F32), Case(BF16, E5M2),
        Case(BF16, csr=True, peaked=6), Case(BF16, splits=1, peaked=6), Case(BF16, splits=7),
        Case(BF16, window=100, peaked=4), Case(F16, q_len=4, peaked=4), Case(BF16, softcap=30.0),
        Case(BF16, block_tokens=64), Case(BF16, block_tokens=128), Case(F16, block_tokens=8),
        Case(BF16, block_tokens=32),
        Case(BF16, heads=Heads(64, 8, 64)), Case(BF16, heads=Heads(16, 16, 128)), Case(BF16, heads=Heads(8, 1, 256)),
        Case(F16, heads=Heads(32, 2, 80), q_len=8), Case(F16, E4M3, block_tokens=64, csr=True),
        Case(F32, heads=Heads(8, 4, 64), q_len=3, window=17, splits=3),
        Case(F16, E5M2, heads=Heads(8, 2, 96), window=40),
        Case(BF16, E4M3, q_len=2, softcap=50.0, splits=5, peaked=3), Case(F16, heads=Heads(40, 8, 112), csr=True),
    ]  # fmt: skip


def ragged(draw: Draw, cpu: bool) -> list[int]:
    """Nothing, a token, around a block's end, and some of no particular length."""
    if cpu:
        return [1, 16, 17, draw.number(2, 40), 0]
    return [1, 15, 16, 17, 0, 127, 128, 129, 1000, *draw.numbers(6, 2, 3000), 5000]


def compared(op: Op, case: Case, lengths: list[int], draw: Draw) -> float:
    """The larger of both errors over its tolerance; infinite for NaN."""
    # A query longer than its sequence has tokens before the first one: no such call is made.
    used = [length if length >= case.q_len else 0 for length in lengths]
    given = scene(
        draw, used, case.heads, block_tokens=case.block_tokens, q_len=case.q_len, dtype=case.dtype, kv_dtype=case.kv,
        peaked=case.peaked,
    )  # fmt: skip
    with poisoned():
        out = called(op, given, case)
    exact = torch.stack([attention(given, row, window=case.window, softcap=case.softcap) for row in range(len(used))])
    return max(errors(out, exact, case.dtype))


def called(op: Op, given: Scene, case: Case) -> Tensor:
    rest: tuple[Any, ...] = (
        given.scale, case.window, case.softcap, given.key_scale, given.value_scale, "", case.splits,
    )  # fmt: skip
    if case.csr:
        from kvstore.kernels.decode import paged_decode_csr

        out: Tensor = paged_decode_csr(given.query, given.keys, given.values, *given.csr(), *rest)
    else:
        out = op(given.query, given.keys, given.values, given.tables, given.lengths, *rest)
    return out


def errors(out: Tensor, exact: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """The worst element's and the whole's error, each over its tolerance."""
    off = (out.double() - exact).nan_to_num(nan=float("inf")).abs()
    largest, whole = float(exact.abs().max()), float(exact.norm())
    if not whole:
        return (0.0 if not off.any() else float("inf"),) * 2
    return float(off.max()) / largest / TOLERANCE[dtype], float(off.norm()) / whole / NORM[dtype]
