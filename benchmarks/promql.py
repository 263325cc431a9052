"""What the series store and the PromQL engine cost: medians, printed, nothing asserted.

The window is 300 columns at 1 Hz of 9,000 series (sixteen vLLM engines), a third of them moving.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from probes.labels import Labels
from probes.promql.engine import Engine
from probes.promql.parse import parse
from probes.series import Frame, SeriesStore

COLUMNS = 300
START_MS = 1_700_000_000_000


def build(store: SeriesStore, source: str, name: str, series: int) -> tuple[Frame, np.ndarray]:
    """A frame of counters, every third of which grows."""
    frame = store.frame(source)
    labels = [Labels.of({"instance": f"h{n % 16}:8000", "n": str(n)}, name) for n in range(series)]
    rows = np.array([frame.row(one) for one in labels], dtype=np.intp)
    steps = np.where(np.arange(series) % 3 == 0, np.arange(series) % 7 + 1.0, 0.0)
    for column in range(COLUMNS):
        frame.append(START_MS + column * 1000, rows, steps * column)
    return frame, rows


def measure(title: str, run: Callable[[int], object], times: int) -> None:
    """Print the medians of ``run(i)``, wall and CPU time in ms, after two warm-up calls."""
    wall, cpu = [], []
    for i in range(times + 2):
        begin, busy = time.perf_counter(), time.process_time()
        run(i)
        cpu.append((time.process_time() - busy) * 1000)
        wall.append((time.perf_counter() - begin) * 1000)
    print(f"{title:<48}{statistics.median(wall[2:]):9.3f} ms wall{statistics.median(cpu[2:]):9.3f} ms CPU")


def main() -> None:
    store = SeriesStore()
    build(store, "small", "thousand_total", 1000)
    frame, rows = build(store, "large", "many_total", 9000)
    engine = Engine(store)
    end = START_MS + (COLUMNS - 1) * 1000
    print(f"numpy {np.__version__}, Python {platform.python_version()}, {platform.machine()}")
    print(f"window: {store.samples:,} samples in {store.nbytes / 2**20:.1f} MiB")
    for title, text in (
        ("selector, 9,000 series", "many_total"),
        ("rate [1m], 1,000 series", "rate(thousand_total[1m])"),
        ("rate [5m], 1,000 series", "rate(thousand_total[5m])"),
        ("rate [1m], 9,000 series", "rate(many_total[1m])"),
        ("sum by (instance) of rate [1m], 9,000 series", "sum by (instance) (rate(many_total[1m]))"),
        ("avg_over_time [1m], 1,000 series", "avg_over_time(thousand_total[1m])"),
    ):
        expr = parse(text)
        measure(title, lambda _, e=expr: engine.instant(e, end), 60)
    for title, text in (
        ("60 steps of rate [1m], 1,000 series", "rate(thousand_total[1m])"),
        ("60 steps of sum(rate [1m]), 10 series", 'sum(rate(thousand_total{n=~"."}[1m]))'),
        ("60 steps of sum by (instance) of rate, 9,000", "sum by (instance) (rate(many_total[1m]))"),
    ):
        expr = parse(text)
        measure(title, lambda _, e=expr: engine.range(e, end - 60_000 * 4, end, 4000), 10)
    values = np.arange(9000.0)
    measure("append of a column, 9,000 values", lambda i: frame.append(end + (i + 1) * 1000, rows, values + i), 600)


if __name__ == "__main__":
    main()
