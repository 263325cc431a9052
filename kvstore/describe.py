"""What a shard says of itself, and what keeps us from hearing it."""

from __future__ import annotations

import json
from typing import Any

from kvstore import wire
from kvstore.deadline import Deadline
from kvstore.errors import AccessDenied, ShardUnavailable, StoreError
from kvstore.security import Access

DESCRIBE = f"/{wire.SERVICE}/Describe"


async def describe(address: str, access: Access, deadline: Deadline, who: str = "") -> dict[str, Any]:
    """The facts of the shard at `address`, called `who` in errors.

    Raises `AccessDenied` (certificates, token), `ShardUnavailable`, `BadRequest` (off loopback without both).
    """
    import grpc.aio

    from kvstore.calls.rpc import channel_to

    who = who or address
    if access.tls:
        await _require_trust(address, access, deadline, who)
    channel = channel_to(address, access)
    try:
        ask: Any = channel.unary_unary(DESCRIBE)
        described = json.loads(await ask(b"", timeout=deadline.left_s))
    except grpc.aio.AioRpcError as error:
        if deadline.passed:
            raise ShardUnavailable(f"shard {who} has not answered within {deadline.allowed_ms:g} ms") from None
        raise await _unreachable(address, access, deadline, who, error) from None
    except ValueError:
        raise ShardUnavailable(f"{address} answers, but is no shard") from None
    finally:
        await channel.close()
    if not isinstance(described, dict):
        raise ShardUnavailable(f"{address} answers, but is no shard")
    return described


async def _unreachable(address: str, access: Access, deadline: Deadline, who: str, error: Any) -> StoreError:
    """TLS and tokens in words of their own."""
    code, why = error.code().name, error.details() or ""
    if code == "UNAUTHENTICATED":
        return AccessDenied(f"shard {who} does not let us in: {why}")
    if code == "UNAVAILABLE":
        try:
            await _require_trust(address, access, deadline, who)
        except AccessDenied as denied:
            return denied
    return ShardUnavailable(f"shard {who} cannot be reached: {why or code}")


async def _require_trust(address: str, access: Access, deadline: Deadline, who: str) -> None:
    """Shake hands once without gRPC, which says little of what was wrong, and that on our standard error."""
    from kvstore.security.probe import tls_trouble

    trouble = await tls_trouble(address, access, deadline.left_s)
    if trouble is not None:
        raise AccessDenied(f"shard {who}: {trouble}")
