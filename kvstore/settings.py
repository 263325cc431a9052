"""How a shard is set up: what `kvstore serve` was told."""

from __future__ import annotations

import ipaddress
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import BadRequest
from kvstore.layout import Layout
from kvstore.messages import Durability
from kvstore.placement import KINDS

_LONGEST_SOCKET = 107
"""`sockaddr_un.sun_path` less its final zero (unix(7))."""


@dataclass(frozen=True)
class Settings:
    """One shard. `port`, `metrics_port` 0: any free one; `metrics_port` None: no page."""

    layout: Layout
    blocks: int
    shard: int = 0
    shards: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    metrics_port: int | None = 0
    run_dir: Path | None = None
    cluster_file: Path | None = None
    durability: Durability = Durability.NONE
    log_dir: Path | None = None
    session_ttl_ms: int = 1_800_000
    placement: str = "uniform"
    naive_bitmap: bool = False
    drain_us: int = 20
    """What one host read of the naive bitmap costs (a device's queue running dry)."""
    nixl: bool = False
    """Offer the `nixl` transport, too."""

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise BadRequest(f"a shard needs at least one block, not {self.blocks}")
        if not 0 <= self.shard < self.shards:
            raise BadRequest(f"shard {self.shard} of {self.shards}: shards are numbered from 0")
        if not _loopback(self.host):
            raise BadRequest(
                f"{self.host} is no loopback address, and this release has no encryption between hosts: listen on "
                "127.0.0.1 or ::1"
            )
        if self.placement not in KINDS:
            raise BadRequest(f"no placement {self.placement!r}; there are {', '.join(KINDS)}")
        if self.durability and self.log_dir is None:
            raise BadRequest("durability needs a log directory (--log-dir DIR)")

    def socket_path(self, port: int, kind: str) -> Path:
        """Where the shard that listens on `port` has its Unix socket of that kind."""
        path = (self.run_dir or default_run_dir()) / f"{port}.{kind}"
        if len(os.fsencode(path)) > _LONGEST_SOCKET:
            raise BadRequest(f"run directory {path.parent} is too long for a Unix socket: choose a shorter --run-dir")
        return path


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_run_dir() -> Path:
    """`$XDG_RUNTIME_DIR/kvstore`, else `kvstore-UID` in the directory for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "kvstore"
    return Path(tempfile.gettempdir()) / f"kvstore-{os.getuid()}"


def make_run_dir(path: Path) -> None:
    """Make it for this user alone; raises `BadRequest` when it is somebody else's or open to others."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise BadRequest(f"{path} is not this user's directory: choose another with --run-dir")
    if found.st_mode & 0o022:
        raise BadRequest(f"{path} can be written by others: chmod go-w it, or choose another with --run-dir")
