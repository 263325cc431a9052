"""Which requests of a trace are turns of one conversation.

A trace names no conversations, but a turn repeats the windows of the turn before it. A window that is followed by many
different windows is a shared beginning (a system prompt), and says nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from kvstore.replay.trace import Request

_SHARED_FROM = 3
"""Different continuations that make a window a shared beginning (policy: a regenerated answer makes two)."""


def conversations(requests: Sequence[Request]) -> list[int]:
    """The conversation of each request, numbered in order of their first requests."""
    following: dict[int, set[int]] = defaultdict(set)
    for request in requests:
        windows = request.windows.tolist()
        for window, after in pairwise(windows):
            following[window].add(after)
    shared = {window for window, after in following.items() if len(after) >= _SHARED_FROM}
    owner: dict[int, int] = {}
    found: list[int] = []
    fresh = 0
    for request in requests:
        own = [window for window in request.windows.tolist() if window not in shared]
        known = next((owner[window] for window in reversed(own) if window in owner), None)
        if known is None:
            known, fresh = fresh, fresh + 1
        owner.update(dict.fromkeys(own, known))
        found.append(known)
    return found
