"""Compiles a preload shim with the host's C compiler, once for each content of its source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
SLOW_FDATASYNC = HERE / "slow_fdatasync.c"
NO_COMPILER = "no C compiler: skipped"


class ShimError(Exception):
    """The shim cannot be had on this host; `str(error)` is the one line to show."""


def compiler() -> str | None:
    """The host's C compiler, or None."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def cache_directory() -> Path:
    """Where built shims are kept: `$XDG_CACHE_HOME/kvscope/shims`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "kvscope" / "shims"


def build(source: Path = SLOW_FDATASYNC, directory: Path | None = None) -> Path:
    """The shared object of `source`, compiled into `directory` unless it is there. Raises `ShimError`."""
    cc = compiler()
    if cc is None:
        raise ShimError(NO_COMPILER)
    digest = hashlib.blake2b(source.read_bytes(), digest_size=8).hexdigest()
    where = directory or cache_directory()
    target = where / f"{source.stem}-{digest}.so"
    if target.exists():
        return target
    making = where / f"{target.name}.{os.getpid()}"
    try:
        where.mkdir(parents=True, exist_ok=True)
        command = [cc, "-O2", "-Wall", "-fPIC", "-shared", "-o", str(making), str(source), "-ldl", "-pthread"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ShimError(f"cannot compile {source.name}: {error}: skipped") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ShimError(f"cannot compile {source.name} with {cc}: {last}: skipped")
    making.replace(target)
    return target


def slow_fdatasync(delay_ms: float) -> dict[str, str]:
    """Environment in which each flush takes `delay_ms` longer; raises `ShimError`."""
    return {"LD_PRELOAD": preload(build())["LD_PRELOAD"], "KV_SLOW_FDATASYNC_MS": f"{delay_ms:g}"}


def preload(shim: Path, environment: dict[str, str] | None = None) -> dict[str, str]:
    """An environment in which a new process loads `shim` (beside what it preloads already)."""
    found = dict(os.environ if environment is None else environment)
    found["LD_PRELOAD"] = " ".join([str(shim), *found.get("LD_PRELOAD", "").split()])
    return found
