"""Scenarios of decode loops whose KV, bitmap and block tables lie on a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from playbooks.lab.live.loops import Loop, LoopPlan
from playbooks.lab.live.plan import SHARDS, Draw, scenario
from playbooks.lab.live.scenes import HEALTHY, on_shard

STAND_IN = "without a GPU the device is the host: a thread that does the model's steps in order, as a stream does"


def _loops(draw: Draw, rows: int, **fault: Any) -> tuple[Loop, ...]:
    """As many as a store has shards; above level 0 the seed's has the fault."""
    struck = draw.shard if draw.level else None
    return tuple(Loop(n, draw.seed, rows, **(fault if n == struck else {})) for n in range(SHARDS))


def _rows(draw: Draw) -> int:
    """The level is how many sequences are decoded together: each of them needs a block in every eighth step."""
    return int(draw.by_level(40, 56, 80)) if draw.level else 56


@scenario(
    "block-table-upload",
    "one decode loop sends every row of its block table by itself",
    needs=("torch",),
    stand_in=STAND_IN,
)
def block_table_upload(draw: Draw) -> LoopPlan:
    truth = on_shard("block-table-upload", draw, "an upload for every row that gets a block")
    return LoopPlan(truth, _loops(draw, _rows(draw), table="upload"))


@scenario(
    "bitmap-sync-decode",
    "one decode loop reads its bitmap from the host",
    needs=("torch",),
    stand_in=STAND_IN,
)
def bitmap_sync_decode(draw: Draw) -> LoopPlan:
    truth = on_shard("bitmap-sync", draw, "every allocation reads the bitmap from the host")
    return LoopPlan(truth, _loops(draw, _rows(draw), bitmap="naive"))


@scenario("healthy-decode", "nothing is wrong with four decode loops", needs=("torch",), stand_in=STAND_IN)
def healthy_decode(draw: Draw) -> LoopPlan:
    return LoopPlan(HEALTHY, _loops(replace(draw, level=0), round(56 * draw.rng.uniform(0.6, 1.4))))
