"""Scenarios of a store whose clients read its blocks over NIXL, as from another host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from playbooks.lab.live.load import Load, Scattered, usual
from playbooks.lab.live.plan import Draw, Plan, scenario
from playbooks.lab.live.scenes import HEALTHY, on_shard

AFAR: dict[str, Any] = {"options": {"nixl": True}, "transport": "nixl"}


@scenario("wrong-transport", "one shard's NIXL may only use TCP, though a faster lane is there", needs=("nixl",))
def wrong_transport(draw: Draw) -> Plan:
    """`UCX_TLS=tcp` in one shard's environment. The level is how much is read: the lane itself has no degrees."""
    load = usual(draw.by_level(0.7, 1.0, 1.4) if draw.level else 1.0)
    environment = {draw.shard: {"UCX_TLS": "tcp"}} if draw.level else {}
    return Plan(on_shard("wrong-transport", draw, "UCX_TLS=tcp"), load, environment=environment, **AFAR)


@scenario("descriptor-explosion", "one shard's blocks are put out of order, and read one by one", needs=("nixl",))
def descriptor_explosion(draw: Draw) -> Plan:
    """Long prompts, so that a few turns a second read many blocks."""
    kinds = usual(0.6).kinds
    load = Load(tuple(replace(kind, first_tokens=10_000, prefixes=2, prefix_tokens=8192, spread=0.1) for kind in kinds))
    if draw.level:
        load = replace(load, scattered=Scattered(draw.shard, draw.by_level(0.85, 0.95, 1.0)))
    truth = on_shard("descriptor-explosion", draw, "windows whose blocks lie in no order")
    return Plan(truth, load, blocks=16384, **AFAR)


@scenario("healthy-nixl", "nothing is wrong, and reads go over NIXL", needs=("nixl",))
def healthy_nixl(draw: Draw) -> Plan:
    return Plan(HEALTHY, usual(draw.rng.uniform(0.6, 1.4)), **AFAR)
