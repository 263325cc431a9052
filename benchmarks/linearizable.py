"""Per-key linearizability and monotone reads of a store under load: a million recorded operations, then the verdict.

    benchmarks/linearizable.py [--operations 1000000] [--shards 2] [--layers 32] [--without-clock-check]

Exits with 1 when the history is not linearizable, or says too little to tell.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.kvstore.linearizable.experiment import Outcome, run

LEAST_WRITE_SHARE = 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_050_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--without-clock-check", action="store_true", help="seed the fault: the checker must fail")
    options = parser.parse_args()
    outcome = run(
        options.operations,
        shards=options.shards,
        layers=options.layers,
        enforce_need=not options.without_clock_check,
    )
    show(outcome)
    return 0 if outcome.report.good and outcome.report.write_share >= LEAST_WRITE_SHARE else 1


def show(outcome: Outcome) -> None:
    report = outcome.report
    print(f"{report.total:,} operations recorded by {outcome.processes} processes in {outcome.seconds:.1f} s")
    for name, count in sorted(report.operations.items()):
        print(f"  {name:<10}{count:>12,}  {count / report.total:6.1%}")
    print(f"  {report.keys:,} keys; {report.concurrent_reads:,} reads while a write of their key was under way")
    print(f"  {report.steps:,} steps over the layers; {outcome.lost:,} appends lost to another writer")
    print(f"  {outcome.unanswered:,} operations without an answer in time (excluded)")
    print(
        f"checked in {outcome.check_seconds:.1f} s: {'linearizable, monotone' if report.good else 'NOT linearizable'}"
    )
    for what, count in report.violations.items():
        print(f"  {count:,} × {what}")
    for line in report.told:
        print(f"    {line}")


if __name__ == "__main__":
    sys.exit(main())
