"""What ``/metrics`` says: figures read from a shard's parts, its counters, and the page made of both.

::

    collector = StoreCollector(ShardSource(shard, settings, clients, peers))    # or anything that is a `PageSource`
    server = await serve_metrics(collector, port=9401)    # on the shard's own loop
"""

from kvstore.page.collector import Page, StoreCollector
from kvstore.page.figures import (
    Identity,
    LogFigures,
    PageSource,
    PeerFigures,
    PoolFigures,
    SessionFigures,
    Snapshot,
    TrafficFigures,
    Transport,
)
from kvstore.page.http import MetricsServer, serve_metrics
from kvstore.page.reduce import BlockMap, Cell, block_map, blocks_by_run
from kvstore.page.source import ShardSource

__all__ = [
    "BlockMap",
    "Cell",
    "Identity",
    "LogFigures",
    "MetricsServer",
    "Page",
    "PageSource",
    "PeerFigures",
    "PoolFigures",
    "SessionFigures",
    "ShardSource",
    "Snapshot",
    "StoreCollector",
    "TrafficFigures",
    "Transport",
    "block_map",
    "blocks_by_run",
    "serve_metrics",
]
