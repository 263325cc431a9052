"""How a shard is set up: what `kvstore serve` was told."""

from __future__ import annotations

import ipaddress
import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.errors import BadRequest
from kvstore.header import HEADER_BYTES
from kvstore.layout import Layout
from kvstore.messages import Durability
from kvstore.placement import KINDS
from kvstore.security import Access, is_loopback
from kvstore.security.access import NEEDED
from kvstore.transport.device.memory import require_name

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
    drop_surplus: bool = False
    """Start with a pool smaller than what the log holds, and lose the rest."""
    drop_damaged: bool = False
    """Start without blocks that were damaged in the log."""
    session_ttl_ms: int = 1_800_000
    placement: str = "uniform"
    naive_bitmap: bool = False
    drain_us: int = 20
    """What one host read of the naive bitmap costs (a device's queue running dry)."""
    nixl: bool = False
    """Offer the `nixl` transport, too."""
    device: str = ""
    """Where the pool lies: `cuda:N`, or `shm` (for tests); "": in host memory."""

    access: Access = field(default_factory=Access)
    metrics_host: str | None = None
    """Where the page listens: on loopback unless told otherwise."""
    advertise: str | None = None
    """The host by which others reach this shard, where that is not `host` (which may be a wildcard)."""
    etcd: str | None = None
    """Where members register; `shard` comes from there then, and `shards` is how many found the store."""
    cluster: str | None = None
    lease_s: int = 10

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise BadRequest(f"a shard needs at least one block, not {self.blocks}")
        if not 0 <= self.shard < self.shards:
            raise BadRequest(f"shard {self.shard} of {self.shards}: shards are numbered from 0")
        self._require_access()
        if (self.etcd is None) != (self.cluster is None):
            raise BadRequest("--etcd URL and --cluster NAME belong together: where to register, and as what")
        if self.lease_s < 2:
            raise BadRequest(f"--lease {self.lease_s}: etcd keeps no lease of less than two seconds")
        if self.drain_us < 0:
            raise BadRequest(f"--drain-us {self.drain_us}: at least 0, please")
        if self.placement not in KINDS:
            raise BadRequest(f"no placement {self.placement!r}; there are {', '.join(KINDS)}")
        if self.durability and self.log_dir is None:
            raise BadRequest("durability needs a log directory (--log-dir DIR)")
        if self.device:
            require_name(self.device)

    @property
    def host_bytes(self) -> int:
        """What the pool takes of host memory."""
        return host_bytes(self.layout, self.blocks, self.device)

    def _require_access(self) -> None:
        if self.access.tls and self.access.cert is None:
            raise BadRequest("a shard that speaks TLS has a certificate: give --tls-cert and --tls-key, too")
        if is_loopback(self.host):
            return
        if not (self.access.whole or self.access.insecure):
            raise BadRequest(f"{self.host} is no loopback address: give {NEEDED}, or --insecure")
        if _anywhere(self.host) and not self.advertise:
            raise BadRequest(f"{self.host} is every address of this host: say with --advertise HOST which others use")

    @property
    def page_host(self) -> str:
        return self.metrics_host or (self.host if is_loopback(self.host) else "127.0.0.1")

    def address(self, port: int) -> str:
        """By which others reach the shard that listens on `port`."""
        host = self.advertise or self.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def warnings(self) -> list[str]:
        """What an operator should know before anybody comes; one line each."""
        found = []
        if not is_loopback(self.host) and not self.access.whole:
            found.append(
                f"--insecure: what is sent to and from {self.host} can be read and changed on the way, and whoever "
                f"reaches it is let in; without it: {NEEDED}"
            )
        if self.metrics_port is not None and not is_loopback(self.page_host):
            found.append(
                f"the metrics page on {self.page_host} is plain HTTP for whoever reaches it (no keys, tokens or "
                "tenants are on it): let a firewall admit only your Prometheus"
            )
        return found

    def socket_path(self, port: int, kind: str) -> Path:
        """Where the shard that listens on `port` has its Unix socket of that kind."""
        path = (self.run_dir or default_run_dir()) / f"{port}.{kind}"
        if len(os.fsencode(path)) > _LONGEST_SOCKET:
            raise BadRequest(f"run directory {path.parent} is too long for a Unix socket: choose a shorter --run-dir")
        return path


def _anywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def host_bytes(layout: Layout, blocks: int, device: str) -> int:
    """What a pool on `device` takes of host memory: all of it, or its headers."""
    return blocks * (HEADER_BYTES if device.startswith("cuda") else layout.slot_bytes)


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
