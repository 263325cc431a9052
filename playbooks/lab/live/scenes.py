"""The scenarios. Each is the usual store with one thing wrong; at level 0 that thing is right."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from playbooks.lab.live.load import Hot, Kind, Load, usual
from playbooks.lab.live.plan import Draw, Plan, lab_layout, scenario
from playbooks.lab.scenarios import Truth
from playbooks.lab.shims import build as shims

if TYPE_CHECKING:
    from playbooks.lab.live.rig import Rig

ONSET_S = 45.0
HEALTHY = Truth("healthy")


def on_shard(cause: str, draw: Draw, why: str) -> Truth:
    """The truth of a fault on the seed's shard; healthy at level 0."""
    return Truth(cause, {"shard": str(draw.shard)}, why=why) if draw.level else HEALTHY


def _on_class(cause: str, draw: Draw, why: str) -> Truth:
    return Truth(cause, {"session_class": draw.kind}, why=why) if draw.level else HEALTHY


@scenario("healthy", "nothing is wrong")
def healthy(draw: Draw) -> Plan:
    return Plan(HEALTHY, usual(draw.rng.uniform(0.6, 1.4)))


@scenario("internal-fragmentation", "blocks are far longer than the conversations: most token slots stay empty")
def internal_fragmentation(draw: Draw) -> Plan:
    """Short conversations in blocks of 16 tokens, then in blocks of up to 256."""
    tokens = int(draw.by_level(64, 128, 256)) if draw.level else 16
    short = Load(
        tuple(replace(kind, first_tokens=70, turn_tokens=30, prefixes=0, spread=0.3) for kind in usual(2.0).kinds)
    )
    truth = Truth("internal-fragmentation", why=f"blocks of {tokens} tokens for conversations of about a hundred")
    return Plan(truth if draw.level else HEALTHY, short, lab_layout(tokens), blocks=4096)


@scenario("external-fragmentation", "the pool is full of holes, and windows need runs")
def external_fragmentation(draw: Draw) -> Plan:
    """Pinned blocks lie one by one all over the pool of one shard; what is free between them is shorter than a run."""
    load = Load(tuple(replace(kind, one_run=True) for kind in usual().kinds))
    gap = int(draw.by_level(24, 16, 8)) if draw.level else 0

    def scatter(rig: Rig) -> None:
        rig.traffic.scatter(draw.shard, gap)

    truth = on_shard("external-fragmentation", draw, f"a held block every {gap} slots, and windows of 32 in one run")
    return Plan(truth, load, fault=scatter if draw.level else None, onset_s=ONSET_S, blocks=4096)


@scenario(
    "bitmap-sync",
    "the host reads the block bitmap slot by slot",
    stand_in="no GPU here: the drain of a device's queue is a busy wait on the host",
)
def bitmap_sync(draw: Draw) -> Plan:
    own = {draw.shard: {"naive_bitmap": True, "drain_us": draw.by_level(200, 400, 800)}} if draw.level else {}
    return Plan(on_shard("bitmap-sync", draw, "every allocation reads the bitmap from the host"), own=own)


@scenario("wal-stall", "the log device flushes slowly", needs=("cc", "preload"))
def wal_stall(draw: Draw) -> Plan:
    load = replace(usual(), durability=2)
    environment = {}
    if draw.level:
        environment[draw.shard] = shims.slow_fdatasync(draw.by_level(20, 60, 200))
    return Plan(
        on_shard("wal-stall", draw, "a preloaded shim delays fdatasync"),
        load,
        options={"durability": "log+sync"},
        environment=environment,
    )


@scenario("session-leak", "one class of sessions is opened and never closed")
def session_leak(draw: Draw) -> Plan:
    load = usual(1.5).with_kind(draw.kind, ttl_s=3600.0)

    def leak(rig: Rig) -> None:
        rig.change(rig.load.with_kind(draw.kind, closes=draw.by_level(0.5, 0.2, 0.0), turns=1.5))

    truth = _on_class("session-leak", draw, "its clients stopped closing their sessions")
    return Plan(truth, load, fault=leak if draw.level else None, onset_s=ONSET_S, seconds=180.0, blocks=16384)


@scenario("ttl-too-short", "sessions of one class end before their users come back")
def ttl_too_short(draw: Draw) -> Plan:
    ttl = draw.by_level(3.0, 2.0, 1.0) if draw.level else 300.0
    load = usual().with_kind(draw.kind, ttl_s=ttl, think_s=5.0, turns=5.0)
    return Plan(_on_class("ttl-too-short", draw, f"a TTL of {ttl:g} s for users who think 5 s"), load)


@scenario("hot-shard", "one chain takes most of the lookups, and one shard owns it")
def hot_shard(draw: Draw) -> Plan:
    def heat(rig: Rig) -> None:
        rig.change(replace(rig.load, hot=Hot(draw.shard, draw.by_level(60, 120, 240))))

    truth = on_shard("hot-shard", draw, "one hot chain")
    return Plan(truth, usual(), fault=heat if draw.level else None, onset_s=ONSET_S)


@scenario("stalled-shard", "one shard's process is stopped: it accepts, and answers nothing", needs=("signals",))
def stalled_shard(draw: Draw) -> Plan:
    def stop(rig: Rig) -> None:
        rig.signal(draw.shard, signal.SIGSTOP)

    truth = on_shard("stalled-shard", draw, "SIGSTOP")
    return Plan(truth, usual(), fault=stop if draw.level else None, onset_s=ONSET_S)


@scenario("kv-capacity-exhausted", "living sessions hold the whole pool, and puts are refused")
def kv_capacity_exhausted(draw: Draw) -> Plan:
    blocks = int(draw.by_level(500, 350, 220)) if draw.level else 8192
    kinds = tuple(
        Kind(kind.name, kind.arrivals_per_s * 2, turns=kind.turns * 1.5, think_s=4, first_tokens=1500, prefixes=1)
        for kind in usual().kinds
    )
    truth = Truth("kv-capacity-exhausted", why=f"{blocks} blocks a shard for three times as many")
    return Plan(truth if draw.level else HEALTHY, Load(kinds), blocks=blocks)
