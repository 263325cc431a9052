"""gRPC's threads and locks do not survive a fork: a client in the child would abort the process or never answer."""

from __future__ import annotations

import os

from kvstore.errors import BadRequest

_HOW = "start such processes with multiprocessing's spawn (or forkserver), or make clients only after the fork"
_used_by = 0
"""The process whose memory holds a gRPC that was used; in a child still the parent's number."""


def use_grpc() -> None:
    """To be called before gRPC is. Raises `BadRequest` in a process that was forked from one that had used it."""
    global _used_by
    here = os.getpid()
    if _used_by not in (0, here):
        raise BadRequest(f"this process was forked from one ({_used_by}) that had clients already: {_HOW}")
    _used_by = here


def require_process(pid: int) -> None:
    """Raise `BadRequest` where what process `pid` made is used by a child of it."""
    if pid != os.getpid():
        raise BadRequest(f"this client was made by process {pid} and cannot be used in a fork of it: {_HOW}")
