"""What reading costs: pages against prometheus_client, and recordings.

    .venv/bin/python benchmarks/scrape.py [PAGE] [RECORDING …]

Prints the median of several runs, in milliseconds of this process' CPU time, and the ratio. The page of 16 engines is
the given page sixteen times with another ``engine`` label.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from probes.exposition import PageParser
from probes.labels import Labels
from probes.series import SeriesStore
from probes.sources.info import info_labels
from probes.sources.ingest import TargetFrame
from probes.sources.recording import RecordingSource
from probes.target import parse_target

ROOT = Path(__file__).parents[1]
RUNS = 15


def cost_ms(work: Callable[[], object], runs: int = RUNS) -> float:
    """Median CPU time of one call, ms."""
    took = []
    for _ in range(runs):
        start = time.process_time()
        work()
        took.append((time.process_time() - start) * 1000)
    return statistics.median(took)


def of_engines(page: str, engines: int) -> bytes:
    """One page with the samples of ``engines`` engines, metadata once."""
    out = []
    for line in page.splitlines():
        if line.startswith("#") or 'engine="0"' not in line:
            out.append(line)
        else:
            out.extend(line.replace('engine="0"', f'engine="{n}"') for n in range(engines))
    return ("\n".join(out) + "\n").encode()


def counted(page: bytes, by: int) -> bytes:
    """The page with other values, as a next scrape has."""
    return page.replace(b" 0.0\n", b" %d.0\n" % by)


def compare(name: str, page: bytes) -> None:
    rows: dict[Labels, int] = {}
    parser = PageParser(lambda labels: rows.setdefault(labels, len(rows)))
    start = time.process_time()
    parser.parse(page)
    first = (time.process_time() - start) * 1000
    later = iter([counted(page, n) for n in range(RUNS)])
    again = cost_ms(lambda: parser.parse(next(later)))
    text = page.decode()
    other = cost_ms(lambda: [s for f in text_string_to_metric_families(text) for s in f.samples], 5)
    target = TargetFrame(SeriesStore(), parse_target("127.0.0.1:1"), info_labels())
    pages = iter([counted(page, n) for n in range(RUNS)])
    stamp = iter(range(1000, 1_000_000, 1000))
    stored = cost_ms(lambda: target.write(next(stamp), target.parser.parse(next(pages)), 0.0))
    print(
        f"{name:<12} {len(page) / 1000:6.0f} kB {len(rows):6} series   first {first:7.2f} ms   again {again:6.2f} ms   "
        f"into the store {stored:6.2f} ms   prometheus_client {other:7.1f} ms   x{other / again:.0f}"
    )


def load(path: Path) -> None:
    took = cost_ms(lambda: RecordingSource(str(path), path, SeriesStore()), 5)
    print(f"{path.name:<12} {path.stat().st_size / 1e6:6.2f} MB                load  {took:7.1f} ms")


def main() -> None:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "fixtures" / "vllm" / "shared-prefixes.txt"
    text = page.read_text("utf-8")
    compare("1 engine", text.encode())
    compare("16 engines", of_engines(text, 16))
    recordings = [Path(name) for name in sys.argv[2:]] or [ROOT / "playbooks" / "recordings" / "demo.om.gz"]
    for path in recordings:
        load(path)


if __name__ == "__main__":
    main()
