"""A real shard with a real log: one trace from the asker to the flush, and as many spans and counts as operations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.arena import Arena
from kvstore.errors import PoolExhausted
from kvstore.header import sums
from kvstore.log import Log, LogConfig
from kvstore.messages import Durability, Envelope, Lookup, Put
from kvstore.meters import Meters
from kvstore.shard import Shard
from kvstore.shard.journal import durability_of, shape_of
from probes import instrument as instruments
from probes.instrument import Instrument, configure
from tests.kvstore.page_source import LAYOUT

pytest.importorskip("opentelemetry.sdk", reason="install kvscope[trace]")
BLOCKS = 64
Spans = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def spans(tmp_path: Path) -> Iterator[Spans]:
    file = tmp_path / "spans.jsonl"
    configure("otel", file=str(file))

    def read() -> list[dict[str, Any]]:
        instruments.shutdown()
        return [json.loads(line) for line in file.read_text().splitlines()]

    yield read
    configure("off")


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    meters = Meters()
    config = LogConfig(shape_of(LAYOUT), durability_of(Durability.LOG_SYNC), window_us=20_000, segment_bytes=1 << 20)
    log = Log(tmp_path / "log", config, meters)
    made = Shard.create(LAYOUT, BLOCKS, log=log, durability=Durability.LOG_SYNC, meters=meters)
    made.recover()
    yield made
    log.close()
    made.pool.arena.close()


@pytest.fixture
def staging() -> Iterator[Arena]:
    arena = Arena.create("kv-test-staging", BLOCKS, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=False)
    arena.data[:] = np.random.default_rng(1).integers(0, 255, arena.data.shape, np.uint8)
    yield arena
    arena.close()


def put(staging: Arena, first: int, n: int, durability: Durability = Durability.LOG_SYNC) -> Put:
    keys = np.zeros((n, 4), np.uint64)
    keys[:, 0] = np.arange(first + 1, first + n + 1)
    rows = np.arange(first, first + n)
    full = np.full(n, LAYOUT.block_tokens)
    return Put(keys, rows, sums(staging.data[rows]), full, np.zeros((n, 24), np.uint8), durability=durability)


async def _ask(shard: Shard, message: Any, staging: Arena) -> None:
    """What a client does: a span of its own, whose context the request carries."""
    async with Instrument("kvstore.client").span("kv.call", kind="client") as span:
        await shard.answer(Envelope(traceparent=span.traceparent, client=1), message, staging)


async def test_a_trace_runs_from_the_asker_through_the_shard_to_the_flush(
    shard: Shard, staging: Arena, spans: Spans
) -> None:
    await asyncio.gather(*(_ask(shard, put(staging, 4 * n, 4), staging) for n in range(5)))
    found = spans()
    calls = {span["spanId"]: span for span in found if span["kind"] == "client"}
    servers = [span for span in found if span["kind"] == "server"]
    flushes = [span for span in found if span["name"] == "kv.log.flush"]
    assert len(calls) == len(servers) == 5
    assert {span["parentSpanId"] for span in servers} == set(calls)
    assert all(span["traceId"] == calls[span["parentSpanId"]]["traceId"] for span in servers)
    linked = [(link["traceId"], link["spanId"]) for flush in flushes for link in flush["links"]]
    assert sorted(linked) == sorted((span["traceId"], span["spanId"]) for span in servers), "each put has its flush"
    assert len(flushes) < 5, "five puts within 20 ms share flushes"
    for flush in flushes:
        assert flush["parentSpanId"] == flush["links"][0]["spanId"]
        assert flush["attributes"]["kv.blocks"] == 4 * len(flush["links"])


async def test_spans_and_counts_equal_the_operations(shard: Shard, staging: Arena, spans: Spans) -> None:
    for n in range(3):
        await _ask(shard, put(staging, 4 * n, 4, Durability.NONE), staging)
    for n in range(7):
        await _ask(shard, Lookup(put(staging, n, 1).keys), staging)
    with pytest.raises(PoolExhausted):
        await _ask(shard, _too_many(staging), staging)
    found = [span for span in spans() if span["kind"] == "server"]
    operations = shard.meters.operations
    by_name = {name: sum(span["name"] == f"kv.{name}" for span in found) for name in ("put", "lookup")}
    assert by_name == {name: operations[name].seconds.count for name in by_name}
    assert operations["lookup"].results == {"ok": 7, "refused": 0, "error": 0}
    assert operations["put"].results["refused"] == shard.meters.put_refusals["no_space"] == 1
    refused = next(span for span in found if span["attributes"].get("kv.result") == "refused")
    assert refused["attributes"]["error.type"] == "no_space"
    assert all(operation.inflight == 0 for operation in operations.values())


def _too_many(staging: Arena) -> Put:
    """A put of more blocks than there are."""
    n = BLOCKS + 1
    keys = np.zeros((n, 4), np.uint64)
    keys[:, 0] = np.arange(1_000, 1_000 + n)
    rows = np.arange(n) % BLOCKS
    full = np.full(n, LAYOUT.block_tokens)
    return Put(keys, rows, sums(staging.data[rows]), full, np.zeros((n, 24), np.uint8))


async def test_the_slow_flush_of_a_put_is_found_by_its_exemplar(shard: Shard, staging: Arena, spans: Spans) -> None:
    await _ask(shard, put(staging, 0, 4), staging)
    meters = shard.meters
    histograms = (meters.operations["put"].seconds, meters.put_stage_seconds["log"], meters.wal_flush_seconds)
    kept = [{x.trace_id for x in histogram.snapshot().exemplars if x} for histogram in histograms]
    traces = {span["traceId"] for span in spans()}
    assert len(traces) == 1
    assert kept == [traces] * 3
