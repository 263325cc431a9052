"""The checker on histories whose verdict is known."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kvstore.linearizable.checker import check
from tests.kvstore.linearizable.history import EVENT, UNANSWERED, Events, Kind

W, R, M, S, E = Kind.WRITE, Kind.READ, Kind.MISS, Kind.SNAPSHOT, Kind.END


def history(*rows: tuple[Kind, int, int, int]) -> Events:
    """Of one key: kind, begin, end, version. A version's value is the version + 100."""
    events = np.zeros(len(rows), EVENT)
    for event, (kind, begin, end, version) in zip(events, rows, strict=True):
        event["kind"], event["begin"], event["end"] = kind, begin, end
        event["clock"], event["value"], event["step"] = version, version + 100 if version else 0, -1
        event["leased"] = version
    return events


GOOD = {
    "one after another": history((M, 0, 1, 0), (W, 2, 3, 1), (R, 4, 5, 1), (W, 6, 7, 2), (R, 8, 9, 2)),
    "a read beside a write sees either": history((W, 0, 1, 1), (W, 2, 9, 2), (R, 3, 4, 1), (R, 5, 6, 2), (R, 7, 8, 2)),
    "a miss beside the first write": history((W, 0, 9, 1), (M, 1, 2, 0), (R, 3, 4, 1)),
    "a miss after the end": history((W, 0, 1, 1), (E, 2, 3, 9), (M, 4, 5, 0)),
    "either beside the end": history((W, 0, 1, 1), (E, 2, 9, 9), (R, 3, 4, 1), (M, 5, 6, 0)),
    "a leased version may be old": history((W, 0, 1, 1), (W, 2, 3, 2), (S, 4, 5, 1), (R, 6, 7, 2)),
    "writes side by side": history((W, 0, 9, 2), (W, 0, 9, 1), (R, 10, 11, 2)),
}
BAD = {
    "an older version than before": [
        history((W, 0, 1, 1), (W, 2, 3, 2), (R, 4, 5, 1)),
        history((W, 0, 1, 1), (W, 2, 9, 2), (R, 3, 4, 2), (R, 5, 6, 1)),
        history((W, 0, 1, 1), (E, 2, 3, 9), (R, 4, 5, 1)),
        history((W, 0, 1, 1), (E, 2, 9, 9), (M, 3, 4, 0), (R, 5, 6, 1)),
    ],
    "a miss of a version that was there": [
        history((W, 0, 1, 1), (M, 2, 3, 0)),
        history((W, 0, 1, 1), (M, 2, 3, 0), (E, 4, 5, 9)),
        history((W, 0, 9, 1), (R, 1, 2, 1), (M, 3, 4, 0)),
    ],
    "a version from the future": [history((W, 0, 1, 1), (R, 2, 3, 2), (W, 4, 5, 2))],
    "a version that nobody wrote": [history((R, 2, 3, 2)), history((W, 0, 1, 1), (S, 2, 3, 2))],
    "a write that is not the newest": [
        history((W, 0, 1, 2), (W, 2, 3, 1)),
        history((W, 0, 9, 2), (R, 1, 2, 2), (W, 3, 4, 1)),
    ],
    "two writes of one version": [history((W, 0, 1, 1), (W, 0, 1, 1))],
}


@pytest.mark.parametrize("name", list(GOOD))
def test_a_linearizable_history_is_accepted_in_any_order_of_its_rows(name: str) -> None:
    events = GOOD[name]
    for seed in range(5):
        report = check(np.random.default_rng(seed).permutation(events))
        assert report.good, report.told


@pytest.mark.parametrize("name", list(BAD))
def test_what_is_wrong_is_named(name: str) -> None:
    for events in BAD[name]:
        report = check(np.random.default_rng(1).permutation(events))
        assert report.violations[name] > 0
        assert report.told


def test_other_bytes_and_changed_snapshots_are_seen() -> None:
    events = history((W, 0, 1, 1), (R, 2, 3, 1), (S, 2, 3, 1))
    events["value"][1] = 999
    assert check(events).violations == {"other bytes than were written": 1}
    events["value"][1] = 0
    assert check(events).good, "a lookup sees no bytes"
    events["leased"][2] = 7
    assert check(events).violations == {"a snapshot that changed": 1}


def test_a_write_without_an_answer_counts_from_when_it_is_seen() -> None:
    events = history((W, 0, 1, 1), (W, 2, UNANSWERED, 0), (R, 4, 5, 2), (R, 6, 7, 1))
    events["value"][1] = 102
    assert check(events).violations == {"an older version than before": 1}
    assert check(events[:3]).good
    assert check(events[[0, 1, 3]]).good, "never seen: it never was"


def test_keys_are_apart() -> None:
    events = history((W, 0, 1, 1), (W, 2, 3, 2), (R, 4, 5, 1), (W, 0, 1, 1))
    events["key"][2:] = 1
    report = check(events)
    assert report.good
    assert report.keys == 2


def test_a_step_that_goes_back_over_the_layers_is_seen() -> None:
    events = history((W, 0, 9, 1), (W, 0, 9, 1), (R, 1, 2, 1), (R, 3, 4, 1), (R, 5, 6, 1))
    events["key"] = [0, 1, 0, 1, 1]
    events["step"] = [-1, -1, 7, 7, 8]
    events["layer"] = [0, 1, 0, 1, 1]
    events["valid"] = [3, 2, 3, 2, 2]
    report = check(events)
    assert report.violations == {"an older version in a later layer": 1}
    assert report.steps == 2
    assert check(events[[0, 1, 2, 4]]).good, "another step owes nothing to the first"
    events["process"][3] = 5
    assert check(events).good


def test_reads_beside_writes_are_counted() -> None:
    events = history((W, 0, 1, 1), (R, 2, 3, 1), (W, 4, 7, 2), (R, 5, 6, 1), (R, 8, 9, 2))
    assert check(events).concurrent_reads == 1
