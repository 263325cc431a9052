"""Name resolution that can be abandoned: a resolver that hangs must not hold up the end of the program."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class NameError_(Exception):  # noqa: N801, N818 - NameError is taken
    """A host name without an address."""


def lookup(host: str, port: int, tell: Callable[[list[str], NameError_ | None], object]) -> list[str] | None:
    """The addresses of a host, as text: at once (and ``tell`` is not called) for a literal address, its own answer.

    Any other name is looked up in a daemon thread, which calls ``tell(addresses, error)`` there: asyncio's executor
    would be joined at exit.
    """
    import ipaddress

    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return [host]

    def work() -> None:
        found: list[str] = []
        failure: NameError_ | None = None
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        except (OSError, UnicodeError) as error:
            failure = NameError_(getattr(error, "strerror", None) or str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            tell(found, failure)

    threading.Thread(target=work, name=f"resolve {host}", daemon=True).start()
    return None
