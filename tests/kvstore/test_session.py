"""Sessions: handles, time to live, holds, classes, and the memory of those that ended."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore import session as module
from kvstore.errors import BadRequest, SessionUnknown
from kvstore.session import MAX_CLASSES, OTHER_CLASS, Sessions, Tail


class Holds:
    """The pool's side: how many sessions hold each slot."""

    def __init__(self, slots: int) -> None:
        self.counts = np.zeros(slots, np.int64)

    def __len__(self) -> int:
        return len(self.counts)

    def hold(self, slots: np.ndarray) -> None:
        self.counts[slots] += 1

    def unhold(self, slots: np.ndarray) -> np.ndarray:
        self.counts[slots] -= 1
        return slots[self.counts[slots] == 0]


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_a_session_lives_while_it_is_used() -> None:
    sessions = Sessions(Holds(8))
    one = sessions.open("chat", 1_000, 0)
    for now in (900, 1_800, 2_700):
        assert sessions.require(one.handle, now) is one
        assert sessions.expired(now) == []
    assert sessions.find(one.handle, 3_700) is None
    assert sessions.expired(3_699) == []
    assert sessions.expired(3_700) == [one]
    with pytest.raises(SessionUnknown, match="TTL ended"):
        sessions.require(one.handle, 3_700)


def test_a_number_that_is_closed_and_opened_again_ends_once() -> None:
    sessions = Sessions(Holds(8))
    for now in (0, 0, 400, 800):
        again = sessions.open("chat", 1_000, now, handle=77)
        if now < 800:
            sessions.end(again, expired=False)
    assert sessions.expired(1_799) == []
    assert sessions.expired(1_800) == [again]
    sessions.end(again, expired=True)
    assert sessions.expired(10_000) == []
    third = sessions.open("chat", 1_000, 10_000, handle=77)
    sessions.require(77, 10_900)
    assert sessions.expired(11_000) == []
    assert sessions.expired(11_900) == [third]


def test_handles_are_random_and_ttls_bounded() -> None:
    sessions = Sessions(Holds(8))
    handles = {sessions.open("chat", 1_000, 0).handle for _ in range(100)}
    assert len(handles) == 100
    assert max(handles) > 1 << 48
    for ttl in (0, -1, module.MAX_TTL_MS + 1):
        with pytest.raises(BadRequest, match="ttl_ms"):
            sessions.open("chat", ttl, 0)
    with pytest.raises(BadRequest, match="in use"):
        sessions.open("chat", 1_000, 0, handle=handles.pop())


def test_a_block_is_held_once_by_each_session() -> None:
    pool = Holds(8)
    sessions = Sessions(pool)
    one, two = sessions.open("a", 1_000, 0), sessions.open("a", 1_000, 0)
    sessions.hold(one, slots(1, 2, 2, 3))
    sessions.hold(one, slots(3, 4))
    sessions.hold(two, slots(4, 5))
    assert pool.counts.tolist() == [0, 1, 1, 1, 2, 1, 0, 0]
    assert sessions.figures(0)["a"].blocks == 5
    assert sessions.end(one, expired=True).tolist() == [1, 2, 3]
    assert sessions.figures(0)["a"].blocks == 2
    assert sessions.end(two, expired=False).tolist() == [4, 5]
    assert not pool.counts.any()


def test_slots_that_leave_are_held_by_nobody() -> None:
    pool = Holds(8)
    sessions = Sessions(pool)
    one, two = sessions.open("a", 1_000, 0), sessions.open("b", 1_000, 0)
    sessions.hold(one, slots(1, 2))
    sessions.hold(two, slots(2, 3))
    digests = np.ones((1, 24), np.uint8)
    two.tails = {b"kept": Tail(3, 1, 1, digests), b"gone": Tail(2, 1, 1, digests)}
    sessions.forget_slots(slots(2, 7))
    assert pool.counts.tolist() == [0, 1, 0, 1, 0, 0, 0, 0]
    assert list(two.tails) == [b"kept"]
    sessions.moved(two, slots(3), slots(6))
    assert (two.held, sessions.figures(0)["b"].blocks) == ({6}, 1)


def test_a_return_is_counted_alive_or_expired_and_expired_only_once() -> None:
    sessions = Sessions(Holds(8))
    one = sessions.open("chat", 1_000, 0)
    back = sessions.came_back(one.handle, 400)
    assert back is not None
    assert (back.alive, back.gap_ms) == (True, 400)
    back = sessions.came_back(one.handle, 1_500)
    assert back is not None
    assert (back.alive, back.gap_ms) == (False, 1_500)
    sessions.end(one, expired=True)
    assert sessions.came_back(one.handle, 1_600) is None
    closed = sessions.open("chat", 1_000, 0)
    sessions.end(closed, expired=False)
    assert sessions.came_back(closed.handle, 10) is None
    assert sessions.came_back(4711, 10) is None


def test_classes_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 10)
    sessions = Sessions(Holds(8))
    ended = [sessions.open(f"class {number}", 1_000, 0) for number in range(40)]
    names = set(sessions.figures(0))
    assert len(names) == MAX_CLASSES
    assert OTHER_CLASS in names
    assert sessions.figures(0)[OTHER_CLASS].active == 40 - (MAX_CLASSES - 1)
    for session in ended:
        sessions.end(session, expired=True)
    assert sum(sessions.came_back(session.handle, 1_000) is not None for session in ended) == 10
    assert len(sessions) == 0
    assert set(sessions.figures(0)) == names, "a gauge goes to 0, it does not go away"


def test_idle_is_half_a_short_ttl_or_a_minute() -> None:
    sessions = Sessions(Holds(8))
    sessions.open("short", 10_000, 0)
    sessions.open("long", 1_800_000, 0)
    at = {now: {name: f.idle for name, f in sessions.figures(now).items()} for now in (4_999, 5_000, 59_999, 60_000)}
    assert at[4_999] == {"short": 0, "long": 0}
    assert at[5_000] == {"short": 1, "long": 0}
    assert at[59_999]["long"] == 0
    assert at[60_000]["long"] == 1


def test_only_the_digests_that_are_known_agree() -> None:
    digests = np.arange(3 * 24, dtype=np.uint8).reshape(3, 24) + 1
    tail = Tail(0, 1, 3, digests)
    assert [tail.agrees(digests[:rows]) for rows in range(4)] == [0, 1, 2, 3]
    recovered = Tail(0, 1, 3, np.concatenate([np.zeros((2, 24), np.uint8), digests[2:]]))
    assert [recovered.agrees(digests[:rows]) for rows in range(4)] == [0, 0, 0, 3]
    assert recovered.agrees(np.zeros((2, 24), np.uint8)) == 0
