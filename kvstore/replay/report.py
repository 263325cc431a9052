"""What a replay did, counted as it goes, and said for people and programs."""

from __future__ import annotations

import sys
import time
from array import array
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from kvstore.replay.oracle import Outcome


@dataclass(slots=True)
class Tally:
    """Counts of a running replay. `blocks` are references to windows, as the trace has them: one a hash id."""

    requests: int = 0
    blocks: int = 0
    block_hits: int = 0
    prefix_hits: int = 0
    store_blocks_put: int = 0
    store_blocks_got: int = 0
    bytes_moved: int = 0
    lost: int = 0
    """Found by the lookup, and gone when the get came: counted as misses."""
    wrong: int = 0
    refused_puts: int = 0
    """Requests whose put at least one shard refused: one here, and one in `kv_put_refusals_total` of each such shard.
    What the other shards took of it is not in `store_blocks_put`."""
    get_seconds: array[float] = field(default_factory=lambda: array("d"))
    began: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, slots=True)
class Report:
    """A finished replay. Ratios and quantiles are None where nothing was asked or got."""

    tally: Tally
    evictions: int | None
    """Blocks that the store evicted meanwhile, as its own pages count them; None where they have none."""
    seconds: float
    oracles: dict[str, Outcome]

    @property
    def block_hit_ratio(self) -> float | None:
        return self.tally.block_hits / self.tally.blocks if self.tally.blocks else None

    @property
    def prefix_hit_ratio(self) -> float | None:
        return self.tally.prefix_hits / self.tally.blocks if self.tally.blocks else None

    def get_quantile(self, q: float) -> float | None:
        """Seconds that a get of one request's windows took, read and verified."""
        return float(np.quantile(np.asarray(self.tally.get_seconds), q)) if len(self.tally.get_seconds) else None

    def as_dict(self) -> dict[str, Any]:
        """The machine-readable answer; names and meanings stay."""
        tally = self.tally
        return {
            "requests": tally.requests,
            "blocks": tally.blocks,
            "block_hit_ratio": self.block_hit_ratio,
            "prefix_hit_ratio": self.prefix_hit_ratio,
            "evictions": self.evictions,
            "bytes_moved": tally.bytes_moved,
            "get_p50_s": self.get_quantile(0.5),
            "get_p99_s": self.get_quantile(0.99),
            "block_hits": tally.block_hits,
            "prefix_hits": tally.prefix_hits,
            "store_blocks_put": tally.store_blocks_put,
            "store_blocks_got": tally.store_blocks_got,
            "lost": tally.lost,
            "wrong": tally.wrong,
            "refused_puts": tally.refused_puts,
            "seconds": self.seconds,
            "oracles": {
                name: {
                    "block_hit_ratio": outcome.block_hit_ratio,
                    "prefix_hit_ratio": outcome.prefix_hit_ratio,
                    "evictions": outcome.evictions,
                }
                for name, outcome in self.oracles.items()
            },
        }

    def lines(self) -> list[str]:
        """For a person."""
        tally = self.tally
        evictions = "unknown" if self.evictions is None else f"{self.evictions}"
        found = [
            f"{tally.requests} requests, {tally.blocks} windows asked for in {self.seconds:.1f} s",
            f"{tally.store_blocks_got} blocks got and compared, {tally.store_blocks_put} put, "
            f"{tally.bytes_moved / 2**20:.1f} MiB moved, {evictions} evicted",
            f"get of a request: p50 {_ms(self.get_quantile(0.5))}, p99 {_ms(self.get_quantile(0.99))}",
        ]
        if tally.lost or tally.refused_puts or tally.wrong:
            found.append(
                f"{tally.lost} blocks evicted between lookup and get, {tally.refused_puts} requests' puts refused, in "
                f"whole or by some shards, for want of room, {tally.wrong} blocks with wrong bytes"
            )
        found.append(f"{'':<34}{'block hits':>12}{'prefix hits':>13}")
        rows = [("this store", self.block_hit_ratio, self.prefix_hit_ratio)]
        rows += [(name, outcome.block_hit_ratio, outcome.prefix_hit_ratio) for name, outcome in self.oracles.items()]
        found += [f"{name:<34}{_ratio(blocks):>12}{_ratio(prefix):>13}" for name, blocks, prefix in rows]
        return found


class Progress:
    """A bar on a terminal, nothing anywhere else."""

    _WIDTH = 30

    def __init__(self, total: int, out: TextIO | None = None) -> None:
        self._total = total
        self._out = sys.stderr if out is None else out
        self._shown = self._out.isatty()
        self._next = 0.0

    def show(self, tally: Tally, *, last: bool = False) -> None:
        """Draw it anew, at most ten times a second."""
        now = time.perf_counter()
        if not self._shown or (now < self._next and not last):
            return
        self._next = now + 0.1
        share = tally.requests / self._total
        ratio = f"{tally.block_hits / tally.blocks:.4f}" if tally.blocks else "–"
        filled = "█" * int(share * self._WIDTH)
        self._out.write(
            f"\r{filled:░<{self._WIDTH}} {share:>4.0%}  {tally.requests}/{self._total} requests  block hits {ratio}"
            f"  {tally.requests / max(now - tally.began, 1e-9):.0f}/s \x1b[K" + ("\n" if last else "")
        )
        self._out.flush()


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.3f} ms"
