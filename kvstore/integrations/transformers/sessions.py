"""Which session a row is: as a caller names it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence

from kvstore.client import SyncClient
from kvstore.errors import BadRequest, StoreError
from kvstore.sync import SyncSession

Name = int | str | SyncSession | None
"""A number; a word of the caller's own (whoever says the same means the same); a session that the caller holds; None:
no session, so that only full blocks are kept."""


def names_of(session: Name | Sequence[Name], rows: int) -> list[Name]:
    """One name a row. Raises `BadRequest`."""
    if session is None:
        return [None] * rows
    named: list[Name] = [session] if isinstance(session, int | str | SyncSession) else list(session)
    if len(named) != rows:
        raise BadRequest(f"{rows} rows need {rows} sessions, not {len(named)}: a row is a history of its own")
    return named


def numbers_of(session: Name | Sequence[Name], rows: int, salt: bytes) -> list[int]:
    """One number a row, 0 for none. Raises `BadRequest`."""
    numbers = [_number(name, salt) for name in names_of(session, rows)]
    some = [number for number in numbers if number]
    if len(set(some)) != len(some):
        raise BadRequest("two rows of a batch cannot be one session")
    return numbers


def _number(name: Name, salt: bytes) -> int:
    if name is None:
        return 0
    if isinstance(name, str):
        digest = hashlib.blake2b(name.encode(), digest_size=8, key=salt[:64], person=b"kv.session").digest()
        return int.from_bytes(digest, "little") >> 1 | 1
    number = int(name)
    if not 0 < number < 1 << 64:
        raise BadRequest("a session's number is one of 64 bits, not 0")
    return number


class Held:
    """The sessions that a cache keeps alive: those that the caller does not hold himself."""

    def __init__(self, client: SyncClient, session_class: str, deadline_ms: int) -> None:
        self._client = client
        self._class = session_class
        self._deadline_ms = deadline_ms
        self._handles: list[SyncSession] = []

    def open(self, numbers: Sequence[int], own: Sequence[bool]) -> None:
        """Open them, or go on with them. Raises `StoreError` after trying all."""
        failed: StoreError | None = None
        for number, mine in zip(numbers, own, strict=True):
            if number and mine:
                try:
                    self._handles.append(
                        self._client.open_session(self._class, number=number, deadline_ms=self._deadline_ms)
                    )
                except StoreError as error:
                    failed = error
        if failed is not None:
            raise failed

    def release(self) -> None:
        """They live on until their TTL ends, for whoever says their number next."""
        for handle in self._handles:
            with contextlib.suppress(RuntimeError):  # the client was closed: nothing renews them any more
                handle.release()
        self._handles.clear()
