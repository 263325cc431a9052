"""`kvstore cluster`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from kvstore import options
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest
from kvstore.lifeline import end_with
from kvstore.memory import require_memory
from kvstore.settings import host_bytes

EXIT_SHARD_DIED = 1


def run(argv: Sequence[str]) -> int:
    """Run shards until SIGTERM or Ctrl-C; the exit code."""
    given = _parser().parse_args(argv)
    layout = options.layout_of(given)
    host, port = options.address_of(given.listen)
    blocks = options.blocks_of(given, layout)
    options.session_ttl_of(given.session_ttl)
    options.require_port("--listen", port, shards=given.shards)
    options.require_port("--metrics-port", given.metrics_port, shards=given.shards)
    require_memory(max(host_bytes(layout, blocks, device) for device in options.devices_of(given.device)), given.shards)
    told: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    end_with(given.lifeline_fd)
    with LocalCluster(
        given.shards,
        layout,
        blocks,
        run_dir=given.run_dir,
        cluster_file=given.cluster_file,
        host=host,
        port=port,
        metrics_port=given.metrics_port,
        placement=_known_placement(given.placement),
        durability=given.durability,
        log_dir=given.log_dir,
        drop_surplus=given.drop_surplus,
        drop_damaged=given.drop_damaged,
        session_ttl=given.session_ttl,
        naive_bitmap=given.naive_bitmap,
        drain_us=given.drain_us,
        tls_ca=given.tls_ca,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        token_file=given.token_file,
        insecure=given.insecure,
        etcd=given.etcd,
        cluster=given.cluster,
        lease=given.lease,
        advertise=given.advertise,
        nixl=given.nixl,
        device=given.device,
    ) as cluster:
        for facts in cluster.facts:
            print(f"shard {facts['shard']}  {facts['address']}  {facts['metrics']}")
        print(f"cluster file {cluster.file}", flush=True)
        return _watch(cluster, told)


def _watch(cluster: LocalCluster, told: list[int]) -> int:
    """Until told to stop; a shard that dies is told of, and not restarted."""
    died: set[int] = set()
    while not told and len(died) < len(cluster.processes):
        time.sleep(0.2)
        for number, process in enumerate(cluster.processes):
            if number not in died and process.poll() is not None and not told:
                died.add(number)
                said = cluster.log(number).strip().splitlines()
                why = said[-1] if said else f"exit code {process.returncode}"
                print(f"kvstore cluster: shard {number} has ended: {why}", file=sys.stderr, flush=True)
    return EXIT_SHARD_DIED if died else 0


def _known_placement(kind: str) -> str:
    from kvstore.placement import KINDS

    if kind not in KINDS:
        raise BadRequest(f"no placement {kind!r}; there are {', '.join(KINDS)}")
    return kind


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kvstore cluster", description="Run shards on this host until Ctrl-C.")
    parser.add_argument("--shards", type=int, default=4, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--lifeline-fd", type=int, default=-1, help=argparse.SUPPRESS)
    options.add_store_options(parser)
    options.add_access_options(parser)
    options.add_membership_options(parser)
    parser.add_argument(
        "--listen", default="127.0.0.1:7600", metavar="HOST:PORT", help="of shard 0, counting up; port 0: any"
    )
    parser.add_argument(
        "--metrics-port", type=int, default=9600, metavar="PORT", help="of shard 0, counting up; 0: any (default: 9600)"
    )
    parser.add_argument("--advertise", metavar="HOST", help="by which others reach it, where that is not --listen's")
    parser.add_argument("--cluster-file", type=Path, metavar="FILE", help="where to write the addresses")
    return parser
