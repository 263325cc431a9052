"""Name resolution that can be abandoned: a resolver that hangs must not hold up the end of the program."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading


class NameError_(Exception):  # noqa: N801, N818 - NameError is taken
    """A host name without an address."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as text; a literal address is its own answer. Raises ``NameError_``.

    The look-up runs in a daemon thread of its own: asyncio's executor would be joined at exit.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str], error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(NameError_(getattr(error, "strerror", None) or str(error)))
        else:
            answer.set_result(found)

    def work() -> None:
        found: list[str] = []
        failure: Exception | None = None
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        except (OSError, UnicodeError) as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, found, failure)

    threading.Thread(target=work, name=f"resolve {host}", daemon=True).start()
    return await answer
