"""Short runs of `benchmarks/linearizable.py`: real shards, real writers and readers."""

from __future__ import annotations

from tests.kvstore.linearizable.experiment import run

OPERATIONS = 8_000


def test_a_history_of_hot_tails_is_linearizable_and_monotone_over_the_layers() -> None:
    outcome = run(OPERATIONS, readers=2)
    report = outcome.report
    assert report.good, report.told
    assert report.total >= 0.9 * OPERATIONS
    assert report.write_share >= 0.3, "too few new versions: the run proves little"
    assert report.concurrent_reads > 0
    assert report.steps > 0
    assert report.operations["snapshot"] > 0
    assert report.operations["end"] > 0
    assert outcome.unanswered < report.total / 100


def test_without_the_clients_clock_check_the_checker_fails() -> None:
    report = run(OPERATIONS, readers=2, enforce_need=False).report
    assert report.violations["an older version in a later layer"] > 0
