"""Calls by gRPC: packed bytes, a method a kind of message."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from kvstore import wire
from kvstore.calls import Broken, TimedOut, Unfit
from kvstore.errors import AccessDenied
from kvstore.security import Access

if TYPE_CHECKING:
    import grpc.aio

_OPTIONS = [
    ("grpc.max_receive_message_length", wire.MAX_BYTES),
    ("grpc.max_send_message_length", wire.MAX_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # no back-off inherited from a channel that failed before
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


@functools.cache
def _keep_grpc() -> None:
    """gRPC ends its own thread with the last channel. Where that is the interpreter's end, too, the thread may ask for
    the GIL too late and abort the process ("terminate called without an active exception"): so it stays."""
    import grpc.aio

    grpc.aio.init_grpc_aio()


def channel_to(address: str, access: Access | None = None) -> grpc.aio.Channel:
    """With TLS where `access` has a CA, and its token on every call. Raises `BadRequest` off loopback without both."""
    import grpc.aio

    _keep_grpc()
    access = access or Access()
    access.require_for(address)
    showing: list[Any] = []
    if access.token is not None:
        from kvstore.security.gate import bearers

        showing = bearers(access.token)
    if access.tls:
        return grpc.aio.secure_channel(address, access.channel_credentials(), _OPTIONS, interceptors=showing)
    return grpc.aio.insecure_channel(address, _OPTIONS, interceptors=showing)


class RpcCalls:
    """See `Calls`."""

    def __init__(self, address: str, access: Access | None = None) -> None:
        self.closed = False
        self._channel: grpc.aio.Channel | None = channel_to(address, access)
        self._methods: dict[type[Any], Any] = {}

    async def call(self, message: type[Any], request: bytes, timeout_s: float) -> bytes:
        import grpc
        import grpc.aio

        try:
            reply: bytes = await self._method(message)(request, timeout=timeout_s)
            return reply
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Somebody dropped the channel under us: gRPC tells us so as if we had been cancelled.
            raise Broken("the connection was closed") from None
        except grpc.aio.AioRpcError as error:
            code, why = error.code(), error.details() or error.code().name
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimedOut
        if code is grpc.StatusCode.UNAUTHENTICATED:
            raise AccessDenied(why)
        if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED):
            raise Unfit(why)
        raise Broken(why)

    async def close(self) -> None:
        self.closed = True
        channel, self._channel = self._channel, None
        self._methods.clear()
        if channel is not None:
            await channel.close()

    def _method(self, message: type[Any]) -> Any:
        method = self._methods.get(message)
        if method is None:
            if self._channel is None:
                raise Broken("the connection was closed")
            method = self._methods[message] = self._channel.unary_unary(wire.method_path(message))
        return method
