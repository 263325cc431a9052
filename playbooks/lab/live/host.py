"""What this host can inject, found out by trying; what it cannot is skipped and said."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable

from playbooks.lab.live.plan import Scenario
from playbooks.lab.shims.build import compiler

_STORE = ("grpc", "xxhash", "prometheus_client")
"""What a store is started with: modules of the extra `store`."""


def _store() -> str:
    lacking = [name for name in _STORE if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(lacking)} (pip install '.[store]' in kvscope's checkout)" if lacking else ""


def _compiler() -> str:
    return "" if compiler() else "no C compiler (cc) to build the shim with"


def _preload() -> str:
    return "" if sys.platform == "linux" else "LD_PRELOAD needs Linux"


def _signals() -> str:
    return "" if hasattr(os, "pidfd_open") else "processes cannot be stopped from here"


def _nixl() -> str:
    from kvstore.transport.nixl.library import flavour

    return "" if flavour() else "NIXL is not installed (pip install --no-deps nixl-cu12)"


def _torch() -> str:
    if importlib.util.find_spec("torch"):
        return ""
    return "torch is not installed (pip install '.[cuda]' in kvscope's checkout)"


_TRIALS: dict[str, Callable[[], str]] = {
    "cc": _compiler,
    "preload": _preload,
    "signals": _signals,
    "nixl": _nixl,
    "torch": _torch,
}


def why_not(scenario: Scenario) -> str:
    """Empty when the scenario can run here, else the reason in one line."""
    if missing := _store():
        return missing
    for need in scenario.needs:
        reason = _TRIALS[need]()
        if reason:
            return reason
    return "" if sys.platform == "linux" else "the store's shared arenas need Linux (memfd)"
