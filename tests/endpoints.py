"""A loopback HTTP endpoint that behaves as told: the faults a scrape can meet, switchable while it runs.

    with Endpoint(page) as endpoint:
        scrape(endpoint.target)          # host:port
        endpoint.behave("slow-drip")     # any name in BEHAVIOURS

It runs in threads of its own, so that tests with and without an event loop, and child processes, can use it.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 12345.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
"""


@dataclass
class Exchange:
    """One request on one connection: ``send`` raw bytes, ``answer`` a whole response."""

    endpoint: Endpoint
    connection: socket.socket
    request: bytes

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def answer(
        self, body: bytes, kind: str = TEXT, status: str = "200 OK", length: int | None = None, extra: str = ""
    ) -> None:
        size = len(body) if length is None else length
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n{extra}\r\n"
        self.send(head.encode() + body)

    def hang(self) -> None:
        """Say nothing more until the endpoint behaves otherwise or closes."""
        self.endpoint.changed.wait()

    def close(self) -> None:
        raise ConnectionAbortedError


Behaviour = Callable[[Exchange], None]


def _ok(x: Exchange) -> None:
    x.answer(x.endpoint.page, x.endpoint.content_type)


def _truncated(x: Exchange) -> None:
    """Promises the whole page, sends half of it and closes."""
    x.answer(x.endpoint.page[: len(x.endpoint.page) // 2], length=len(x.endpoint.page))
    x.close()


def _cut_line(x: Exchange) -> None:
    """A well-framed answer whose last line was cut."""
    x.answer(x.endpoint.page.rstrip(b"\n")[:-3])


def _no_eof(x: Exchange) -> None:
    x.answer(x.endpoint.page, OPENMETRICS)


def _unframed_cut(x: Exchange) -> None:
    """No Content-Length, as HTTP/1.0 servers do, and an end within a line."""
    x.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + x.endpoint.page[:-9])
    x.close()


def _chunked_cut(x: Exchange) -> None:
    body = x.endpoint.page
    x.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s" % (len(body), body[: len(body) // 2]))
    x.close()


def _chunked(x: Exchange) -> None:
    x.send(f"HTTP/1.1 200 OK\r\nContent-Type: {TEXT}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    body = x.endpoint.page
    for start in range(0, len(body), 37):
        part = body[start : start + 37]
        x.send(b"%x\r\n%s\r\n" % (len(part), part))
    x.send(b"0\r\n\r\n")


def _gzip(x: Exchange) -> None:
    x.answer(gzip.compress(x.endpoint.page), extra="Content-Encoding: gzip\r\n")


def _gzip_cut(x: Exchange) -> None:
    x.answer(gzip.compress(x.endpoint.page)[:-12], extra="Content-Encoding: gzip\r\n")


def _slow_drip(x: Exchange) -> None:
    x.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n")
    while not x.endpoint.changed.wait(0.02):
        x.send(b"# drip, drip, drip\n")


def _slow_headers(x: Exchange) -> None:
    x.send(b"HTTP/1.1 200 OK\r\n")
    while not x.endpoint.changed.wait(0.02):
        x.send(b"X-Drip: 1\r\n")


def _nan(x: Exchange) -> None:
    lines = x.endpoint.page.decode().splitlines()
    x.answer("".join(f"{_without_value(line)} NaN\n" if line[:1] != "#" else line + "\n" for line in lines).encode())


def _inf(x: Exchange) -> None:
    lines = x.endpoint.page.decode().splitlines()
    x.answer("".join(f"{_without_value(line)} +Inf\n" if line[:1] != "#" else line + "\n" for line in lines).encode())


def _without_value(line: str) -> str:
    return line.rsplit(" ", 1)[0]


def _untyped(x: Exchange) -> None:
    x.answer(b"".join(line for line in x.endpoint.page.splitlines(True) if not line.startswith(b"#")))


def _huge(x: Exchange) -> None:
    x.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000000000\r\n\r\n")
    block = b"".join(b'huge{n="%06d"} 1\n' % n for n in range(4096))
    while not x.endpoint.changed.is_set():
        x.send(block)


def _elsewhere(x: Exchange) -> None:
    x.answer(b"", status="302 Found", extra="Location: http://192.0.2.1/metrics\r\n")


def _moved(x: Exchange) -> None:
    """Redirects once, to another path of the same host."""
    if b" /moved " in x.request:
        _ok(x)
    else:
        x.answer(b"", status="301 Moved Permanently", extra="Location: /moved\r\n")


def _loop(x: Exchange) -> None:
    x.answer(b"", status="302 Found", extra="Location: /metrics\r\n")


def _needs_password(x: Exchange) -> None:
    if x.endpoint.authorization and x.endpoint.authorization.encode() in x.request:
        _ok(x)
    else:
        x.answer(b"", status="401 Unauthorized", extra='WWW-Authenticate: Basic realm="x"\r\n')


def _status(status: str, body: bytes = b"no\n") -> Behaviour:
    return lambda x: x.answer(body, status=status)


def _body(body: bytes, kind: str = TEXT) -> Behaviour:
    return lambda x: x.answer(body, kind)


_HTML = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in.</body></html>\n"
_GARBAGE = bytes((i * 167 + 13) % 256 for i in range(4096))

BEHAVIOURS: dict[str, Behaviour] = {
    "ok": _ok,
    "moved": _moved,
    "chunked": _chunked,
    "gzip": _gzip,
    "untyped": _untyped,
    "inf": _inf,
    "nan": _nan,
    "empty": _body(b""),
    "only-comments": _body(b"# HELP a b\n# TYPE a gauge\n"),
    "hang": lambda x: x.hang(),
    "slow-drip": _slow_drip,
    "slow-headers": _slow_headers,
    "500": _status("500 Internal Server Error"),
    "503": _status("503 Service Unavailable"),
    "404": _status("404 Not Found"),
    "403": _status("403 Forbidden"),
    "401": _status("401 Unauthorized"),
    "needs-password": _needs_password,
    "html": _body(_HTML, "text/html"),
    "json": _body(b'{"status": "ok"}\n', "application/json"),
    "garbage": _body(_GARBAGE, "application/octet-stream"),
    "text": _body(b"Welcome to this server, have a nice day\n"),
    "not-http": lambda x: x.send(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "truncated": _truncated,
    "cut-line": _cut_line,
    "no-eof": _no_eof,
    "unframed-cut": _unframed_cut,
    "chunked-cut": _chunked_cut,
    "gzip-cut": _gzip_cut,
    "huge": _huge,
    "elsewhere": _elsewhere,
    "redirect-loop": _loop,
    "closes": lambda x: x.close(),
}
"""Every behaviour by name; ``refuse`` (nobody listens) and ``die`` are there as well, see ``Endpoint.behave``."""


@dataclass
class Endpoint:
    """A context manager: listens on a free loopback port from the start to the end of the ``with`` block."""

    page: bytes = PAGE.encode()
    content_type: str = TEXT
    authorization: str = ""
    behaviour: str = "ok"
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    changed: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Endpoint:
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.port = 0
        wanted, self.behaviour = self.behaviour, "ok"
        self._listen()
        self.behave(wanted)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.changed.set()
        self._stop()
        for thread in self._threads:
            thread.join(timeout=5)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.target}/metrics"

    def serve(self, page: str | bytes, content_type: str = TEXT) -> None:
        """Behave well, with this page."""
        self.page = page.encode() if isinstance(page, str) else page
        self.content_type = content_type
        self.behave("ok")

    def behave(self, name: str) -> None:
        """Switch to another behaviour from the next request on; ``refuse`` and ``die`` stop listening at once.

        What hangs or drips under the behaviour before is let go.
        """
        if name not in BEHAVIOURS and name not in ("refuse", "die"):
            raise KeyError(name)
        self.changed.set()
        self.changed = threading.Event()
        self.behaviour = name
        if name in ("refuse", "die"):
            self._stop()
        elif self._listener is None:
            self._listen()

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(16)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._run(self._accept, listener)

    def _stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            held = list(self._open)
        for connection in held:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _run(self, work: Callable[[socket.socket], None], on: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(on,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self._open.add(connection)
            self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            while True:
                request = _read_request(connection)
                if not request:
                    break
                self.requests.append(request)
                BEHAVIOURS[self.behaviour](Exchange(self, connection, request))
                if self.behaviour in ("hang", "not-http"):
                    break
        with self._lock:
            self._open.discard(connection)


def _read_request(connection: socket.socket) -> bytes:
    """One request with its body, or nothing when the peer has gone."""
    data = b""
    wanted = None
    while wanted is None or len(data) < wanted:
        part = connection.recv(65536)
        if not part:
            return b""
        data += part
        if data[:1] == b"\x16":  # a TLS greeting: answered as plain HTTP servers do
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return b""
        head, gap, _ = data.partition(b"\r\n\r\n")
        if gap:
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            wanted = len(head) + len(gap) + (int(length.group(1)) if length else 0)
    return data


def main() -> None:
    """Serve by hand: ``python tests/endpoints.py BEHAVIOUR`` prints the URL and runs until interrupted."""
    import sys

    name = sys.argv[1] if len(sys.argv) > 1 else "ok"
    if name not in BEHAVIOURS:
        sys.exit(f"{name}: no such behaviour; one of: {', '.join(BEHAVIOURS)}")
    with Endpoint() as endpoint, contextlib.suppress(KeyboardInterrupt):
        endpoint.behave(name)
        print(endpoint.url, os.getpid(), flush=True)
        print(f"process {os.getpid()} serves {name!r} until Ctrl-C", file=sys.stderr, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
