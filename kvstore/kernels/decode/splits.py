"""Into how many parts a sequence is cut, so that a small batch fills the GPU: from shapes, never from lengths."""

from __future__ import annotations

from functools import lru_cache

MOST_SPLITS = 128
"""What the combining kernel takes at once."""
LEAST_TILES = 2
"""Tiles a split has at least, or its setting-up and second pass cost more than they bring (policy)."""
BUSY = 3
"""Programs on an SM that keep its share of the memory bandwidth busy: by Little's law an H200 needs about 4.8 TB/s ×
0.8 µs / 132 = 29 KB on their way to each SM, and a program of ours has at best 32 KiB, a tile of K and one of V."""
ENOUGH = 0.9
"""Of the best attainable, with which the fewest splits are taken (policy; FlashAttention's heuristic has 0.85)."""


@lru_cache(maxsize=4096)
def choose_splits(programs: int, tiles: int, processors: int) -> int:
    """Splits of each sequence, 1 … `MOST_SPLITS`.

    `programs` there are without splitting (sequences × KV heads), `tiles` the longest sequence may have, `processors`
    the GPU has. The SM with the most programs ends last: evenness is programs over SMs × those of that SM; SMs with
    fewer than `BUSY` are slower by as much. The fewest splits that come within `ENOUGH` of the best are taken.
    """
    most = max(1, min(MOST_SPLITS, tiles // LEAST_TILES))
    reached = [_reached(programs * splits, max(1, processors)) for splits in range(1, most + 1)]
    enough = ENOUGH * max(reached)
    return next(splits for splits, share in enumerate(reached, 1) if share >= enough)


def _reached(programs: int, processors: int) -> float:
    evenness = programs / (processors * -(-programs // processors))
    return evenness * min(1.0, programs / (processors * BUSY))
