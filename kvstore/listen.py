"""Where a shard listens for gRPC: at its port, or at a Unix socket behind the front that has the port and ends TLS."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from kvstore.door import clear_the_way
from kvstore.security import Refusals
from kvstore.settings import Settings

if TYPE_CHECKING:
    import grpc.aio

    from kvstore.security.front import Front


def take_port(server: grpc.aio.Server, host: str, port: int) -> int:
    """The port in use. Raises `OSError` with the reason: gRPC itself only says that it could not."""
    if port:
        with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    where = f"[{host}]" if ":" in host else host
    try:
        return int(server.add_insecure_port(f"{where}:{port}"))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {where}:{port}: {error}") from None


def behind_front(server: grpc.aio.Server, settings: Settings, refusals: Refusals) -> tuple[int, Front]:
    """The port in use, and the front that has it. Raises `OSError`."""
    from kvstore.security.front import Front, bind

    bound = bind(settings.host, settings.port)
    port = int(bound.getsockname()[1])
    inside = settings.socket_path(port, "rpc")
    clear_the_way(inside, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{inside}")
    except RuntimeError as error:
        bound.close()
        raise OSError(f"cannot listen on {inside}: {error}") from None
    finally:
        os.umask(before)
    return port, Front(bound, settings.access, inside, refusals)
