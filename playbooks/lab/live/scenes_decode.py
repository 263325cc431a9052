"""Scenarios of decode loops whose KV, bitmap and block tables lie on a device."""

from __future__ import annotations

from playbooks.lab.live.loops import Loop, LoopPlan
from playbooks.lab.live.plan import SHARDS, Draw, scenario
from playbooks.lab.live.scenes import HEALTHY, on_shard

STAND_IN = "without a GPU the device is the host: a thread that does the model's steps in order, as a stream does"


@scenario(
    "block-table-upload",
    "one decode loop sends every row of its block table by itself",
    needs=("torch",),
    stand_in=STAND_IN,
)
def block_table_upload(draw: Draw) -> LoopPlan:
    """The level is how many sequences are decoded together: each of them needs a block in every eighth step."""
    rows = int(draw.by_level(40, 56, 80)) if draw.level else 56
    loops = tuple(
        Loop(number, draw.seed, rows, table="upload" if draw.level and number == draw.shard else "batched")
        for number in range(SHARDS)
    )
    return LoopPlan(on_shard("block-table-upload", draw, "an upload for every row that gets a block"), loops)


@scenario("healthy-decode", "nothing is wrong with four decode loops", needs=("torch",), stand_in=STAND_IN)
def healthy_decode(draw: Draw) -> LoopPlan:
    rows = round(56 * draw.rng.uniform(0.6, 1.4))
    return LoopPlan(HEALTHY, tuple(Loop(number, draw.seed, rows) for number in range(SHARDS)))
