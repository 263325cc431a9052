"""How a log is kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvstore.errors import BadRequest
from kvstore.log.record import RECORD_BYTES, BlockShape
from kvstore.log.segment import DATA_START

MIB = 1 << 20


class Durability(Enum):
    """When a put is acknowledged. (`none` is a shard without a log.)"""

    LOG = "log"
    """Once it is in the file: survives the process, not the host."""
    LOG_SYNC = "log+sync"
    """Once the device says that it holds it (fdatasync)."""


@dataclass(frozen=True)
class LogConfig:
    """Sizes and times; the defaults suit a shard with a pool of up to some hundreds of MiB.

    `budget_segments` is what the log keeps within as long as old payload dies: a multiple (2 or more) of the pool's
    size keeps rewriting rare. It may grow to `limit_segments` when too much is live; then durable puts are refused.
    """

    shape: BlockShape
    durability: Durability = Durability.LOG_SYNC
    segment_bytes: int = 64 * MIB
    budget_segments: int = 16
    limit_segments: int | None = None
    """None: one and a half budgets."""
    window_us: int = 100
    """How long the first put of a group waits for others."""
    group_bytes: int = 8 * MIB
    """A group that is this large does not wait."""
    group_batches: int = 1 << 20
    """Batches that may share a flush; 1 turns grouping off (for comparison)."""
    rewrite_live_ratio: float = 0.5
    """Segments with more live payload than this share are not rewritten while the log may still grow."""
    checkpoint_segments: int = 8
    """A checkpoint at least every so many segments bounds what recovery replays."""

    layout: str = ""
    """Whose blocks these are, as JSON: a log kept for another layout is refused. Empty: nobody says."""
    drop_damaged: bool = False
    """Go on without blocks whose bytes were damaged on disk, and say how many, instead of refusing to open."""

    def __post_init__(self) -> None:
        if self.segment_bytes < DATA_START + RECORD_BYTES + self.shape.block_bytes:
            raise BadRequest(
                f"a log segment of {self.segment_bytes} bytes holds no block of {self.shape.block_bytes} bytes: "
                "choose larger segments"
            )
        if self.segment_bytes >= 1 << 32:
            raise BadRequest("a log segment must be smaller than 4 GiB")
        if self.budget_segments < 3 or self.limit < self.budget_segments:
            raise BadRequest("a log needs a budget of 3 segments or more, and a limit that is not below the budget")

    @property
    def limit(self) -> int:
        """Segments that the directory may hold."""
        if self.limit_segments is not None:
            return self.limit_segments
        return self.budget_segments + max(1, self.budget_segments // 2)
