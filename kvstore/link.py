"""A client's link to one shard: control by gRPC, blocks by a transport; comes back when the shard does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvstore import messages as m
from kvstore import wire
from kvstore.clock import LamportClock
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, DeadlineExceeded, ShardUnavailable, StoreError
from kvstore.layout import Layout
from kvstore.transport import Peer, Transport
from probes.instrument import current_traceparent

if TYPE_CHECKING:
    import grpc.aio

DESCRIBE = f"/{wire.SERVICE}/Describe"
CONNECT_MS = 2_000
_OPTIONS = [
    ("grpc.max_receive_message_length", wire.MAX_BYTES),
    ("grpc.max_send_message_length", wire.MAX_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # no back-off inherited from a channel that failed before
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_MAY_HAVE_BEEN_DONE = (m.Put, m.Append, m.Remove)


class Link:
    """`lost` is called when a shard's process has ended for certain: nothing of it reads our memory any more."""

    def __init__(
        self,
        address: str,
        layout: Layout,
        transport: Transport,
        clock: LamportClock,
        name: str,
        lost: Callable[[Link], None],
    ) -> None:
        self.address = address
        self.number = -1
        self.peer: Peer | None = None
        self._layout = json.loads(layout.as_json())
        self._transport = transport
        self._clock = clock
        self._name = name
        self._lost = lost
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[type[Any], Any] = {}
        self._connecting = asyncio.Lock()
        self._instance = ""

    @property
    def up(self) -> bool:
        """A peer is there, lives, and knows us: about a microsecond."""
        return self.peer is not None and self.peer.connected()

    @property
    def facts(self) -> dict[str, Any]:
        """What the shard said of itself; empty while it is not connected."""
        return {} if self.peer is None else self.peer.facts

    async def ensure(self, deadline: Deadline) -> Peer:
        """The peer, connected (again) where it was not. Raises `ShardUnavailable`, or what the shard refuses us for."""
        if self.up and self.peer is not None:
            return self.peer
        try:
            async with asyncio.timeout(deadline.left_s):
                await self._connecting.acquire()
        except TimeoutError:
            raise self._silent(deadline) from None
        try:
            if not self.up:
                await self.drop()
                await self._connect(deadline)
        finally:
            self._connecting.release()
        assert self.peer is not None
        return self.peer

    async def call(self, message: Any, deadline: Deadline, *, ticket: int = 0, trace: str = "", client: int = 0) -> Any:
        """The shard's answer; raises the `StoreError` that it answered with.

        `ShardUnavailable` when the process is gone or does not answer in time; for a put or append
        `DeadlineExceeded` in the latter case: it may have been done. What cannot be done twice is sent again only
        where it was surely not received.
        """
        while True:
            peer = await self.ensure(deadline)
            trace = trace or current_traceparent()
            envelope = m.Envelope(
                self._clock.tick(), deadline.left_ms, trace, client or int(peer.facts["client"]), ticket
            )
            try:
                data = await self._send(message, wire.pack_request(envelope, message), deadline)
            except _Interrupted as error:
                if deadline.passed or isinstance(message, _MAY_HAVE_BEEN_DONE):
                    raise ShardUnavailable(f"shard {self._who()}: {error}") from None
                await asyncio.sleep(min(0.005, deadline.left_s))
                continue
            clock, answer = wire.unpack_reply(data)
            self._clock.merge(clock)
            if isinstance(answer, StoreError):
                raise answer
            return answer

    async def drop(self) -> None:
        """Forget the connection; tells `lost` when the process behind it has ended."""
        peer, channel = self.peer, self._channel
        self.peer, self._channel = None, None
        self._methods.clear()
        if peer is not None:
            if not peer.alive():
                self._lost(self)
            peer.close()
        if channel is not None:
            await channel.close()

    async def _send(self, message: Any, request: bytes, deadline: Deadline) -> bytes:
        import grpc
        import grpc.aio

        try:
            reply: bytes = await self._method(type(message))(request, timeout=deadline.left_s)
            return reply
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Somebody dropped the channel under us: gRPC tells us so as if we had been cancelled.
            raise _Interrupted("the connection was closed") from None
        except grpc.aio.AioRpcError as error:
            code, why = error.code(), error.details() or error.code().name
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            if isinstance(message, _MAY_HAVE_BEEN_DONE):
                raise DeadlineExceeded(
                    f"shard {self._who()} has not answered within {deadline.allowed_ms:g} ms; it may have been done"
                )
            raise self._silent(deadline)
        if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED):
            raise BadRequest(f"shard {self._who()}: {why}")
        if self.peer is not None and not self.peer.alive():
            raise ShardUnavailable(f"shard {self._who()}: its process has ended")
        raise _Interrupted(why)

    def _method(self, message: type[Any]) -> Any:
        method = self._methods.get(message)
        if method is None:
            if self._channel is None:
                raise _Interrupted("the connection was closed")
            method = self._methods[message] = self._channel.unary_unary(wire.method_path(message))
        return method

    async def _connect(self, deadline: Deadline) -> None:
        described = await self._describe(deadline)
        peer = await self._transport.connect(described, self._layout, self._name, deadline)
        number = int(peer.facts["shard"])
        if self.number not in (-1, number):
            peer.close()
            raise ShardUnavailable(f"{self.address} was shard {self.number} and now says that it is shard {number}")
        self.number = number
        # A Unix socket is the shorter way to a shard on this host, and only its own user can open it.
        self._channel = _channel(str(peer.facts.get("grpc") or self.address))
        self.peer = peer

    async def _describe(self, deadline: Deadline) -> dict[str, Any]:
        import grpc.aio

        channel = _channel(self.address)
        try:
            ask: Any = channel.unary_unary(DESCRIBE)
            described = json.loads(await ask(b"", timeout=deadline.left_s))
        except grpc.aio.AioRpcError as error:
            if deadline.passed:
                raise self._silent(deadline) from None
            why = error.details() or error.code().name
            raise ShardUnavailable(f"shard {self._who()} cannot be reached: {why}") from None
        except ValueError:
            raise ShardUnavailable(f"{self.address} answers, but is no shard") from None
        finally:
            await channel.close()
        if not isinstance(described, dict):
            raise ShardUnavailable(f"{self.address} answers, but is no shard")
        return described

    def _who(self) -> str:
        return self.address if self.number < 0 else f"{self.number} ({self.address})"

    def _silent(self, deadline: Deadline) -> ShardUnavailable:
        return ShardUnavailable(f"shard {self._who()} has not answered within {deadline.allowed_ms:g} ms")


class _Interrupted(Exception):  # noqa: N818 - not an error of the store, only a reason to look again
    """The connection broke while an answer was due."""


def _channel(address: str) -> grpc.aio.Channel:
    import grpc.aio

    return grpc.aio.insecure_channel(address, _OPTIONS)
