"""The NIXL library in this process: its bindings without the meta package, and UCX's settings for it alone.

UCX reads its environment when it is loaded and when an agent is made. What we add there is taken out again, so that
neither a child process nor another user of UCX in this process finds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstore.errors import BadRequest

FLAVOURS = ("nixl_cu12", "nixl_cu13")
"""Wheels that hold the library; `nixl` itself only picks one of them, and refuses where it picks wrongly."""
HCA = Path("/sys/class/infiniband")

_lock = threading.RLock()
_log_fd = -1
_loaded: Any = None


def has_hca() -> bool:
    """Whether this host has an InfiniBand or RoCE device (soft ones, too)."""
    return HCA.is_dir() and any(HCA.iterdir())


def flavour() -> str | None:
    """The wheel that is installed here, if any; nothing is loaded."""
    return next((name for name in FLAVOURS if importlib.util.find_spec(name) is not None), None)


def bindings() -> Any:
    """NIXL's C++ bindings. Raises `BadRequest` with what to install."""
    global _loaded
    with _lock:
        if _loaded is None:
            name = flavour()
            if name is None:
                raise BadRequest(
                    "the nixl transport needs NIXL, which is not installed: pip install '.[store]' in kvscope's "
                    "checkout, then pip install --no-deps nixl-cu12"
                )
            with ucx_settings():
                try:
                    _loaded = importlib.import_module(f"{name}._bindings")
                except ImportError as error:
                    raise BadRequest(f"NIXL cannot be loaded from {name}: {error}") from None
                if os.environ.get("UCX_MODULES") != "^ib":
                    _leave_cleanly()
        return _loaded


@contextlib.contextmanager
def ucx_settings() -> Iterator[None]:
    """UCX's environment for loading it and for making agents: what the user has set stays as it is.

    - `UCX_MODULES=^ib` where there is no HCA: else the process crashes when it exits (libnl's unload, NIXL 1.5.1).
    - UCX's log goes to memory at level info: which lanes it chose stands there and nowhere else (`lanes.py`).
    - `UCX_RC_RETRY_COUNT=6`: with UCX's 7 a killed peer on RC is noticed after 45 s instead of 8 (soft RoCE takes 7 for
      "for ever"). We notice it at once, but only its end frees the memory of what was under way.
    - NIXL's own log is silent: what it would say comes to us as an exception.
    """
    with _lock:
        wanted = {"NIXL_LOG_LEVEL": "FATAL", "UCX_RC_RETRY_COUNT": "6"}
        if not has_hca():
            wanted["UCX_MODULES"] = "^ib"
        if not {"UCX_LOG_FILE", "UCX_LOG_LEVEL", "UCX_PROTO_INFO"} & set(os.environ):
            wanted |= {"UCX_LOG_FILE": f"/proc/self/fd/{_log()}", "UCX_LOG_LEVEL": "info", "UCX_PROTO_INFO": "y"}
        added = [name for name in wanted if name not in os.environ]
        os.environ.update({name: wanted[name] for name in added})
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def _leave_cleanly() -> None:
    """Where UCX has its InfiniBand module, libnl's unload crashes a process that is done (NIXL 1.5.1: exit code 139).

    So the process ends one step earlier, with its own exit code: `_exit` is the last thing that glibc's `exit` calls
    of what was registered since now, and before it C's files are written out. Python has ended by then.
    """
    libc = ctypes.CDLL(None)
    for last_first in (libc._exit, libc.fcloseall):
        libc.on_exit(last_first, None)


def ucx_log() -> str:
    """What UCX has said so far in this process; empty where the user has its log go elsewhere."""
    if _log_fd < 0:
        return ""
    ctypes.CDLL(None).fflush(None)  # UCX writes through stdio, fully buffered
    size = os.fstat(_log_fd).st_size
    return os.pread(_log_fd, size, 0).decode("utf-8", "replace") if size else ""


def _log() -> int:
    global _log_fd
    if _log_fd < 0:
        _log_fd = os.memfd_create("kv-ucx-log", os.MFD_CLOEXEC)
    return _log_fd
