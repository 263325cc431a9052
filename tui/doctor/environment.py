"""Python, the terminal, the command on PATH, and the optional parts: all found without importing any of them."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tui.doctor.check import Check, State
from tui.version import VERSION

NEEDS = ("numpy", "promql_parser", "yaml", "h11", "textual")


def environment(env: Mapping[str, str] | None = None) -> list[Check]:
    """Every check that needs no target."""
    env = os.environ if env is None else env
    return [_python(), *_packages(), *terminal(env), *path_commands(env.get("PATH", "")), *_optional()]


def _python() -> Check:
    text = f"kvscope {VERSION} on Python {platform.python_version()} ({platform.system()} {platform.machine()})"
    return Check("python", State.OK, text)


def _packages() -> Iterator[Check]:
    from importlib.metadata import PackageNotFoundError, version

    distributions = {"promql_parser": "promql-parser", "yaml": "pyyaml"}
    found, missing = [], []
    for name in NEEDS:
        if importlib.util.find_spec(name) is None:
            missing.append(distributions.get(name, name))
            continue
        try:
            found.append(f"{name} {version(distributions.get(name, name))}")
        except PackageNotFoundError:
            found.append(name)
    if missing:
        advice = f"pip install {' '.join(missing)}"
        yield Check("packages", State.WRONG, f"missing: {', '.join(missing)}", advice)
    yield Check("packages", State.OK, ", ".join(found))


def terminal(env: Mapping[str, str]) -> Iterator[Check]:
    """Size, colours and characters of the terminal that standard output is."""
    if not sys.stdout.isatty():
        yield Check("terminal", State.NOTE, "standard output is no terminal: the screens need one")
        return
    size = os.get_terminal_size(sys.stdout.fileno())
    says = f"{size.columns}×{size.lines}"
    if size.columns < 80 or size.lines < 24:
        yield Check("terminal size", State.NOTE, says, "the screens need 80×24")
    else:
        yield Check("terminal size", State.OK, says)
    yield _colours(env)
    encoding = (sys.stdout.encoding or "").lower()
    if "utf" in encoding:
        yield Check("characters", State.OK, encoding)
    else:
        yield Check("characters", State.NOTE, f"{encoding or 'unknown encoding'}, no UTF-8", "set LANG=C.UTF-8")


def _colours(env: Mapping[str, str]) -> Check:
    term = env.get("TERM", "")
    if env.get("NO_COLOR"):
        return Check("colours", State.OK, "none: NO_COLOR is set")
    if term in ("", "dumb"):
        return Check("colours", State.WRONG, f"TERM={term or '(unset)'}", "set TERM, for example to xterm-256color")
    if env.get("COLORTERM") in ("truecolor", "24bit"):
        return Check("colours", State.OK, f"16 million (TERM={term})")
    if "256" in term:
        return Check("colours", State.OK, f"256 (TERM={term})")
    return Check("colours", State.NOTE, f"few (TERM={term})", "TERM=xterm-256color shows more, if the terminal can")


def path_commands(path: str) -> Iterator[Check]:
    """Which ``kvtop`` a shell finds: two other packages install a command of that name."""
    found = [Path(part, "kvtop") for part in path.split(os.pathsep) if part]
    found = [script for script in found if os.access(script, os.X_OK) and script.is_file()]
    if not found:
        yield Check("kvtop on PATH", State.NOTE, "none", "add the environment's bin folder to PATH")
        return
    for rank, script in enumerate(found):
        owner = owner_of(script)
        if owner == "kvscope":
            yield Check("kvtop on PATH", State.OK, f"{script} is ours")
            return
        who = f"belongs to {owner}" if owner else "is not ours"
        state = State.WRONG if rank == 0 else State.NOTE
        yield Check("kvtop on PATH", state, f"{script} {who}", "`kvscope` is the same command under a name of its own")


def owner_of(script: Path) -> str:
    """The distribution that installed a script, by its RECORD; empty when none says so."""
    for record in script.parent.parent.glob("lib/python*/site-packages/*.dist-info/RECORD"):
        try:
            text = record.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if any(line.split(",")[0].endswith(f"/bin/{script.name}") for line in text.splitlines()):
            return record.parent.name.rsplit("-", 1)[0].removesuffix(".dist").split("-")[0]
    try:
        head = script.read_bytes()[:2000]
    except OSError:
        return ""
    return "kvscope" if b"tui.cli" in head else ""


def _optional() -> Iterator[Check]:
    parts = {
        "torch": (("torch",), "not installed: only the store's kernels and its cache for transformers need it"),
        "nixl": (("nixl_cu12", "nixl_cu13"), "not installed: only the store needs it, between hosts"),
    }
    for name, (modules, without) in parts.items():
        if not any(importlib.util.find_spec(module) for module in modules):
            yield Check(name, State.NOTE, without)
        else:
            yield Check(name, State.OK, "installed (kvtop itself never loads it)")
    yield _nvml()


def _nvml() -> Check:
    library = ctypes.util.find_library("nvidia-ml")
    if library is None:
        return Check(
            "NVML", State.NOTE, "no libnvidia-ml on this host: GPU numbers come from a dcgm-exporter target only"
        )
    if importlib.util.find_spec("pynvml") is None:
        advice = "pip install '.[nvml]' in kvscope's checkout"
        return Check("NVML", State.NOTE, f"{library} is there, the package nvidia-ml-py is not", advice)
    return Check("NVML", State.OK, f"{library} is there: the target nvml reads this host's GPUs")
