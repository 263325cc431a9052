"""`kvstore bench instruments`: a fetch with all instruments on against the same fetch with none, and whether they saw
every operation.

One client and one shard, each with OpenTelemetry spans (written to a file), NVTX ranges and counters. The fetch is a
batch of 16 KiB blocks at known, leased places. Both arms run in one process, in turn, in random order; `off` is what
call sites are when nothing is switched on. Without a profiler NVTX's calls are made all the same and reach nobody.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import probes.instrument as instrument
from kvstore.bench import machine
from kvstore.client import SyncClient
from kvstore.cluster import LocalCluster
from kvstore.layout import Layout
from kvstore.locations import Locations
from probes.instrument.ranges import INJECTION
from probes.instrument.switch import Begun

AIM = 1.02
LAYOUT = Layout("bench", heads=2, head_dim=128)
"""16 KiB a block."""
LEASE_MS = 60_000
_NOBODY = "/nonexistent/no-profiler.so"


def measure(blocks: int, rounds: int, *, verify: bool) -> dict[str, Any]:
    """Times of both arms in seconds, and what each instrument counted beside the operations that were done."""
    os.environ.setdefault(INJECTION, _NOBODY)
    with tempfile.TemporaryDirectory(prefix="kvstore-bench-") as folder:
        file = Path(folder) / "spans.jsonl"
        tracing = {"KVSTORE_TRACE": "otel,nvtx", "KVSTORE_TRACE_FILE": str(file)}
        try:
            instrument.configure("otel,nvtx", file=str(file))
            with LocalCluster(1, LAYOUT, blocks + 64, environment={0: tracing}) as cluster:
                with SyncClient(cluster.targets, LAYOUT) as client:
                    found = _timed(client, blocks, rounds, verify)
                page = urllib.request.urlopen(cluster.metrics_urls[0], timeout=10).read().decode()
            begun = instrument.begun()
        finally:
            instrument.configure("off")
        spans = [json.loads(line) for line in file.read_text().splitlines()]
    return found | {"counts": _counts(found["operations"], begun, spans, page, rounds)}


def _timed(client: SyncClient, blocks: int, rounds: int, verify: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    keys = rng.integers(1, 2**63, (blocks, 4)).astype(np.uint64)
    data = rng.integers(0, 255, (blocks, LAYOUT.block_bytes), np.uint8)
    operations = Counter({"put": 1, "lookup": 1})
    client.put(keys, data)
    located = client.lookup(keys, lease_ms=LEASE_MS)
    out = client.buffer(blocks)
    times: dict[str, list[float]] = {"on": [], "off": []}
    shuffle = random.Random(0).shuffle
    for number in range(-3, rounds):
        if number % 50 == 0:
            client.renew(located, LEASE_MS)
            operations["lease"] += 1
        arms = list(times)
        shuffle(arms)
        for arm in arms:
            seconds = _fetch(client, located, out, verify, arm)
            operations["get"] += arm == "on"
            if number >= 0:
                times[arm].append(seconds)
    return {"blocks": blocks, "verify": verify, "seconds": times, "operations": dict(operations)}


def _fetch(client: SyncClient, located: Locations, out: Any, verify: bool, arm: str) -> float:
    if arm == "on":
        began = time.perf_counter()
        found = client.get(located, out, verify=verify)
        seconds = time.perf_counter() - began
    else:
        with instrument.silenced():
            began = time.perf_counter()
            found = client.get(located, out, verify=verify)
            seconds = time.perf_counter() - began
    if not found.found.all():
        raise RuntimeError("a block was missed: the pool is too small, or the lease ended")
    return seconds


def _counts(
    done: dict[str, int], begun: Begun, spans: list[dict[str, Any]], page: str, rounds: int
) -> dict[str, tuple[int, int]]:
    """What was counted, and what it should equal."""
    client = Counter(span["name"] for span in spans if span["scope"] == "kvstore.client")
    shard = Counter(span["name"] for span in spans if span["kind"] == "server")
    ours = sum(done[name] for name in ("put", "lookup", "get"))
    served = {op: _sample(page, "kv_operations_total", op) for op in ("put", "lookup", "lease")}
    found = {f"client spans kv.{name}": (client[f"kv.{name}"], done[name]) for name in ("put", "lookup", "get")}
    found["client ranges"] = (begun.ranges, ours)
    for op, count in served.items():
        found[f"shard counter {op}"] = (count, done[op])
        found[f"shard spans kv.{op}"] = (shard[f"kv.{op}"], done[op])
        found[f"shard histogram {op}"] = (_sample(page, "kv_operation_seconds_count", op), done[op])
    reads = re.search(r"^kv_reads_total\{[^}]*\} (\S+)$", page, re.MULTILINE)
    found["reads reported by the client, both arms"] = (int(float(reads[1])) if reads else -1, 2 * (rounds + 3))
    return found


def _sample(page: str, name: str, op: str) -> int:
    """The sum of a series of one operation over its results; −1 where the page has none."""
    rows = re.findall(rf'^{name}\{{[^}}]*op="{op}"[^}}]*\}} (\S+)$', page, re.MULTILINE)
    return int(sum(map(float, rows))) if rows else -1


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Medians and their ratio, and whether all counts are right."""
    median = {arm: float(np.median(seconds)) for arm, seconds in found["seconds"].items()}
    return {
        "blocks": found["blocks"],
        "verify": found["verify"],
        "p50_s": median,
        "ratio": median["on"] / median["off"],
        "counts": found["counts"],
        "counts_equal": all(seen == done for seen, done in found["counts"].values()),
    }


def run(argv: list[str]) -> int:
    """Exit code 0 when every instrument saw every operation, 1 when one did not; 2 for usage."""
    parser = argparse.ArgumentParser(prog="kvstore bench instruments", description=__doc__)
    parser.add_argument("--blocks", type=int, default=1000, help="of 16 KiB, in one fetch")
    parser.add_argument("--rounds", type=int, default=200, help="fetches of each arm")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.blocks < 1 or options.rounds < 1:
        parser.error("need --blocks ≥ 1 and --rounds ≥ 1")
    facts = machine.facts()
    try:
        cases = [summary(measure(options.blocks, options.rounds, verify=verify)) for verify in (False, True)]
    except instrument.InstrumentError as error:
        print(f"kvstore bench instruments: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"machine": facts, "aim": AIM, "cases": cases}) if options.json else _table(facts, cases))
    return 0 if all(case["counts_equal"] for case in cases) else 1


def _table(facts: dict[str, Any], cases: list[dict[str, Any]]) -> str:
    lines = [machine.line(facts)]
    for case in cases:
        on, off, ratio = case["p50_s"]["on"], case["p50_s"]["off"], case["ratio"]
        sums = "verified" if case["verify"] else "unverified"
        aim = "met" if ratio <= AIM else "MISSED"
        lines.append(
            f"fetch of {case['blocks']} × 16 KiB, {sums}: on {on * 1e3:.3f} ms, off {off * 1e3:.3f} ms, "
            f"ratio {ratio:.4f} (aim ≤ {AIM}: {aim})"
        )
        lines += [
            f"  {name}: {seen} of {done}" + ("" if seen == done else "  DIFFERS")
            for name, (seen, done) in case["counts"].items()
        ]
    return "\n".join(lines)
