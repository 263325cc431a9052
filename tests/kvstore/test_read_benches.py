"""`kvstore bench fetch` and `lookup` on a real shard and a real Redis: every arm says what it measured."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil

import numpy as np
import pytest

from kvstore.bench import fetch, lookup
from kvstore.bench.peers import Memcpy
from kvstore.bench.rounds import interleave


def test_fetch_measures_every_arm_of_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    assert fetch.run(["--blocks", "2048", "--rounds", "2", "--json"]) == 0
    assert os.sched_getaffinity(0) == cores
    found = json.loads(capsys.readouterr().out)
    assert len(found["cases"]) == 4
    arms = {"memcpy", "memcpy, gather", "mapped", "mapped, verified"}
    arms |= {"redis"} if shutil.which("redis-server") else set()
    arms |= {"all-gather"} if importlib.util.find_spec("torch") else set()
    for case in found["cases"].values():
        assert set(case) == arms
        assert min(case[arm]["ratio_to_memcpy"] for arm in ("memcpy", "memcpy, gather")) == 1
        assert all(0 < figures["p50_s"] <= figures["p99_s"] for figures in case.values())
    assert len([aim for aim in found["aims"] if not aim.startswith("nixl")]) == 8
    assert {"cpu", "cores", "kernel", "load_1m"} <= set(found["machine"])


def test_lookup_measures_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert lookup.run(["--blocks", "2000", "--rounds", "2"]) == 0
    said = capsys.readouterr().out
    assert "half present  mapped index" in said
    assert said.count("aim met") + said.count("aim MISSED") == 8


def test_aims_are_judged_by_their_figures() -> None:
    def case(plain: float, summed: float) -> dict[str, dict[str, float]]:
        return {
            "mapped": {"ratio_to_memcpy": plain, "p50_s": plain * 1e-5},
            "mapped, verified": {"ratio_to_memcpy": summed, "p50_s": summed * 1e-5},
        }

    names = ("1 MiB", "1000 × 16 KiB, runs of 32", "1000 × 16 KiB, scattered")
    met = fetch.verdicts({"cases": {"16 KiB": case(4.9, 5.1), **{name: case(1.5, 3.1) for name in names}}})
    assert [value for name, value in met.items() if "verified" not in name] == [True] * 4
    assert [value for name, value in met.items() if "verified" in name] == [False] * 4


def test_the_copy_that_is_measured_against_is_a_copy() -> None:
    source = np.random.default_rng(0).integers(0, 256, (50, 256), np.uint8)
    slots = np.asarray([3, 4, 5, 9, 8, 40, 41])
    for way in ("runs", "gather"):
        out = np.zeros((7, 256), np.uint8)
        memcpy = Memcpy(source, out)
        plan = memcpy.plan(slots)
        assert [size // 256 for _, _, size in plan] == [3, 1, 1, 2]
        memcpy.runs(plan) if way == "runs" else memcpy.gather(slots)
        assert np.array_equal(out, source[slots])


async def test_every_arm_has_its_turn_in_every_round() -> None:
    calls: list[tuple[str, int]] = []

    async def arm(name: str, number: int) -> None:
        calls.append((name, number))

    arms = {name: lambda number, name=name: arm(name, number) for name in "abc"}
    times = await interleave(arms, 3, burst=2, warm_up=1)
    assert {name: len(taken.seconds) for name, taken in times.items()} == dict.fromkeys("abc", 6)
    assert sorted(calls) == [(name, number) for name in "abc" for number in range(8)]
    assert [{name for name, _ in calls[at : at + 6]} for at in range(0, 24, 6)] == [set("abc")] * 4
