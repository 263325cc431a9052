"""Why a connection to a shard came to nothing: gRPC says little, a handshake of our own says what it is."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from kvstore.security.access import Access, host_of
from kvstore.security.reasons import PLAIN, of_refusing_shard

_LISTEN_S = 1.0
"""For a server's first bytes: one that lets us in speaks first (HTTP/2 settings), one that does not sends its alert."""


async def tls_trouble(address: str, access: Access, left_s: float) -> str | None:
    """One line, or None where TLS is not what stands between us and `address`."""
    context = access.client_context() if access.tls else _curious()
    host, port = host_of(address), int(address.rpartition(":")[2])
    try:
        async with asyncio.timeout(max(0.1, min(left_s, 2.0))):
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except ssl.SSLError as error:
        return of_refusing_shard(error) if access.tls else _speaks_tls(error)
    except (OSError, TimeoutError):
        return None
    try:
        if not access.tls:
            return _speaks_tls(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTEN_S):
                await reader.read(1)
    except ssl.SSLError as error:
        return of_refusing_shard(error)
    except OSError:
        return None
    finally:
        writer.close()
    return None


def _curious() -> ssl.SSLContext:
    """Believes anything and says nothing: only to see whether TLS is spoken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _speaks_tls(error: ssl.SSLError | None) -> str | None:
    if error is not None and (error.reason or "") in PLAIN:
        return None
    return "it speaks TLS and we plain text: give --tls-ca, --tls-cert and --tls-key"
