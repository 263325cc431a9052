"""The store's write-ahead log: group commit, recycled segments, checkpoints of the index, recovery."""

from kvstore.log.config import Durability, LogConfig
from kvstore.log.log import Log
from kvstore.log.record import Batch, BlockShape, Kind, appends, drops, puts
from kvstore.log.recovery import LiveEntry
from kvstore.log.stats import LogStats
from kvstore.log.ticket import Ticket

__all__ = [
    "Batch",
    "BlockShape",
    "Durability",
    "Kind",
    "LiveEntry",
    "Log",
    "LogConfig",
    "LogStats",
    "Ticket",
    "appends",
    "drops",
    "puts",
]
