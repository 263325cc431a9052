"""An HTTP client for one target: keep-alive, a hard deadline, a size cap, and every fault in words."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

import h11

from probes.printable import LONGEST, one_line
from probes.records import dataclass
from probes.sources.base import State
from probes.sources.credentials import CredentialsError, authorization
from probes.sources.resolve import NameError_
from probes.sources.wire import DeadlineError, Network, Wire
from probes.target import Access, hide

if TYPE_CHECKING:
    import ssl

_REDIRECTS = 3
_REDIRECT_CODES = (301, 302, 303, 307, 308)
USER_AGENT = "kvscope"


class FetchError(Exception):
    """A request that brought no answer: the state to report and the words for it."""

    def __init__(self, state: State, message: str) -> None:
        super().__init__(message := one_line(message))
        self.state: State = state
        self.message = message


@dataclass(frozen=True, slots=True)
class Response:
    """An answer with its decoded body; ``wire_bytes`` is what came over the wire."""

    status: int
    reason: str
    content_type: str
    body: bytes
    wire_bytes: int


@dataclass(slots=True)
class _Connection:
    wire: Wire
    http: h11.Connection
    origin: tuple[str, str, int]
    used: bool = False


@dataclass(slots=True)
class _Progress:
    """How far a request has come, for the words of a time-out."""

    stage: str = "connect"
    size: int = 0
    heard: bytes = b""
    """The first bytes of the answer, whatever they are."""


class Fetcher:
    """Requests to one URL, in the event loop that runs. Credentials go to the URL's own origin only."""

    def __init__(self, url: str, access: Access, *, timeout_s: float, max_bytes: int) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self._access = access
        self._max_bytes = max_bytes
        self._connection: _Connection | None = None
        self._tls: ssl.SSLContext | None = None
        self._network: Network | None = None

    def leave_loop(self) -> None:
        """From now on by blocking calls: a request is then over once its coroutine was first run (see ``finished``)."""
        from probes.sources.unlooped import Unlooped

        self._drop()
        self._network = Unlooped()

    def _net(self) -> Network:
        if self._network is None:
            from probes.sources.looped import Looped  # asyncio: only for those who need it

            self._network = Looped()
        return self._network

    async def get(self, accept: str) -> Response:
        """GET the URL within the deadline; raises ``FetchError``."""
        return await self._within("GET", self.url, [("Accept", accept)], b"")

    async def post_form(self, url: str, form: bytes) -> Response:
        """POST a URL-encoded form to a URL of the same origin within the deadline; raises ``FetchError``."""
        headers = [("Accept", "application/json"), ("Content-Type", "application/x-www-form-urlencoded")]
        return await self._within("POST", url, headers, form)

    async def close(self) -> None:
        self._drop()

    async def _within(self, method: str, url: str, headers: list[tuple[str, str]], body: bytes) -> Response:
        progress = _Progress()
        start = time.monotonic()
        try:
            async with self._net().deadline(self.timeout_s):
                return await self._follow(method, url, headers, body, progress)
        except DeadlineError:
            self._drop()
            raise FetchError("timeout", _late(progress, time.monotonic() - start)) from None
        except BaseException:
            self._drop()
            raise

    async def _follow(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes, progress: _Progress
    ) -> Response:
        for _ in range(_REDIRECTS + 1):
            response, location = await self._once(method, url, headers, body, progress)
            if not location:
                return response
            there = _redirected(url, location)
            if not _same_host(url, there):
                raise FetchError(
                    "http-error", f"redirects to another host ({one_line(hide(there), 120)}), which is not followed"
                )
            url = there
        raise FetchError("http-error", f"more than {_REDIRECTS} redirects")

    async def _once(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes, progress: _Progress
    ) -> tuple[Response, str]:
        parts = urlsplit(url)
        origin = _origin(parts)
        request = self._request(method, parts, origin, headers, body)
        connection, reused = await self._connect(origin, progress)
        try:
            return await self._exchange(connection, request, body, progress)
        except _ClosedEarlyError as closed:
            self._drop()
            if not reused:
                raise FetchError("refused", f"the server closed the connection without an answer{closed}") from None
        connection, _ = await self._connect(origin, progress)
        try:
            return await self._exchange(connection, request, body, progress)
        except _ClosedEarlyError as closed:
            raise FetchError("refused", f"the server closed the connection without an answer{closed}") from None

    def _request(
        self, method: str, parts: SplitResult, origin: tuple[str, str, int], headers: list[tuple[str, str]], body: bytes
    ) -> h11.Request:
        host = f"[{origin[1]}]" if ":" in origin[1] else origin[1]
        default = 443 if origin[0] == "https" else 80
        sent = [
            ("Host", host if origin[2] == default else f"{host}:{origin[2]}"),
            ("User-Agent", USER_AGENT),
            ("Accept-Encoding", "gzip"),
            *headers,
        ]
        if body:
            sent.append(("Content-Length", str(len(body))))
        if origin == _origin(urlsplit(self.url)):
            sent += _authorization(self._access)
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            return h11.Request(method=method, target=target.encode(), headers=sent)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            # Their words may quote a header, and with it the credentials.
            raise FetchError("refused", "cannot ask for this URL: a character in it cannot be sent") from None

    async def _connect(self, origin: tuple[str, str, int], progress: _Progress) -> tuple[_Connection, bool]:
        held = self._connection
        if held is not None and held.origin == origin and not held.wire.ended:
            progress.stage = "answer"
            return held, True
        self._drop()
        progress.stage = "resolve"
        try:
            addresses = await self._net().resolve(origin[1], origin[2])
        except NameError_ as error:
            raise FetchError("refused", f"the name {origin[1]} cannot be resolved: {error}") from None
        progress.stage = "connect"
        wire = await self._open(addresses, origin)
        self._connection = _Connection(wire, h11.Connection(h11.CLIENT), origin)
        progress.stage = "answer"
        return self._connection, False

    async def _open(self, addresses: list[str], origin: tuple[str, str, int]) -> Wire:
        scheme, host, port = origin
        tls = self._context() if scheme == "https" else None
        failure: OSError | None = None
        for address in addresses:
            try:
                return await self._net().open(address, port, tls, host)
            except OSError as error:
                if tls is not None:
                    from probes.sources.tls import tls_words

                    if words := tls_words(error):
                        raise FetchError("refused", words) from None
                failure = error
        raise FetchError("refused", f"cannot connect to {host} port {port}: {_os_words(failure)}") from None

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            from probes.sources.tls import context_of

            try:
                self._tls = context_of(self._access)
            except OSError as error:
                raise FetchError("refused", f"the CA file {self._access.ca_file} cannot be used: {error}") from None
        return self._tls

    async def _exchange(
        self, connection: _Connection, request: h11.Request, body: bytes, progress: _Progress
    ) -> tuple[Response, str]:
        http, wire = connection.http, connection.wire
        if connection.used:
            http.start_next_cycle()
        connection.used = True
        wire.write(http.send(request) or b"")
        if body:
            wire.write(http.send(h11.Data(data=body)) or b"")
        wire.write(http.send(h11.EndOfMessage()) or b"")
        head: h11.Response | None = None
        inflate: zlib._Decompress | None = None
        chunks: list[bytes] = []
        size = 0
        while True:
            event = await self._event(connection, progress, head is not None)
            if isinstance(event, h11.Response):
                head = event
                progress.stage = "body"
                inflate = _inflater(_header(head, "content-encoding"))
            elif isinstance(event, h11.Data):
                progress.size += len(event.data)
                data = _inflate(inflate, bytes(event.data), self._max_bytes - size)
                size += len(data)
                if size >= self._max_bytes or (inflate is not None and inflate.unconsumed_tail):
                    raise FetchError("truncated", f"the answer is larger than the limit of {self._max_bytes} bytes")
                chunks.append(data)
            elif isinstance(event, h11.EndOfMessage):
                break
        assert head is not None
        if inflate is not None and not inflate.eof and size:
            raise FetchError("truncated", "the gzip data of the answer is cut off")
        self._settle(connection)
        location = _header(head, "location") if head.status_code in _REDIRECT_CODES else ""
        reason = one_line(head.reason.decode("latin-1"), LONGEST)
        kind = _header(head, "content-type")
        return Response(head.status_code, reason, kind, b"".join(chunks), progress.size), location

    async def _event(self, connection: _Connection, progress: _Progress, answered: bool) -> object:
        """The next event of the answer."""
        while True:
            try:
                event = connection.http.next_event()
            except h11.RemoteProtocolError as error:
                raise _protocol_fault(error, answered, progress) from None
            if event is h11.NEED_DATA:
                try:
                    data = await connection.wire.read()
                except OSError as error:
                    if answered:
                        raise FetchError(
                            "truncated", f"{_os_words(error)} after {_size(progress.size)} of the answer"
                        ) from None
                    raise _ClosedEarlyError(f": {_os_words(error)}") from None
                if not answered:
                    if not data:
                        raise _silent(progress)
                    progress.heard = progress.heard or data[:80]
                connection.http.receive_data(data)
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise _ClosedEarlyError("")
            else:
                return event

    def _settle(self, connection: _Connection) -> None:
        """Keep the connection where both sides allow it."""
        http = connection.http
        if not (http.our_state is h11.DONE and http.their_state is h11.DONE):
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.wire.abort()
            self._connection = None


class _ClosedEarlyError(Exception):
    """The connection ended before any answer: on a kept connection worth one more try."""


def _authorization(access: Access) -> list[tuple[str, str]]:
    try:
        return authorization(access)
    except CredentialsError as error:
        raise FetchError("no-permission", str(error)) from None


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _redirected(here: str, location: str) -> str:
    """The absolute URL of a redirect."""
    try:
        there = urljoin(here, location)
        _origin(urlsplit(there))
    except ValueError:
        raise FetchError("http-error", f"bad redirect: to {one_line(hide(location), 120)}") from None
    return there


def _same_host(here: str, there: str) -> bool:
    try:
        a, b = urlsplit(here), urlsplit(there)
        downgrade = a.scheme == "https" and b.scheme == "http"
        return b.scheme in ("http", "https") and a.hostname == b.hostname and not downgrade
    except ValueError:
        return False


def _header(head: h11.Response, name: str) -> str:
    for key, value in head.headers:
        if key == name.encode():
            return value.decode("latin-1").strip()
    return ""


def _inflater(encoding: str) -> zlib._Decompress | None:
    if encoding.lower() in ("", "identity"):
        return None
    if encoding.lower() in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=47)
    raise FetchError("not-exposition", f"the answer has the unknown content encoding {encoding[:30]!r}")


def _inflate(inflate: zlib._Decompress | None, data: bytes, room: int) -> bytes:
    if inflate is None:
        return data
    try:
        return inflate.decompress(data, max(1, room))
    except zlib.error as error:
        raise FetchError("not-exposition", f"the answer claims to be compressed but is not: {error}") from None


def _protocol_fault(error: h11.RemoteProtocolError, answered: bool, progress: _Progress) -> Exception:
    words = str(error)
    if answered:
        return FetchError("truncated", f"the answer was cut off after {_size(progress.size)}: {words}")
    return FetchError("not-exposition", f"the server does not speak HTTP: {words[:80]}")


def _silent(progress: _Progress) -> Exception:
    """The connection ended before an answer began, or after something that is none."""
    if not progress.heard:
        return _ClosedEarlyError("")
    said = progress.heard.decode("latin-1").strip()[:40]
    if said.startswith("HTTP/"):
        return FetchError("truncated", "the connection ended within the answer's headers")
    return FetchError("not-exposition", f"the server does not speak HTTP: it says {said!r}")


def _late(progress: _Progress, seconds: float) -> str:
    if progress.stage == "body":
        return f"slow drip: {_size(progress.size)} in {seconds:.1f} s, and the answer had not ended"
    words = {
        "resolve": "the name was not resolved",
        "connect": "no connection",
        "answer": "connected, but no answer",
    }
    return f"{words[progress.stage]} within {seconds:.1f} s"


def _size(count: int) -> str:
    return f"{count} B" if count < 1000 else f"{count / 1000:.1f} kB"


def _os_words(error: Exception | None) -> str:
    number = getattr(error, "errno", None)
    return (os.strerror(number) if number else str(error or "no address")).lower()
