"""Every call by gRPC carries the store's token, or ends here. (gRPC is loaded by who calls these functions.)"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kvstore.security.refusals import Refusals
from kvstore.security.token import HEADER, Token

NONE_SHOWN = "the call carries no token: give --token-file or KVSTORE_TOKEN_FILE"
ANOTHER = "the token is not this store's: --token-file and KVSTORE_TOKEN_FILE must name a copy of the shard's"


def gate(token: Token, refusals: Refusals) -> Any:
    """The server's side: an interceptor of `grpc.aio.server`."""
    import grpc
    import grpc.aio

    def refusing(why: str) -> Callable[[Any, Any], Awaitable[None]]:
        async def refuse(_request: Any, context: Any) -> None:
            refusals.note("token", _who(context.peer()), why.partition(":")[0])
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)

        return refuse

    class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
        async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            handler = await continuation(handler_call_details)
            shown = [value for name, value in handler_call_details.invocation_metadata or () if name == HEADER]
            if handler is None or (len(shown) == 1 and token.agrees(shown[0])):
                return handler
            refuse = refusing(ANOTHER if shown else NONE_SHOWN)
            if handler.response_streaming:
                return grpc.stream_stream_rpc_method_handler(refuse)
            return grpc.unary_unary_rpc_method_handler(refuse)

    return Gate()


def bearers(token: Token) -> list[Any]:
    """The client's side: interceptors that show `token` with every call of a channel."""
    import grpc.aio

    def showing(details: Any) -> Any:
        return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), token.metadata))

    class Bearer(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            return await continuation(showing(client_call_details), request)

    class StreamBearer(grpc.aio.StreamStreamClientInterceptor):  # type: ignore[misc]
        async def intercept_stream_stream(
            self, continuation: Any, client_call_details: Any, request_iterator: Any
        ) -> Any:
            return await continuation(showing(client_call_details), request_iterator)

    return [Bearer(), StreamBearer()]


def _who(peer: str) -> str:
    """A caller as gRPC names it; behind the TLS front all come by a Unix socket."""
    return "a caller with a good certificate" if peer.startswith("unix:") else peer
