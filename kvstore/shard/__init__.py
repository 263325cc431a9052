"""One shard's state and how it answers: no I/O but the log."""

from kvstore.shard.shard import Shard

__all__ = ["Shard"]
