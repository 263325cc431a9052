"""How long `$window` may be where the data is still young.

A rate over a window that the data does not fill yet is too low: Prometheus extrapolates to both ends by half a scrape
interval only. So the window grows with the data, in a few sizes (an expression is parsed once a size).
"""

from __future__ import annotations

from collections.abc import Iterator

_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # scrape intervals


def filled(held_ms: int, interval_ms: int, window_ms: int) -> int:
    """The longest window that ``held_ms`` of data fill; never less than two intervals, never more than asked for."""
    if held_ms >= window_ms:
        return window_ms
    fitting = [size * interval_ms for size in _SIZES if size * interval_ms <= min(held_ms, window_ms)]
    return fitting[-1] if fitting else min(window_ms, _SIZES[0] * interval_ms)


def stretches(times: range, start_ms: int, interval_ms: int, window_ms: int) -> Iterator[tuple[int, range]]:
    """The steps in runs of one window each: (window, its steps), for data that begins at ``start_ms``."""
    first = 0
    for index in range(1, len(times) + 1):
        window = filled(times[first] - start_ms, interval_ms, window_ms)
        if window == window_ms:
            yield window, times[first:]
            return
        if index == len(times) or filled(times[index] - start_ms, interval_ms, window_ms) != window:
            yield window, times[first:index]
            first = index
