"""Calls by gRPC: packed bytes, a method a kind of message."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from kvstore import wire
from kvstore.calls import Broken, TimedOut, Unfit

_OPTIONS = [
    ("grpc.max_receive_message_length", wire.MAX_BYTES),
    ("grpc.max_send_message_length", wire.MAX_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # no back-off inherited from a channel that failed before
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


def channel_to(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, _OPTIONS)


class RpcCalls:
    """See `Calls`."""

    def __init__(self, address: str) -> None:
        self.closed = False
        self._channel: grpc.aio.Channel | None = channel_to(address)
        self._methods: dict[type[Any], Any] = {}

    async def call(self, message: type[Any], request: bytes, timeout_s: float) -> bytes:
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
