"""The HTTP endpoint beside a shard's gRPC server, on the same loop: reads the shard there, renders in a thread.

Only ``/metrics``, only GET and HEAD. What must be read in the shard's thread takes about a millisecond; text is made
elsewhere, one page at a time.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from typing import NamedTuple

import h11

from kvstore.page.collector import StoreCollector

PATH = "/metrics"
MAX_HEADER_BYTES = 16 * 1024
MAX_CONNECTIONS = 32
IDLE_S = 120.0
"""A kept connection may lie still so long: more than the scrape intervals in use, with some to spare (policy)."""
REQUEST_S = 10.0
"""From the first byte of a request to its last, and for taking the answer off our hands (policy)."""

_log = logging.getLogger("kvstore.page")


class _Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


class _Stage(IntEnum):
    """Of a connection: who is dropped first when there are too many."""

    SILENT = 0
    """It has never said a whole request."""
    KEPT = 1
    ANSWERED = 2


@dataclass(eq=False)
class _Guest:
    """A connection; in its stage since `since` (the loop's time)."""

    task: asyncio.Task[None]
    since: float
    stage: _Stage = _Stage.SILENT

    def enter(self, stage: _Stage) -> None:
        self.stage, self.since = stage, asyncio.get_running_loop().time()


class MetricsServer:
    """A page under a port; made by `serve_metrics`."""

    def __init__(self, collector: StoreCollector) -> None:
        self._collector = collector
        self._renderer = ThreadPoolExecutor(1, thread_name_prefix="kvstore-page")
        self._open: set[_Guest] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError where the address is taken."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=MAX_HEADER_BYTES)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the metrics server does not listen")
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.address
        return f"http://[{host}]:{port}{PATH}" if ":" in host else f"http://{host}:{port}{PATH}"

    async def close(self) -> None:
        """Stop listening and drop what is connected."""
        if self._server is not None:
            self._server.close()
        tasks = [guest.task for guest in self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._renderer.shutdown(wait=False, cancel_futures=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MAX_CONNECTIONS:
            self._drop_one()
        guest = _Guest(task, asyncio.get_running_loop().time())
        self._open.add(guest)
        try:
            await self._converse(guest, reader, writer)
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            writer.transport.abort()  # the other side went away or was slow: what it did not take is not kept for it
        except h11.ProtocolError:
            pass  # it spoke something else
        finally:
            self._open.discard(guest)
            writer.close()

    def _drop_one(self) -> None:
        """Whoever comes is let in: silent connections must not keep scrapers out."""
        guest = min(self._open, key=lambda guest: (guest.stage, guest.since))
        self._open.discard(guest)
        guest.task.cancel()

    async def _converse(self, guest: _Guest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        while True:
            try:
                request = await self._request(talk, reader)
            except h11.RemoteProtocolError as error:
                if talk.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self._send(talk, writer, _Answer(error.error_status_hint, b"not HTTP\n"))
                return
            if request is None:
                return
            guest.enter(_Stage.ANSWERED)
            await self._send(talk, writer, await self._answer(request))
            guest.enter(_Stage.KEPT)
            if talk.our_state is not h11.DONE or talk.their_state is not h11.DONE:
                return
            talk.start_next_cycle()

    async def _request(self, talk: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
        """The next request, its body read and dropped; None when the other side is done."""
        request: h11.Request | None = None
        wait, end = IDLE_S, 0.0
        loop = asyncio.get_running_loop()
        while True:
            event = talk.next_event()
            if event is h11.NEED_DATA:
                data = await asyncio.wait_for(reader.read(4096), wait)
                talk.receive_data(data)
                end = end or loop.time() + REQUEST_S
                wait = max(0.0, end - loop.time())
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                return request
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None

    async def _answer(self, request: h11.Request) -> _Answer:
        if request.target.split(b"?")[0] != PATH.encode():
            return _Answer(404, f"only {PATH} is here\n".encode())
        if request.method not in (b"GET", b"HEAD"):
            return _Answer(405, b"only GET and HEAD\n", headers=(("Allow", "GET, HEAD"),))
        accept = ",".join(value.decode("latin-1") for name, value in request.headers if name == b"accept")
        loop = asyncio.get_running_loop()
        try:
            snapshot = self._collector.snapshot()
            page = await loop.run_in_executor(self._renderer, self._collector.render, snapshot, accept)
        except Exception:  # a scrape must not end the shard
            _log.exception("a scrape failed")
            return _Answer(500, b"the page could not be made; the shard's own log says why\n")
        return _Answer(200, page.body, page.content_type)

    async def _send(self, talk: h11.Connection, writer: asyncio.StreamWriter, answer: _Answer) -> None:
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            *answer.headers,
        ]
        reason = HTTPStatus(answer.status).phrase.encode()
        writer.write(talk.send(h11.Response(status_code=answer.status, reason=reason, headers=headers)) or b"")
        writer.write(talk.send(h11.Data(data=answer.body)) or b"")
        writer.write(talk.send(h11.EndOfMessage()) or b"")
        await asyncio.wait_for(writer.drain(), REQUEST_S)


async def serve_metrics(collector: StoreCollector, host: str = "127.0.0.1", port: int = 0) -> MetricsServer:
    """Serve a shard's page on the running loop, which must be the shard's own. Raises OSError (address taken)."""
    server = MetricsServer(collector)
    await server.start(host, port)
    return server
