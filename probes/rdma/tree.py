"""A sysfs tree: the host's own, or a recorded one with the same paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SYSFS = Path("/sys")
_NOT_COUNTED = "lo"


@dataclass
class SysfsTree:
    """Reads small attribute files under ``root``, the folder that stands for ``/sys``.

    What is not there, or what the driver will not tell (``EINVAL``, ``EOPNOTSUPP``, ``EIO``: a speed of a link that is
    down), is None. What this user may not read is None too, and noted in ``forbidden``.
    """

    root: Path = SYSFS
    forbidden: list[Path] = field(default_factory=list)

    @classmethod
    def at(cls, path: Path) -> SysfsTree:
        """The tree at a path: ``/sys`` itself, or a folder that holds ``sys/`` beside ``ethtool/`` and ``hostname``."""
        inner = path / "sys"
        return cls(inner if (inner / "class").is_dir() and not (path / "class").is_dir() else path)

    @property
    def live(self) -> bool:
        """Whether this is the running kernel's tree, which can be asked for more than files."""
        return self.root == SYSFS

    @property
    def _kernel_made(self) -> bool:
        """Whether a kernel made the tree: the host's own, or another's mounted here. A recorded one is plain files."""
        return (self.root / "kernel").is_dir()

    @property
    def devices_folder(self) -> Path:
        return self.root / "class" / "infiniband"

    def text(self, path: Path) -> str | None:
        """An attribute's text without its line end; None when it has none, is not there or may not be read."""
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip() or None
        except PermissionError:
            self.forbidden.append(path)
        except OSError:
            pass
        return None

    def number(self, path: Path) -> int | None:
        """A decimal attribute; None when it is not there or is no number."""
        text = self.text(path)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def names(self, folder: Path) -> list[str]:
        """What a folder holds, sorted; empty when it is not there or may not be listed."""
        try:
            return sorted(entry.name for entry in folder.iterdir())
        except PermissionError:
            self.forbidden.append(folder)
        except OSError:
            pass
        return []

    def ports(self) -> Iterator[tuple[str, str, Path]]:
        """(device, port, folder) of every RDMA port."""
        for device in self.names(self.devices_folder):
            ports = self.devices_folder / device / "ports"
            for port in self.names(ports):
                yield device, port, ports / port

    def netdevs(self) -> list[str]:
        """Network interfaces with hardware behind them, by name; all but the loopback in a recorded tree."""
        folder = self.root / "class" / "net"
        return [name for name in self.names(folder) if name != _NOT_COUNTED and self._has_hardware(folder / name)]

    def netdev_folder(self, name: str) -> Path:
        return self.root / "class" / "net" / name

    def _has_hardware(self, folder: Path) -> bool:
        return (folder / "statistics").is_dir() and (not self._kernel_made or (folder / "device").exists())

    def ethtool_text(self, netdev: str) -> str | None:
        """A recorded ``ethtool -S``; None where none was recorded."""
        return None if self.live else self.text(self.root.parent / "ethtool" / netdev)

    def hostname(self) -> str:
        """The host's name: of a recorded tree what ``hostname`` beside it says, else its folder's name."""
        if self.live:
            import socket

            return socket.gethostname()
        above = self.root.parent if self.root.name == "sys" else self.root
        return self.text(self.root.parent / "hostname") or above.name
