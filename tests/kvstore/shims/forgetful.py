"""A directory on a disk that forgets what was not synced: prepare, run a process on it, cut the power, look."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from playbooks.lab.shims.build import build, preload

SOURCE = Path(__file__).resolve().parent / "forget_unsynced.c"


class ForgetfulDisk:
    """`live` is what the running process sees; `mirror` what was synced."""

    def __init__(self, root: Path) -> None:
        self.live = root / "live"
        self.mirror = root / "mirror"
        self._shim = build(SOURCE, root / "shim")
        self.live.mkdir(parents=True)
        self.remember()

    def environment(self, *, leak: int = 0, delay_ms: int = 0, fail: int = 0) -> dict[str, str]:
        """For a process whose writes to `live` are watched."""
        return preload(self._shim) | {
            "FORGET_DIRECTORY": str(self.live),
            "FORGET_MIRROR": str(self.mirror),
            "FORGET_LEAK": str(leak),
            "FORGET_DELAY_MS": str(delay_ms),
            "FORGET_FAIL": str(fail),
        }

    def power_cut(self) -> None:
        """After the process was killed: `live` becomes what was synced."""
        names = dict(line.split() for line in (self.mirror / "names").read_text().splitlines())
        shutil.rmtree(self.live)
        self.live.mkdir()
        for name, inode in names.items():
            synced = self.mirror / f"f-{inode}"
            if synced.exists():
                shutil.copyfile(synced, self.live / name)
            else:
                (self.live / name).touch()
        self.remember()

    def remember(self) -> None:
        """All that is there now counts as synced."""
        shutil.rmtree(self.mirror, ignore_errors=True)
        self.mirror.mkdir(parents=True)
        lines = []
        for path in self.live.iterdir():
            inode = os.stat(path).st_ino
            shutil.copyfile(path, self.mirror / f"f-{inode}")
            lines.append(f"{path.name} {inode}\n")
        (self.mirror / "names").write_text("".join(lines))
