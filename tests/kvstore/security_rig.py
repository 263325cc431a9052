"""What tests of encryption and tokens share: certificates of every kind, a guarded store, and ways to attack it."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import re
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.cli import main
from kvstore.cluster import LocalCluster
from kvstore.security import Access
from kvstore.security.certs import CLIENT, LOCAL, SHARD, Authority, write_new
from tests.kvstore.process_rig import LAYOUT

DAY = datetime.timedelta(days=1)
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
OTHER_TOKEN = "another-token-than-the-stores"


class Files:
    """PEM files of two CAs under `folder`, by names as `client`, `client-expired`, `shard-elsewhere`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours, theirs = Authority(DAY), Authority(DAY, "somebody else's CA")
        self._pair("ca", *ours.pem)
        self._pair("other-ca", *theirs.pem)
        self._pair("shard", *ours.issue("shard", SHARD, LOCAL))
        self._pair("shard-expired", *ours.issue("shard", SHARD, LOCAL, starts=LONG_AGO))
        self._pair("shard-elsewhere", *ours.issue("shard", SHARD, ["kv.example.org"]))
        self._pair("client", *ours.issue("client", CLIENT, LOCAL))
        self._pair("client-expired", *ours.issue("client", CLIENT, starts=LONG_AGO))
        self._pair("client-unknown", *theirs.issue("client", CLIENT))
        self._pair("client-server-only", *ours.issue("client", SHARD[:1]))
        self.token = write_new(folder / "token", b"the-token-of-this-store\n")
        self.other_token = write_new(folder / "other-token", OTHER_TOKEN.encode())

    def _pair(self, name: str, pem: bytes, key: bytes) -> None:
        write_new(self.folder / f"{name}.pem", pem)
        write_new(self.folder / f"{name}.key", key)

    def words(self, who: str | None = "client", ca: str | None = "ca", token: Path | None = None) -> list[str]:
        """Options of a command."""
        words = ["--tls-ca", str(self.folder / f"{ca}.pem")] if ca else []
        if who:
            words += ["--tls-cert", str(self.folder / f"{who}.pem"), "--tls-key", str(self.folder / f"{who}.key")]
        return words + (["--token-file", str(token)] if token else [])

    def access(self, who: str = "client") -> Access:
        return Access.of(self.folder / "ca.pem", self.folder / f"{who}.pem", self.folder / f"{who}.key", self.token)

    @contextlib.contextmanager
    def serving(self, name: str) -> Iterator[None]:
        """The shard's certificate is `name`'s for a while."""
        kept = {end: (self.folder / f"serving.{end}").read_bytes() for end in ("pem", "key")}
        self.serve(name)
        try:
            yield
        finally:
            for end, data in kept.items():
                _replace(self.folder / f"serving.{end}", data)

    def serve(self, name: str) -> None:
        for end in ("pem", "key"):
            _replace(self.folder / f"serving.{end}", (self.folder / f"{name}.{end}").read_bytes())

    @property
    def options(self) -> dict[str, Path]:
        """Of a shard."""
        return {
            "tls_ca": self.folder / "ca.pem",
            "tls_cert": self.folder / "serving.pem",
            "tls_key": self.folder / "serving.key",
            "token_file": self.token,
        }


def _replace(path: Path, data: bytes) -> None:
    half = path.with_suffix(".new")
    half.unlink(missing_ok=True)
    os.replace(write_new(half, data), path)


@dataclass
class Rig:
    """A store of one shard that speaks TLS and asks for a token, and one that does neither."""

    files: Files
    guarded: LocalCluster
    plain: LocalCluster
    _seen: dict[int, int] = field(default_factory=dict)

    def mark(self) -> None:
        """What the shards' logs say from now on is news."""
        self._seen = {id(store): len(store.log(0)) for store in (self.guarded, self.plain)}

    def refusals(self) -> int:
        """Handshakes that came to nothing so far, as the guarded shard counts them."""
        with urllib.request.urlopen(self.guarded.metrics_urls[0], timeout=10) as answer:
            found = re.search(r'kv_refusals_total{reason="tls",shard="0"} (\S+)', answer.read().decode())
        return int(float(found[1])) if found else 0

    def wait_for_refusals(self, count: int, timeout_s: float = 10.0) -> None:
        end = time.monotonic() + timeout_s
        while self.refusals() < count:
            assert time.monotonic() < end, "the shard has not counted that"
            time.sleep(0.02)

    def news(self, holds: str, timeout_s: float = 10.0) -> str:
        """The first new line of a log that holds some words."""
        end = time.monotonic() + timeout_s
        while True:
            for store in (self.guarded, self.plain):
                for line in store.log(0)[self._seen[id(store)] :].splitlines():
                    if holds in line:
                        return line
            assert time.monotonic() < end, f"no log says {holds!r}: {self.guarded.log(0)}\n{self.plain.log(0)}"
            time.sleep(0.02)


@contextlib.contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    files = Files(folder)
    files.serve("shard")
    with LocalCluster(1, LAYOUT, 32, **files.options) as guarded, LocalCluster(1, LAYOUT, 32) as plain:
        made = Rig(files, guarded, plain)
        made.mark()
        yield made


def command(*words: str) -> tuple[int, str]:
    """Exit code and standard error of a `kvstore` command."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(list(words))
    return code, said.getvalue().strip()


def knock(path: str, data: bytes, *, timeout_s: float = 10.0) -> bytes:
    """What a Unix stream socket answers, up to its end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(path)
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(65_536):
                answer += more
                if len(answer) >= 8 and len(answer) >= 8 + struct.unpack_from("<I", answer)[0]:
                    break
        return answer


def plain_text(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text)
    text = re.sub(r"process \d+ \(user \d+\)", "process PID (user UID)", text)
    text = re.sub(r"/\S*/(?=[^/\s]+)", "…/", text)
    return re.sub(r"x{20,}", "xxx…", re.sub(r"\d{4,}\.(door|calls)", r"PORT.\1", text))
