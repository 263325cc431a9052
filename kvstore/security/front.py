"""Ends TLS before gRPC: a port whose clients must show a certificate, in a thread of its own.

gRPC could end TLS itself, but tells nobody whom it refused and why, and reads its certificates once. Here a handshake
that fails is one line of the shard's log, files that were renewed are used from the next connection on, and the
handshakes of strangers take no time from the shard's own thread. What has been let in goes on, decrypted, through a
Unix socket of this user's run directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import threading
from pathlib import Path

from kvstore.errors import StoreError
from kvstore.security.access import Access
from kvstore.security.reasons import of_refused_client
from kvstore.security.refusals import Refusals

HANDSHAKE_S = 10.0
MOST_CONNECTIONS = 2048
"""A shard has at most 1024 clients; each may have a connection that ends and one that begins (policy)."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to `host:port`, not listening yet. Raises `OSError`."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
    except BaseException:
        bound.close()
        raise
    return bound


class Front:
    """Listens on a bound socket and hands what is said on to `inside`. `close` ends all."""

    def __init__(self, bound: socket.socket, access: Access, inside: Path, refusals: Refusals) -> None:
        self.inside = str(inside)
        self.refusals = refusals
        self.connections: set[_Outer] = set()
        # Each takes three descriptors: two here, one in gRPC.
        self.most = min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._bound = bound
        self._access = access
        self._context = access.server_context()
        self._read = self._files()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kvstore-tls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._bound.close()

    def _run(self) -> None:
        loop = self._loop
        server = loop.run_until_complete(loop.create_server(lambda: _Outer(self), sock=self._bound, backlog=128))
        loop.run_forever()
        server.close()
        for connection in list(self.connections):
            connection.abort()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    def context(self) -> ssl.SSLContext:
        """With the files as they are now; with those of before while they are being changed."""
        files = self._files()
        if files != self._read:
            with contextlib.suppress(StoreError):
                self._context, self._read = self._access.server_context(), files
        return self._context

    def _files(self) -> list[tuple[int, int]]:
        found = []
        for path in (self._access.ca, self._access.cert, self._access.key):
            with contextlib.suppress(OSError):
                about = os.stat(path or "")
                found.append((about.st_mtime_ns, about.st_ino))
        return found


class _Outer(asyncio.Protocol):
    """A client's side: shakes hands, then decrypts for the inner side and encrypts what comes from there.

    By OpenSSL's memory buffers and not asyncio's TLS, which closes without telling the client what was wrong.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = front.context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._transport: asyncio.Transport | None = None
        self._inner: _Inner | None = None
        self._who = ""
        self._begun = self._shaken = self._refused = False
        self._entering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._who = _name(transport.get_extra_info("peername"))
        if len(self._front.connections) >= self._front.most:
            self._front.refusals.note("connections", self._who, f"{self._front.most} are connected")
            transport.abort()
            return
        self._front.connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        self._begun = True
        self._incoming.write(data)
        if not self._shaken:
            self._shake()
        elif self._inner is not None:
            self._decrypt(self._inner)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause(True)

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause(False)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._front.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._entering is not None:
            self._entering.cancel()
        if self._begun and not self._shaken and not self._refused:
            self._front.refusals.note("tls", self._who, "it hung up in the handshake: does it trust our certificate?")
        if self._inner is not None:
            self._inner.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """The inner side has ended."""
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()  # a goodbye; the client's is not waited for
            self._flush()
            self._transport.close()

    def encrypt(self, data: bytes) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError:  # the client has ended its side
            self.abort()
            return
        self._flush()

    def pause(self, pause: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert that tells the client why
            self._refused = True
            self._front.refusals.note("tls", self._who, of_refused_client(error))
            if self._transport is not None:
                self._transport.close()
            return
        self._flush()
        self._shaken = True
        if self._timer is not None:
            self._timer.cancel()
        self.pause(True)
        self._entering = asyncio.get_running_loop().create_task(self._enter())

    async def _enter(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            _, self._inner = await loop.create_unix_connection(lambda: _Inner(self), self._front.inside)
        except OSError as error:
            self._front.refusals.note("connections", self._who, f"it cannot be served: {error.strerror or error}")
            self.abort()
            return
        self.pause(False)
        self._decrypt(self._inner)

    def _decrypt(self, inner: _Inner) -> None:
        try:
            while True:
                data = self._tls.read(65_536)
                if not data:
                    break
                inner.write(data)
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError:
            pass
        inner.close()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and self._transport is not None:
            self._transport.write(data)

    def _too_late(self) -> None:
        self._refused = True
        self._front.refusals.note("tls", self._who, "it did not shake hands in time")
        self.abort()


class _Inner(asyncio.Protocol):
    """The shard's side."""

    def __init__(self, outer: _Outer) -> None:
        self._outer = outer
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._outer.encrypt(data)

    def pause_writing(self) -> None:
        self._outer.pause(True)

    def resume_writing(self) -> None:
        self._outer.pause(False)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._outer.close()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause(self, pause: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _name(peer: tuple[str, int] | None) -> str:
    if not peer:
        return "a client that has gone"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
