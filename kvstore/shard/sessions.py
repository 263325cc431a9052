"""Opening, finding and closing sessions."""

from __future__ import annotations

import logging

from kvstore.messages import CloseSession, OpenSession, SessionState
from kvstore.session import Session
from kvstore.shard.core import Core
from kvstore.shard.lookups import came_back

_AGAIN_MS = 5_000
_log = logging.getLogger("kvstore.shard")


def open_session(core: Core, request: OpenSession, now_ms: int) -> SessionState:
    """A new one, or how the named one is."""
    if not request.session:
        return _state(_new(core, request, now_ms, 0), now_ms)
    came_back(core, core.sessions.came_back(request.session, now_ms))
    session = core.sessions.find(request.session, now_ms)
    if session is not None:
        session.used_ms = now_ms
        return _state(session, now_ms)
    expired = core.sessions.has_expired(request.session, now_ms)
    if request.create:
        end_expired(core, now_ms)
        _new(core, request, now_ms, request.session)
        return SessionState(request.session, not expired)
    return SessionState(request.session, False)


def close_session(core: Core, request: CloseSession, now_ms: int) -> SessionState:
    """The state that it ended in; `alive` False when it was over before."""
    session = core.sessions.find(request.session, now_ms)
    if session is None:
        return SessionState(request.session, False)
    state = _state(session, now_ms)
    core.end_session(session, expired=False, forget=request.forget)
    return state


def end_expired(core: Core, now_ms: int) -> int:
    """End the sessions whose TTL is over; how many. One that cannot be ended does not keep the others."""
    ended = 0
    for session in core.sessions.expired(now_ms):
        try:
            core.end_session(session, expired=True, forget=True)
            ended += 1
        except Exception:
            _log.exception("session %#018x could not be ended", session.handle)
            if core.sessions.lives(session):
                core.sessions.look_again(session, now_ms + _AGAIN_MS)
    return ended


def _new(core: Core, request: OpenSession, now_ms: int, handle: int) -> Session:
    session = core.sessions.open(request.session_class, request.ttl_ms, now_ms, handle=handle)
    core.meters.session(session.session_class).opened += 1
    return session


def _state(session: Session, now_ms: int) -> SessionState:
    return SessionState(session.handle, True, len(session.held), now_ms - session.opened_ms)
