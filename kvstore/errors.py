"""What can go wrong in the store: one class a kind, one wire code each, one clear line.

A client raises the very class that its shard raised: `encode` and `decode` carry kind and text over the wire.
"""

from __future__ import annotations

from typing import ClassVar


class StoreError(Exception):
    """The store refused or could not do what it was asked; `str(error)` is one line for a person."""

    code: ClassVar[int] = 1
    reason: ClassVar[str] = "error"


class PoolExhausted(StoreError):
    """No slot is free and none may be evicted: all are leased, pinned, held by sessions or being written."""

    code = 2
    reason = "no_space"


class NoRun(StoreError):
    """Enough slots are free (or evictable) but no run is long enough, and the caller asked for one run."""

    code = 3
    reason = "no_run"


class LayoutMismatch(StoreError):
    """Client and store disagree on the layout; the message names the first differing field."""

    code = 4
    reason = "layout"

    def __init__(self, field: str, ours: object = None, theirs: object = None) -> None:
        text = (
            field if ours is None and theirs is None else f"layout field {field!r}: store has {ours}, client {theirs}"
        )
        super().__init__(text)
        self.field = field


class LeaseExpired(StoreError):
    """A lease ended before its reader was done; look the key up again."""

    code = 5
    reason = "lease_expired"


class ShardUnavailable(StoreError):
    """The shard's process is gone or does not answer within the deadline."""

    code = 6
    reason = "unavailable"


class DeadlineExceeded(StoreError):
    """The operation did not end within its deadline; a put may or may not have been published."""

    code = 7
    reason = "deadline"


class ChecksumMismatch(StoreError):
    """Bytes do not have the checksum that was stated for them."""

    code = 8
    reason = "checksum"


class StagingRejected(StoreError):
    """A staging arena or a run in it cannot be used: not sealed, out of range, unknown."""

    code = 9
    reason = "staging"


class SessionUnknown(StoreError):
    """No such session, or its TTL ended."""

    code = 10
    reason = "session"


class TailConflict(StoreError):
    """An append does not continue the session's tail: its history was edited, or somebody else appended."""

    code = 11
    reason = "conflict"


class BadRequest(StoreError):
    """A message that does not parse, or whose columns do not fit each other."""

    code = 12
    reason = "bad_request"


class AccessDenied(StoreError):
    """Certificate or token do not do, on either side; the message says which and what to give."""

    code = 13
    reason = "denied"


class OwnerLapsed(StoreError):
    """The shard's own lease could not be renewed: it publishes nothing, since another may own these keys by now."""

    code = 14
    reason = "lapsed"


class EpochStale(StoreError):
    """Asker and shard know different members: the home of these keys is another shard. Look again who they are."""

    code = 15
    reason = "epoch"


class ClientUnknown(StoreError):
    """The shard has forgotten this client, which it did not hear of for long, and has done nothing of what it asked.
    `Link` comes in again by itself; only who names another's number is told."""

    code = 16
    reason = "client"


class LogFailed(StoreError):
    """The log could not be written or flushed; the shard stops, since what was acknowledged may not be durable."""

    code = 20
    reason = "log_failed"


class LogFull(StoreError):
    """The log's file system has no room: durable puts are refused, gets go on."""

    code = 21
    reason = "log_full"


class LogLocked(StoreError):
    """Another process has this log directory open."""

    code = 22
    reason = "log_locked"


class LogCorrupt(StoreError):
    """A checkpoint or segment is damaged beyond its torn tail."""

    code = 23
    reason = "log_corrupt"


class DeviceFailed(StoreError):
    """A device did not do what it was asked: a copy failed, or the driver has given it up."""

    code = 24
    reason = "device"


def kinds() -> dict[int, type[StoreError]]:
    """All kinds by wire code."""
    found: dict[int, type[StoreError]] = {StoreError.code: StoreError}
    for kind in StoreError.__subclasses__():
        found[kind.code] = kind
    return found


def decode(code: int, text: str) -> StoreError:
    """The error that a peer sent; an unknown code becomes a plain `StoreError`."""
    return kinds().get(code, StoreError)(text)
