"""`kvstore serve`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from kvstore import options
from kvstore.serve import serve
from kvstore.settings import Settings


def run(argv: Sequence[str]) -> int:
    """Serve one shard until SIGTERM; the exit code."""
    given = _parser().parse_args(argv)
    layout = options.layout_of(given)
    host, port = options.address_of(given.listen)
    page_host, page_port = None, given.metrics_port
    if given.metrics_listen:
        page_host, page_port = options.address_of(given.metrics_listen)
    options.require_port("--metrics-port", given.metrics_port, least=-1)
    settings = Settings(
        layout=layout,
        blocks=options.blocks_of(given, layout),
        shard=given.shard,
        shards=given.shards,
        host=host,
        port=port,
        metrics_port=page_port if page_port >= 0 else None,
        metrics_host=page_host,
        etcd=given.etcd,
        cluster=given.cluster,
        lease_s=options.milliseconds_of(given.lease) // 1000,
        access=options.access_of(given),
        advertise=given.advertise,
        run_dir=given.run_dir,
        cluster_file=given.cluster_file,
        durability=options.DURABILITY[given.durability],
        log_dir=given.log_dir,
        drop_surplus=given.drop_surplus,
        drop_damaged=given.drop_damaged,
        session_ttl_ms=options.session_ttl_of(given.session_ttl),
        placement=given.placement,
        naive_bitmap=given.naive_bitmap,
        drain_us=given.drain_us,
        nixl=given.nixl,
        device=options.devices_of(given.device)[given.shard % len(options.devices_of(given.device))],
    )
    return serve(settings, ready_fd=given.ready_fd, lifeline_fd=given.lifeline_fd)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kvstore serve", description="Serve one shard until SIGTERM.")
    options.add_store_options(parser)
    options.add_access_options(parser)
    options.add_membership_options(parser)
    parser.add_argument("--listen", default="127.0.0.1:7600", metavar="HOST:PORT", help="port 0: any")
    parser.add_argument("--metrics-port", type=int, default=0, metavar="PORT", help="0: any (default); -1: no page")
    parser.add_argument(
        "--metrics-listen", metavar="HOST:PORT", help="where the page listens (default: loopback); plain HTTP"
    )
    parser.add_argument("--advertise", metavar="HOST", help="by which others reach it, where that is not --listen's")
    parser.add_argument("--shard", type=int, default=0, metavar="N", help="its number among --shards")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="how many there are")
    parser.add_argument("--cluster-file", type=Path, metavar="FILE", help="where the other shards are")
    parser.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline-fd", type=int, default=-1, help=argparse.SUPPRESS)
    return parser
