"""What strangers try, and what happens: refused with one line at the client and one in the shard's log.

The test asserts every cell and keeps docs/security.md:

    KVSCOPE_WRITE_DOCS=1 .venv/bin/python -m pytest tests/kvstore/test_security_table.py
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore import messages as m
from kvstore import wire
from kvstore.calls.frames import frame
from kvstore.client import SyncClient
from kvstore.errors import LayoutMismatch, StoreError
from kvstore.keys import Chain, block_keys, root_digest
from tests.kvstore.process_rig import LAYOUT, ROOT, blocks_for, some_keys
from tests.kvstore.security_rig import Rig, command, knock, plain_text, rig

PAGE = ROOT / "docs" / "security.md"
NOBODY = 65_534

Said = tuple[str, int | None]
"""What the attacker was told, and the exit code of the command that he used (None: he used none)."""


@dataclass(frozen=True)
class Attempt:
    """`client`, `log`: words of what both sides say (`log` empty: nothing is logged), `code` the exit code."""

    name: str
    act: Callable[[Rig], Said]
    client: str
    log: str
    code: int | None = None


# --- the attempts ---------------------------------------------------------------------------------------------------


def replay(who: str | None = "client", ca: str | None = "ca", token: str = "token", *, at: str = "guarded") -> Any:
    """`kvstore replay --connect` with these files; `serving`: the shard shows another certificate meanwhile."""

    def act(found: Rig) -> Said:
        store = getattr(found, at)
        shown = {"token": found.files.token, "other": found.files.other_token}.get(token)
        words = found.files.words(who, ca, shown)
        code, said = command("replay", "--connect", store.targets, "--limit", "1", *words)
        return said, code

    return act


def meeting(certificate: str) -> Callable[[Rig], Said]:
    def act(found: Rig) -> Said:
        with found.files.serving(certificate):
            said: Said = replay()(found)
            return said

    return act


def connect(**fields: Any) -> Callable[[Rig], Said]:
    """A client of another layout."""

    def act(found: Rig) -> Said:
        with pytest.raises(LayoutMismatch) as error:
            SyncClient(found.guarded.targets, replace(LAYOUT, **fields), access=found.files.access())
        assert error.value.field == next(iter(fields)) or "salt" in str(error.value)
        return f"{error.value}", None

    return act


def other_salt(found: Rig) -> Said:
    """Equal tokens under another tenant's salt: other keys."""

    def keys(salt: bytes) -> Any:
        chain = Chain(root_digest(LAYOUT.model_id, salt=salt), LAYOUT.block_tokens)
        chain.extend(range(64))
        return block_keys(chain.digests, 0, 0)

    with SyncClient(found.guarded.targets, LAYOUT, access=found.files.access()) as client:
        client.put(keys(b"tenant a"), blocks_for(keys(b"tenant a")))
        assert client.get(keys(b"tenant a")).found.all()
        blocks = client.get(keys(b"tenant b"))
        assert not blocks.found.any()
        assert not blocks.valid.any()
    return "misses: no block is found, none read", None


def request(version: int = wire.VERSION, client: int = 0) -> Callable[[Rig], Said]:
    """A request at the shard's own socket for calls."""

    def act(found: Rig) -> Said:
        packed = bytearray(wire.pack_request(m.Envelope(client=client), m.Lookup(some_keys(1, 1))))
        packed[0] = version
        answer = knock(str(found.plain.facts[0]["calls"]), frame(1, bytes(packed)))
        _, error = wire.unpack_reply(answer[8:])
        assert isinstance(error, StoreError)
        return str(error), None

    return act


def hello(found: Rig) -> Said:
    """Another protocol at the door."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.settimeout(10)
        door.connect(str(found.plain.facts[0]["door"]))
        door.send(json.dumps({"protocol": 99, "layout": {}, "name": "x"}).encode())
        return str(json.loads(door.recv(65_536))["text"]), None


def oversize_request(found: Rig) -> Said:
    """What a client of ours refuses to send."""

    async def send() -> None:
        from kvstore.calls import Unfit
        from kvstore.calls.rpc import RpcCalls

        calls = RpcCalls(found.guarded.addresses[0], found.files.access())
        try:
            await calls.call(m.Lookup, bytes(wire.MAX_BYTES + 1), 20)
        except Unfit as error:
            raise StoreError(str(error)) from None
        finally:
            await calls.close()

    with pytest.raises(StoreError) as error:
        asyncio.run(send())
    return str(error.value), None


def oversize_frame(found: Rig) -> Said:
    answer = knock(str(found.plain.facts[0]["calls"]), struct.pack("<II", wire.MAX_BYTES + 1, 1))
    assert answer == b""
    return "the connection is closed", None


def another_user(*, opened: bool) -> Callable[[Rig], Said]:
    """Somebody else at a shard's sockets; `opened`: although the directory lets him in."""

    def act(found: Rig) -> Said:
        if os.geteuid() != 0:
            pytest.skip("another user cannot be had: only root may become one")
        calls = Path(str(found.plain.facts[0]["calls"]))
        code = (
            "import os, socket, sys\n"
            f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "try:\n    s.connect(sys.argv[1]); print('closed at once' if s.recv(1) == b'' else 'LET IN')\n"
            "except OSError as error: print(error.strerror)\n"
        )
        if opened:
            calls.parent.chmod(0o755)
            calls.chmod(0o666)
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, str(calls)], capture_output=True, text=True, timeout=30, check=False
            )
        finally:
            calls.parent.chmod(0o700)
            calls.chmod(0o600)
        return done.stdout.strip() or done.stderr, None

    return act


def serve(*words: str) -> Said:
    code, said = command("serve", "--blocks", "4", "--metrics-port", "-1", "--listen", "127.0.0.1:0", *words)
    return said, code


def run_dir(prepare: Callable[[Path], Path]) -> Callable[[Rig], Said]:
    """`kvstore serve` with a run directory that somebody has prepared."""

    def act(found: Rig) -> Said:
        folder = found.files.folder / "run"
        try:
            return serve("--run-dir", str(prepare(folder)))
        finally:
            if folder.is_symlink():
                folder.unlink()
            else:
                shutil.rmtree(folder, ignore_errors=True)

    return act


def _link(folder: Path) -> Path:
    folder.symlink_to(folder.parent, target_is_directory=True)
    return folder


def _open_to_all(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def _of_another(folder: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("a directory of another user cannot be had: only root may give one away")
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    return folder


def socket_is_link(found: Rig) -> Said:
    """A link where a socket should be: it is neither followed nor replaced."""
    folder, victim = found.files.folder / "run", found.files.folder / "victim"
    folder.mkdir(mode=0o700)
    victim.write_text("precious")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / f"{port}.door").symlink_to(victim)
    try:
        return serve("--listen", f"127.0.0.1:{port}", "--run-dir", str(folder))
    finally:
        assert victim.read_text() == "precious"
        assert (folder / f"{port}.door").is_symlink()
        shutil.rmtree(folder)


def readable_token(found: Rig) -> Said:
    path = found.files.folder / "open-token"
    path.write_text("a-token-that-all-can-read")
    path.chmod(0o644)
    return serve("--token-file", str(path))


AGAIN = "again"
"""A line that is held back, since it is the one before; it is counted."""
BAD_CERTIFICATE = "its certificate does not do: "
ATTEMPTS = (
    Attempt(
        "certificate of another CA", replay("client-unknown"), "not of the CA that it trusts",
        BAD_CERTIFICATE + "it is not of the CA", 2,
    ),
    Attempt("expired certificate", replay("client-expired"), "has expired", BAD_CERTIFICATE + "it has expired", 2),
    Attempt(
        "certificate without client authentication", replay("client-server-only"), "not made for clients",
        BAD_CERTIFICATE + "it is not made for this purpose", 2,
    ),
    Attempt("no certificate", replay(None), "we showed none", "it showed no certificate", 2),
    Attempt(
        "a client that trusts another CA", replay("client", "other-ca"), "it is not of the CA", "it hung up in the "
        "handshake", 2,
    ),
    Attempt("expired certificate of the shard", meeting("shard-expired"), "it has expired", AGAIN, 2),
    Attempt("certificate of another host at the shard's port", meeting("shard-elsewhere"), "not valid for", AGAIN, 2),
    Attempt("certificate of a client at the shard's port", meeting("client"), "not made for this purpose", AGAIN, 2),
    Attempt("wrong token", replay(token="other"), "the token is not this store's", "the token is not this store's", 2),
    Attempt("no token", replay(token=""), "carries no token", "carries no token", 2),
    Attempt(
        "plain text to a TLS port", replay(None, None), "it speaks TLS and we plain text", "it speaks plain text", 2
    ),
    Attempt("TLS to a plain port", replay(at="plain"), "it speaks plain text and we TLS", "", 2),
    Attempt("another layout", connect(head_dim=64), "layout field 'head_dim'", "layout field 'head_dim'"),
    Attempt("a layout with another tenant's salt", connect(salt="0" * 16), "salt", "layout field 'salt'"),
    Attempt("keys made with another tenant's salt", other_salt, "misses", ""),
    Attempt("another protocol version in a request", request(version=9), "protocol version 9", "protocol version 9"),
    Attempt("another protocol version at the door", hello, "protocol 99", "speaks protocol 99"),
    Attempt("an oversize message by gRPC", oversize_request, "larger than max", ""),
    Attempt("an oversize frame on the Unix socket", oversize_frame, "closed", "a frame of 67108865 bytes"),
    Attempt("somebody else's client number, guessed", request(client=4711), "unknown client", "unknown client"),
    Attempt("another user at a Unix socket", another_user(opened=False), "Permission denied", ""),
    Attempt("the same, its directory opened", another_user(opened=True), "closed at once", "runs as another user"),
    Attempt("run directory is a link", run_dir(_link), "is not this user's directory", "", 2),
    Attempt("run directory of another user", run_dir(_of_another), "is not this user's directory", "", 2),
    Attempt("run directory open to others", run_dir(_open_to_all), "can be written by others", "", 2),
    Attempt("a link where a socket should be", socket_is_link, "it is in use", "", 2),
    Attempt("run directory too long", run_dir(lambda folder: folder / ("x" * 90)), "too long for a Unix", "", 2),
    Attempt("token file that others can read", readable_token, "chmod 600", "", 2),
    Attempt(
        "off loopback without TLS and token", lambda _: serve("--listen", "192.0.2.1:0"), "no loopback address", "", 2
    ),
    Attempt(
        "a client without both, off loopback",
        lambda _: command("replay", "--connect", "192.0.2.1:7600")[::-1], "not on loopback", "", 2,
    ),
)  # fmt: skip

HEAD = """\
# Who is let in

Generated by `tests/kvstore/test_security_table.py`, which tries each of these against real shards. A shard that listens
off loopback asks for a certificate of its CA (TLS 1.3 both ways) and, on every call, for the store's token; within a
host the Unix sockets are for processes of the same user, and loopback needs nothing. *Client* is what the one who tries
is told; *shard's log* is the one line there (at most one of a kind in ten seconds, with the number of those held back;
each is counted in `kv_refusals_total`); *exit* is that of `kvstore replay --connect` or `kvstore serve`.

| attempt | client | shard's log | exit |
|---|---|---|---|
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("security")) as made:
        yield made


def row(attempt: Attempt, found: Rig) -> str:
    """Try it, assert, and give the table's line."""
    found.mark()
    before = found.refusals()
    said, code = attempt.act(found)
    assert attempt.client in said, said
    assert code == attempt.code
    assert len(said.splitlines()) == 1, said
    for secret in (found.files.token.read_text().strip(), found.files.other_token.read_text()):
        assert secret not in said + found.guarded.log(0) + found.plain.log(0)
    line = "–"
    if attempt.log == AGAIN:
        found.wait_for_refusals(before + 1)
        line = "the line before, held back"
    elif attempt.log:
        line = found.news(attempt.log).removeprefix("kvstore.security: ")
    cells = (attempt.name, plain_text(said), plain_text(line), "–" if code is None else str(code))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_attempt(attempt: Attempt, found: Rig) -> None:
    line = row(attempt, found)
    _written.append(line)
    if "KVSCOPE_WRITE_DOCS" not in os.environ:
        assert line in PAGE.read_text(encoding="utf-8").splitlines()


_written: list[str] = []


def test_the_page_has_all_of_them_and_nothing_else() -> None:
    if "KVSCOPE_WRITE_DOCS" in os.environ:
        assert len(_written) == len(ATTEMPTS), "write the page as root, where every attempt can be made"
        PAGE.write_text(HEAD + "\n".join(_written) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    names = [line.split(" | ")[0].removeprefix("| ") for line in text.removeprefix(HEAD).splitlines()]
    assert names == [attempt.name for attempt in ATTEMPTS]


def test_after_all_that_the_store_serves(found: Rig) -> None:
    keys = some_keys(3, 99)
    with SyncClient(found.guarded.targets, LAYOUT, access=found.files.access()) as client:
        client.put(keys, blocks_for(keys))
        assert np.array_equal(client.get(keys).data, blocks_for(keys))
