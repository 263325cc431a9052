"""The series store: markers, windows, the byte budget, and churn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.columns import ABSENT_BITS, STALE_BITS, Chunk, blank
from probes.labels import Labels
from probes.promql.ast import Matcher
from probes.series import ABSENT, STALE, Frame, Metadata, SeriesStore, is_absent, is_sample, is_stale


def series(number: int, name: str = "m") -> Labels:
    return Labels.of({"n": str(number)}, name)


def named(name: str) -> tuple[Matcher, ...]:
    return (Matcher("__name__", "=", name),)


def test_three_nans_stay_apart_through_copies() -> None:
    values = np.array([ABSENT, STALE, math.nan, 1.0])
    for copied in (values.copy(), np.concatenate([values, values])[4:], values[np.array([0, 1, 2, 3])]):
        assert is_absent(copied).tolist() == [True, False, False, False]
        assert is_stale(copied).tolist() == [False, True, False, False]
        assert is_sample(copied).tolist() == [False, False, True, True]


def test_stale_marker_is_that_of_prometheus() -> None:
    assert np.array([STALE]).view(np.uint64)[0] == 0x7FF0000000000002


def test_a_series_that_leaves_gets_one_marker() -> None:
    frame = SeriesStore().frame("a")
    one, two = frame.row(series(1)), frame.row(series(2))
    frame.append(1000, [one, two], [1.0, 2.0])
    frame.append(2000, [one], [1.5])
    frame.append(3000, [one], [1.6])
    frame.append(4000, [one, two], [1.7, 3.0])
    assert is_stale(frame.values[1]).tolist() == [False, True, False, False]
    assert is_absent(frame.values[1]).tolist() == [False, False, True, False]
    assert frame.values[0].tolist() == [1.0, 1.5, 1.6, 1.7]


def test_a_value_given_as_absent_is_a_series_not_named() -> None:
    frame = SeriesStore().frame("a")
    one = frame.row(series(1))
    frame.append(1000, [one], [1.0])
    frame.append(2000, [one], [ABSENT])
    assert is_stale(frame.values)[0].tolist() == [False, True]


def test_expire_marks_every_live_series() -> None:
    frame = SeriesStore().frame("a")
    rows = [frame.row(series(n)) for n in range(3)]
    frame.append(1000, rows[:2], [1.0, 2.0])
    frame.expire(1000)
    assert frame.times.tolist() == [1000, 1001]
    assert is_stale(frame.values[:, 1]).tolist() == [True, True, False]
    frame.expire(2000)
    assert not is_stale(frame.values[:, 2]).any()


def test_same_time_adds_and_older_time_is_dropped() -> None:
    frame = SeriesStore().frame("a")
    one, two = frame.row(series(1)), frame.row(series(2))
    assert frame.append(1000, [one], [1.0])
    assert frame.append(1000, [two], [2.0])
    assert not frame.append(500, [one], [9.0])
    assert frame.values.tolist() == [[1.0], [2.0]]


def test_nan_and_infinity_are_values() -> None:
    frame = SeriesStore().frame("a")
    frame.append(1000, [frame.row(series(1)), frame.row(series(2))], [math.nan, math.inf])
    assert is_sample(frame.values).all()
    assert frame.latest(series(2)) == (1000, math.inf)


def test_selection_follows_matchers_and_new_series() -> None:
    store = SeriesStore()
    frame, other = store.frame("a"), store.frame("b")
    for n in range(4):
        frame.row(series(n))
    other.row(Labels.of({"n": "7", "zone": "z"}, "m"))

    def found(*matchers: Matcher) -> set[str]:
        return {str(one) for selection in store.select(named("m") + matchers) for one in selection.labels}

    assert found(Matcher("n", "=~", "[12]")) == {'m{n="1"}', 'm{n="2"}'}
    assert found(Matcher("n", "!~", "[0-3]")) == {'m{n="7",zone="z"}'}
    assert found(Matcher("zone", "=", "")) == {f'm{{n="{n}"}}' for n in range(4)}
    assert found(Matcher("n", "=~", "1|")) == {'m{n="1"}'}
    assert found(Matcher("n", "!=", "0"), Matcher("zone", "!=", "z")) == {f'm{{n="{n}"}}' for n in (1, 2, 3)}
    version = store.version
    assert store.select(named("m")) is store.select(named("m"))
    frame.row(series(1))
    assert store.version == version
    frame.row(series(9))
    assert store.version > version
    assert found(Matcher("n", "=", "9")) == {'m{n="9"}'}
    assert store.select((Matcher("__name__", "=~", "x|m"),))
    assert store.select(named("nosuch")) == []


def test_a_label_set_in_two_frames_is_selected_once() -> None:
    store = SeriesStore()
    store.frame("a").row(series(1))
    store.frame("b").row(series(1))
    assert [s.frame.source for s in store.select(named("m"))] == ["a"]


def test_names_metadata_span() -> None:
    store = SeriesStore()
    assert store.span() is None
    store.frame("a").append(5000, [store.frame("a").row(series(1))], [1.0])
    store.frame("b").append(2000, [store.frame("b").row(series(1, "k"))], [1.0])
    store.set_metadata("m", Metadata("counter", "help", "seconds"))
    assert store.names() == ["k", "m"]
    assert store.span() == (2000, 5000)
    assert store.metadata("m") == Metadata("counter", "help", "seconds")
    assert store.metadata("k") is None
    assert store.samples == 2
    store.remove("b")
    assert store.names() == ["m"]


Column = tuple[frozenset[int], int]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.frozensets(st.integers(0, 12), max_size=13), st.integers(0, 3)), min_size=1, max_size=200),
    st.integers(0, 5),
)
def test_frame_agrees_with_a_plain_model(columns: list[Column], keep: int) -> None:
    """Whatever comes and goes, over many sealed blocks, each cell is what a dictionary says it is."""
    frame = SeriesStore().frame("a")
    cells: dict[tuple[int, int], int | float] = {}
    before: frozenset[int] = frozenset()
    for at, (members, salt) in enumerate(columns):
        rows = [frame.row(series(n)) for n in sorted(members)]
        frame.append(at, rows, [float(n if n < keep else n + salt) for n in sorted(members)])
        cells |= {(n, at): float(n if n < keep else n + salt) for n in members}
        cells |= {(n, at): STALE_BITS for n in before - members}
        before = members
    values = frame.values
    bits = values.view(np.int64)
    for row, labels in enumerate(frame.labels):
        n = int(labels.get("n"))
        for at in range(len(columns)):
            expected = cells.get((n, at), ABSENT_BITS)
            got = int(bits[row, at]) if isinstance(expected, int) else float(values[row, at])
            assert got == expected
    assert frame.samples == len(cells)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 6), st.data())
def test_window_reads_any_rectangle(width: int, rows: int, data: st.DataObject) -> None:
    frame = SeriesStore().frame("a")
    matrix = np.arange(rows * width, dtype=np.float64).reshape(rows, width)
    matrix[0] = 7.0
    frame.load(np.arange(width, dtype=np.int64), [series(n) for n in range(rows)], matrix)
    low = data.draw(st.integers(0, width))
    high = data.draw(st.integers(low, width))
    picked = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=8)), dtype=np.intp)
    assert np.array_equal(frame.window(low, high, picked), matrix[picked, low:high].T)


def test_load_is_the_same_as_appending_and_may_be_followed_by_it() -> None:
    times = np.arange(150, dtype=np.int64) * 1000
    matrix = np.random.default_rng(1).normal(size=(5, 150))
    labels = [series(n) for n in range(5)]
    loaded, appended = SeriesStore().frame("a"), SeriesStore().frame("b")
    loaded.load(times, labels, matrix)
    rows = [appended.row(one) for one in labels]
    for column, time_ms in enumerate(times.tolist()):
        appended.append(time_ms, rows, matrix[:, column])
    for frame in (loaded, appended):
        frame.append(150_000, rows[:4], matrix[:4, 0])
    assert np.array_equal(loaded.values.view(np.int64), appended.values.view(np.int64))
    assert is_stale(loaded.values[4, -1:]).all()


def test_load_refuses_what_does_not_fit() -> None:
    frame = Frame("rec.om")
    with pytest.raises(ValueError, match=r"rec\.om: matrix"):
        frame.load(np.array([1, 2]), [series(1)], np.zeros((1, 3)))
    with pytest.raises(ValueError, match="must increase"):
        frame.load(np.array([2, 2]), [series(1)], np.zeros((1, 2)))
    frame.load(np.array([1, 2]), [series(1)], np.zeros((1, 2)))
    with pytest.raises(ValueError, match="must increase"):
        frame.load(np.array([2, 3]), [series(1)], np.zeros((1, 2)))


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    store = SeriesStore(max_bytes=200_000)
    frame = store.frame("a")
    rows = [frame.row(series(n)) for n in range(100)]
    rng = np.random.default_rng(2)
    for at in range(3000):
        frame.append(at * 1000, rows, rng.normal(size=100))
        assert store.nbytes <= store.max_bytes + 100 * 8 * 64
    assert frame.times[-1] == 2_999_000
    assert frame.times[0] > 0
    assert (np.diff(frame.times) == 1000).all()
    assert frame.values.shape == (100, frame.times.size)
    assert store.names() == ["m"]


def test_the_budget_is_shared_by_age() -> None:
    store = SeriesStore(max_bytes=400_000)
    old, new = store.frame("old"), store.frame("new")
    rng = np.random.default_rng(3)
    labels = [series(n) for n in range(50)]
    old.load(np.arange(600, dtype=np.int64), labels, rng.normal(size=(50, 600)))
    new.load(np.arange(10_000, 10_600, dtype=np.int64), labels, rng.normal(size=(50, 600)))
    assert store.nbytes <= store.max_bytes
    assert new.times.size == 600
    assert 0 < old.times.size < 600
    assert old.times[-1] == 599


def test_constant_series_cost_next_to_nothing() -> None:
    times = np.arange(64, dtype=np.int64)
    still = Chunk(times, np.ones((64, 1000)))
    moving = Chunk(times, np.random.default_rng(4).normal(size=(64, 1000)))
    assert still.nbytes < moving.nbytes / 20
    out = blank((64, 1000))
    still.take(0, 64, np.arange(1000), out)
    assert (out == 1.0).all()


def test_churn_does_not_grow_without_end() -> None:
    store = SeriesStore(max_bytes=300_000)
    frame = store.frame("a")
    for generation in range(400):
        rows = [frame.row(series(generation * 20 + n)) for n in range(20)]
        for tick in range(20):
            frame.append((generation * 20 + tick) * 1000, rows, np.full(20, float(tick + generation)))
    assert store.nbytes <= store.max_bytes * 1.5
    assert len(frame.labels) < 3000
    assert len(list(store.series())) == len(frame.labels)
    last = series(400 * 20 - 1)
    assert frame.latest(last) == (7_999_000, 418.0)
    assert store.latest(series(0)) is None
    found = store.select(named("m"))[0]
    assert set(found.labels) == set(frame.labels)
    assert all(frame.label_at(int(row)) is one for row, one in zip(found.rows, found.labels, strict=True))


def test_a_series_back_after_the_whole_window_keeps_its_row() -> None:
    store = SeriesStore(max_bytes=60_000)
    frame = store.frame("a")
    rows = np.array([frame.row(series(n)) for n in range(40)])
    rng = np.random.default_rng(5)
    frame.append(0, rows, rng.normal(size=40))
    for at in range(1, 3000):
        # Row 39 comes back now and then, at times that fall on every place within a block.
        some = rows if at % 331 == 0 else rows[:-1]
        frame.append(at, some, rng.normal(size=some.size))
        if at % 331 == 0 and series(39) in frame.labels:
            assert frame.latest(frame.label_at(int(rows[39])))
        rows = np.array([frame.row(series(n)) for n in range(40)])
    assert frame.times[0] > 331


def test_latest_at_an_earlier_time() -> None:
    frame = SeriesStore().frame("a")
    row = frame.row(series(1))
    for at in (1000, 2000, 3000):
        frame.append(at, [row], [at / 1000])
    assert frame.latest(series(1)) == (3000, 3.0)
    assert frame.latest(series(1), 2500) == (2000, 2.0)
    assert frame.latest(series(1), 500) is None
    assert frame.latest(series(2)) is None
