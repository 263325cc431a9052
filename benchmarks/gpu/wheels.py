"""Packages from a folder of wheels, without pip and without a network: for an image that lacks some.

What the interpreter has already is left alone. A wheel is a zip archive whose files lie as they are imported (PEP 427);
those of its `.data` folder that belong beside them are moved there.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

_NAME = re.compile(
    r"^(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)$"
)


def use(folder: Path, into: Path) -> list[str]:
    """Unpack into `into` what is missing here, and put it last on `sys.path`; the distributions taken."""
    taken = []
    for wheel in sorted(folder.glob("*.whl")):
        match = _NAME.match(wheel.stem)
        if match and fits(match["python"], match["abi"], match["platform"]) and not installed(match["name"]):
            unpack(wheel, into)
            taken.append(match["name"])
    if taken and str(into) not in sys.path:
        sys.path.append(str(into))
        importlib.invalidate_caches()
    return taken


def installed(name: str) -> bool:
    """Whether a distribution is here already."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def fits(python: str, abi: str, platform: str) -> bool:
    """Whether tags (each a list joined by dots) are of this interpreter: pure, its own ABI, or the stable one."""
    here = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    machine = os.uname().machine
    if platform != "any" and not any(part.endswith(machine) for part in platform.split(".")):
        return False
    pythons, abis = python.split("."), abi.split(".")
    if "none" in abis:
        return any(part in (f"py{sys.version_info[0]}", here) for part in pythons)
    if "abi3" in abis:
        return any(_stable(part) for part in pythons)
    return here in abis


def _stable(python: str) -> bool:
    match = re.match(r"^cp3(\d+)$", python)
    return match is not None and int(match[1]) <= sys.version_info[1]


def unpack(wheel: Path, into: Path) -> None:
    """The wheel's files under `into`. Raises `ValueError` for what is no wheel, or would leave that folder."""
    into.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith("/") or ".." in name.split("/"):
                    raise ValueError(f"{wheel} holds {name!r}, which is no place in it")
            archive.extractall(into)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{wheel} is no wheel: {error}; fetch it again (make gpu-wheels)") from None
    for beside in (*into.glob("*.data/purelib"), *into.glob("*.data/platlib")):
        shutil.copytree(beside, into, dirs_exist_ok=True)
        shutil.rmtree(beside)
