"""`kvstore replay`: an hour of requests against a real store."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore import options
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest
from kvstore.layout import Layout
from kvstore.lifeline import end_with
from kvstore.placement import KINDS
from kvstore.printable import printable
from kvstore.replay import target
from kvstore.replay.content import Content
from kvstore.replay.content import layout as trace_layout
from kvstore.replay.conversations import conversations
from kvstore.replay.driver import Driver, Pace, SessionPlan
from kvstore.replay.oracle import Homes, Outcome, infinite, strict_lru
from kvstore.replay.report import Progress, Report
from kvstore.replay.trace import Request, TraceError, excerpt, read_trace
from kvstore.security import Access

EXIT_WRONG_BYTES = 1
DEADLINE_MS = 30_000

_EPILOG = """\
A trace has one JSON object a line: timestamp (ms), input_length, output_length (tokens) and hash_ids, one for every
512 tokens of the prompt (Mooncake's format). A hash id is one window: one run of blocks in the store. By default a
window is one block of 512 tokens with one byte each for K and V (1 KiB), so that the index and the pool of an hour of
production requests (182,790 windows) take some 250 MiB instead of terabytes; hit ratios do not depend on the bytes of
a block. --block-tokens 64 makes runs of eight blocks, --block-bytes 65536 moves 64 KiB a block. Every get reads,
verifies and compares its bytes; every miss is put.
"""


def run(argv: Sequence[str]) -> int:
    """Exit code 0; 1 when a byte was wrong; 2 for usage, a broken trace, or a store that is not there or fails."""
    parser = _parser()
    given = parser.parse_args(argv)
    end_with(given.lifeline_fd)
    _check(parser, given)
    try:
        requests = read_trace(given.trace or excerpt(), limit=given.limit)
    except TraceError as error:
        print(f"kvstore replay: {printable(str(error))}", file=sys.stderr)
        return 2
    report = _to_its_end(_connected(given, requests) if given.connect else _own_cluster(given, requests))
    print(json.dumps(report.as_dict()) if given.json else "\n".join([*report.lines(), *_why(given, report)]))
    return EXIT_WRONG_BYTES if report.tally.wrong else 0


def _to_its_end(work: Coroutine[Any, Any, Report]) -> Report:
    """The result; what was started for it ends also when we are told to end."""

    async def told() -> Report:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(told())
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None


async def _own_cluster(given: argparse.Namespace, requests: Sequence[Request]) -> Report:
    layout = trace_layout(given.block_tokens, given.block_bytes)
    if given.blocks is None:
        blocks = target.pool_blocks(requests, layout, given.shards, given.placement)
    else:
        blocks = -(-given.blocks // given.shards) * layout.window_blocks
    cluster = LocalCluster(
        given.shards,
        layout,
        blocks,
        metrics_port=given.metrics or 0,
        placement=given.placement,
        durability=given.durability,
    )
    async with cluster:
        if given.metrics is not None:
            print("\n".join(cluster.metrics_urls), file=sys.stderr)
        return await _play(given, requests, cluster.targets, layout)


async def _connected(given: argparse.Namespace, requests: Sequence[Request]) -> Report:
    targets = target.cluster_file_or_addresses(given.connect)
    access = options.access_of(given)
    layout = target.layout_of(await target.first_of(targets, access))
    return await _play(given, requests, targets, layout, access)


async def _play(
    given: argparse.Namespace,
    requests: Sequence[Request],
    targets: str,
    layout: Layout,
    access: Access | None = None,
) -> Report:
    pace = Pace(given.lanes, given.speed, given.lease_ms, options.DURABILITY[given.durability])
    plan = None
    if given.sessions:
        plan = SessionPlan(conversations(requests), ttl_ms=options.session_ttl_of(given.session_ttl))
    progress = Progress(len(requests))
    async with await Client.connect(targets, layout, deadline_ms=DEADLINE_MS, name="replay", access=access) as client:
        before = await target.evictions(client)
        driver = Driver(client, pace, sessions=plan, seen=progress.show)
        began = time.perf_counter()
        tally = await driver.run(requests)
        seconds = time.perf_counter() - began
        progress.show(tally, last=True)
        after = await target.evictions(client)
        evicted = None if before is None or after is None else after - before
        return Report(tally, evicted, seconds, _oracles(requests, client, evicted))


def _oracles(requests: Sequence[Request], client: Client, evicted: int | None) -> dict[str, Outcome]:
    """What could have been: no limit; and, where something was evicted, strict LRU of the pool's size."""
    layout, shards = client.layout, client.shards
    rooms = [int(link.facts["blocks"]) // layout.window_blocks for link in shards.links]
    found = {"no limit": infinite(requests)}
    if evicted != 0:
        found[f"strict LRU of {sum(rooms)} windows"] = strict_lru(requests, [sum(rooms)])
        if len(rooms) > 1:
            found["the same, in shards"] = strict_lru(requests, rooms, _homes(client))
    return found


def _homes(client: Client) -> Homes:
    """The place (in order of number) of each window's shard: that of its first block."""
    content = Content(client.layout)
    numbers = np.array([link.number for link in client.shards.links], np.int64)

    def home(request: Request) -> npt.NDArray[np.int64]:
        counts = content.counts(request)
        return np.searchsorted(numbers, client.shards.home(content.keys(request)[np.cumsum(counts) - counts]))

    return home


def _why(given: argparse.Namespace, report: Report) -> list[str]:
    """What sets this store apart from strict LRU, when something was evicted."""
    if not report.evictions:
        return []
    return [
        "Beside strict LRU: eviction takes the oldest of a random sample of windows; a request uses its windows last",
        f"to first, so that a prefix outlives what continues it; leases ({given.lease_ms} ms, released after the get)",
        f"keep what is being read; up to {given.lanes} requests are in flight; each shard has a room of its own.",
    ]


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.connect and (given.blocks is not None or given.block_bytes is not None or given.metrics is not None):
        parser.error("--connect uses a store as it is: leave --blocks, --block-bytes and --metrics out")
    options.session_ttl_of(given.session_ttl)
    if given.metrics is not None:
        options.require_port("--metrics", given.metrics, shards=given.shards)
    for name in ("shards", "lanes", "blocks", "limit"):
        value = getattr(given, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, not {value}")
    if given.speed is not None and not 0 < given.speed < float("inf"):
        parser.error(f"--speed must be a positive number, not {given.speed}")
    if given.lease_ms < 0:
        parser.error(f"--lease-ms must not be negative, not {given.lease_ms}")
    if given.placement not in KINDS:
        raise BadRequest(f"no placement {given.placement!r}; there are {', '.join(KINDS)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "kvstore replay",
        description="Play a trace of requests against a store.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trace", nargs="?", type=Path, metavar="TRACE", help="default: an excerpt of 600 requests")
    where = parser.add_argument_group("store")
    where.add_argument(
        "--connect", metavar="TARGETS", help="a running one: HOST:PORT,…, a cluster file, or etcd://HOST:PORT/NAME"
    )
    where.add_argument("--shards", type=int, default=4, metavar="N", help="or one made for this (default: %(default)s)")
    where.add_argument("--blocks", type=int, metavar="N", help="windows it has room for (default: the whole trace)")
    where.add_argument("--block-tokens", type=int, default=512, metavar="N", help="default: %(default)s, one a window")
    where.add_argument("--block-bytes", type=int, metavar="N", help="default: two a token")
    where.add_argument("--placement", default="head-group-window", help=f"{', '.join(KINDS)} (default: %(default)s)")
    where.add_argument(
        "--durability", choices=list(options.DURABILITY), default="none", help="what a shard can promise"
    )
    where.add_argument("--metrics", type=int, metavar="PORT", help="page of shard 0, counting up; prints the addresses")
    options.add_access_options(parser)
    how = parser.add_argument_group("replay")
    how.add_argument(
        "--speed", type=float, metavar="X", help="times the trace's own pace (default: as fast as it goes)"
    )
    how.add_argument("--lanes", type=int, default=8, metavar="N", help="requests in flight (default: %(default)s)")
    how.add_argument("--lease-ms", type=int, default=1_000, metavar="MS", help="0: none (default: %(default)s)")
    how.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    how.add_argument("--sessions", action="store_true", help="open a session for every conversation of the trace")
    how.add_argument(
        "--session-ttl", default="30m", metavar="TIME", help="idle time that ends one (default: %(default)s)"
    )
    parser.add_argument("--lifeline-fd", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    return parser
