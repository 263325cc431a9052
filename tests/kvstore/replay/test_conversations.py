"""Turns of one conversation, found by what they repeat."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvstore.replay.conversations import conversations
from kvstore.replay.trace import Request, excerpt, read_trace


def request(*windows: int) -> Request:
    return Request(0, 512 * len(windows), 0, np.asarray(windows, np.int64))


def test_turns_repeat_windows_and_a_shared_beginning_says_nothing() -> None:
    trace = [request(0, 1), request(0, 2), request(0, 3, 4), request(0, 1, 5), request(0, 3, 4, 6), request(0, 1, 5, 7)]
    assert conversations(trace) == [0, 1, 2, 0, 2, 0]


def test_conversations_of_the_excerpt() -> None:
    turns = Counter(conversations(read_trace(excerpt())))
    assert sum(turns.values()) == 600
    assert 1 < max(turns.values()) < 60
    assert len(turns) > 300
