"""etcd's v3 API (etcdserverpb, etcd.io/docs: rpc.proto), as far as membership needs it, over gRPC with packed bytes.

Every call has a deadline; an endpoint that does not answer gives way to the next. etcd is off the data path: what a
lookup, get or put takes never waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstore.errors import BadRequest, ShardUnavailable
from kvstore.membership.protobuf import Fields, messages, number, pack, text, unpack

if TYPE_CHECKING:
    from kvstore.security import Access

_EQUAL = 0
_MOD_REVISION = 2
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
]


class EtcdSilent(Exception):  # noqa: N818 - not an error of the store: it goes on without etcd for a while
    """No endpoint answered."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of etcd; `revision` that of its last change, which a `swap` compares."""

    key: str
    value: bytes
    revision: int


class EtcdCalls:
    """Raises `EtcdSilent` when no endpoint answers in time. For one event loop."""

    def __init__(self, endpoints: Sequence[str], access: Access, *, tls: bool) -> None:
        """`endpoints` `host:port`; over TLS with the files of `access`. Raises `BadRequest`."""
        if tls and not access.tls:
            raise BadRequest("etcd over TLS needs the CA of its certificate: give --tls-ca")
        self._endpoints = list(endpoints)
        self._access = access
        self._tls = tls
        self._channel: Any = None
        self._turn = 0

    async def read(self, prefix: str, timeout_s: float) -> tuple[list[Entry], int]:
        """Everything below `prefix`, and etcd's revision."""
        asked = pack({1: prefix, 2: _after(prefix)})
        answer = await self._call("KV/Range", asked, timeout_s)
        found = [Entry(text(kv, 1).decode(), text(kv, 5), number(kv, 3)) for kv in messages(answer, 2)]
        return found, number(messages(answer, 1)[0], 3)

    async def swap(
        self, key: str, value: bytes, revision: int, timeout_s: float, *, absent: Sequence[str] = ()
    ) -> bool:
        """Write `key` if its last change was `revision` (0: there is no such key) and none of `absent` is there."""
        compares = [_changed_at(key, revision), *(_changed_at(other, 0) for other in absent)]
        put = pack({2: pack({1: key, 2: value})})
        answer = await self._call("KV/Txn", pack({1: compares, 2: put}), timeout_s)
        return bool(number(answer, 2))

    async def put(self, key: str, value: bytes, lease: int, timeout_s: float) -> None:
        """Write `key`, to last as long as `lease`."""
        await self._call("KV/Put", pack({1: key, 2: value, 3: lease}), timeout_s)

    async def grant(self, ttl_s: int, timeout_s: float) -> tuple[int, int]:
        """A new lease: its id, and the seconds that etcd made of `ttl_s`."""
        answer = await self._call("Lease/LeaseGrant", pack({1: ttl_s}), timeout_s)
        return number(answer, 2), number(answer, 3)

    async def renew(self, lease: int, timeout_s: float) -> int:
        """The seconds that a lease has from now on; 0 if it has ended."""
        ask = self._made().stream_stream("/etcdserverpb.Lease/LeaseKeepAlive")
        return number(await self._guarded(self._one(ask, pack({1: lease}), timeout_s), timeout_s), 3)

    async def revoke(self, lease: int, timeout_s: float) -> None:
        await self._call("Lease/LeaseRevoke", pack({1: lease}), timeout_s)

    async def changed(self, prefix: str, revision: int) -> None:
        """Returns once something below `prefix` has changed since `revision`. The caller reads it all again: that is a
        few hundred bytes, and misses nothing."""
        import grpc.aio

        call = self._made().stream_stream("/etcdserverpb.Watch/Watch")()
        create = pack({1: prefix, 2: _after(prefix), 3: revision + 1})
        try:
            await call.write(pack({1: create}))
            while True:
                data = await call.read()
                if data is grpc.aio.EOF:
                    raise EtcdSilent("the watch ended")
                answer = unpack(data)
                if number(answer, 4):
                    raise EtcdSilent(f"the watch was ended: {text(answer, 6).decode('utf-8', 'replace')}")
                if answer.get(11):
                    return
        except grpc.aio.AioRpcError as error:
            raise EtcdSilent(error.details() or error.code().name) from None
        except asyncio.CancelledError:
            _require_cancelled()
            raise EtcdSilent("the connection was changed") from None
        finally:
            call.cancel()
            await call.code()  # gRPC has let go of it, and so of this loop

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _call(self, method: str, request: bytes, timeout_s: float) -> Fields:
        """One call, at each endpoint in turn until one answers."""
        last: EtcdSilent | None = None
        for _ in self._endpoints:
            try:
                ask = self._made().unary_unary(f"/etcdserverpb.{method}")
                return await self._guarded(ask(request, timeout=timeout_s), timeout_s)
            except EtcdSilent as error:
                last = error
                if len(self._endpoints) > 1:
                    await self._next()
        raise last or EtcdSilent("no endpoint")

    async def _guarded(self, asked: Any, timeout_s: float) -> Fields:
        import grpc
        import grpc.aio

        try:
            async with asyncio.timeout(timeout_s + 0.5):
                return unpack(await asked)
        except grpc.aio.AioRpcError as error:
            why = error.details() or error.code().name
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                raise BadRequest(f"etcd at {self._endpoint} does not let us in: {why}") from None
            if error.code() is grpc.StatusCode.NOT_FOUND:  # a lease that has ended
                return {}
            raise EtcdSilent(f"etcd at {self._endpoint}: {why.rpartition(': ')[2]}") from None
        except TimeoutError:
            raise EtcdSilent(f"etcd at {self._endpoint} does not answer") from None
        except asyncio.CancelledError:
            _require_cancelled()
            raise EtcdSilent("the connection was changed") from None
        except ValueError:
            raise EtcdSilent(f"{self._endpoint} answers, but is no etcd") from None

    async def _one(self, ask: Any, request: bytes, timeout_s: float) -> bytes:
        """The first answer of a stream."""
        import grpc.aio

        call = ask(timeout=timeout_s)
        try:
            await call.write(request)
            data = await call.read()
            if data is grpc.aio.EOF:
                raise EtcdSilent("the stream ended")
            return bytes(data)
        except asyncio.InvalidStateError:  # the call had ended before it was written to: its status says why
            await call
            raise EtcdSilent("the stream ended") from None
        finally:
            call.cancel()

    @property
    def _endpoint(self) -> str:
        return self._endpoints[self._turn % len(self._endpoints)]

    def _made(self) -> Any:
        import grpc.aio

        if self._channel is None:
            if self._tls:
                self._channel = grpc.aio.secure_channel(self._endpoint, self._access.channel_credentials(), _OPTIONS)
            else:
                self._channel = grpc.aio.insecure_channel(self._endpoint, _OPTIONS)
        return self._channel

    async def _next(self) -> None:
        self._turn += 1
        await self.close()


def endpoints_of(text_of: str, access: Access) -> tuple[list[str], bool]:
    """`http://h:2379,http://h2:2379` or `https://…` as endpoints, and whether by TLS. Raises `BadRequest`."""
    scheme, _, rest = text_of.partition("://")
    if scheme not in ("http", "https", "etcd", "etcds") or not rest:
        raise BadRequest(f"{text_of!r} is no address of etcd: http://HOST:PORT or https://HOST:PORT is expected")
    from kvstore.addresses import addresses_of
    from kvstore.security.access import host_of, is_loopback

    found = addresses_of([word.partition("://")[2] or word for word in f"{scheme}://{rest}".split(",")])
    tls = scheme in ("https", "etcds")
    for address in found:
        if not (tls or access.insecure or is_loopback(host_of(address))):
            raise BadRequest(f"etcd at {address} is not on loopback: use TLS (https://, etcds://), or --insecure")
    return found, tls


def unavailable(error: EtcdSilent) -> ShardUnavailable:
    """What a client is told."""
    return ShardUnavailable(f"the members of the store cannot be learned: {error}")


def _require_cancelled() -> None:
    """Raise if this task was. If not, its channel was closed while it was in use: gRPC says that in the same way."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise asyncio.CancelledError


def _changed_at(key: str, revision: int) -> bytes:
    """A comparison of a transaction: the key's last change was `revision` (0, which is said all the same: no key)."""
    return pack({1: _EQUAL, 2: _MOD_REVISION, 3: key}) + (pack({6: revision}) if revision else b"\x30\x00")


def _after(prefix: str) -> bytes:
    """The first key behind all that begin with `prefix`."""
    raw = bytearray(prefix.encode())
    raw[-1] += 1
    return bytes(raw)
