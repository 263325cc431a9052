"""The client's call sites: one span and one range an operation, whose context every request to a shard carries on.

`Link.call` sends the context of the span that is current, so that methods need not hand it down.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from probes.instrument import Instrument, Span

C = TypeVar("C", bound=type[Any])
Method = Callable[..., Awaitable[Any]]

_site = Instrument("kvstore.client")
_within: ContextVar[bool] = ContextVar("kvstore_client_within", default=False)


def traced_methods(names: Mapping[str, str]) -> Callable[[C], C]:
    """A class decorator: each method named becomes an operation under its span's name.

    The method's option `trace` (a W3C traceparent) is the parent of its span; without it, what is current here.
    """

    def decorate(kind: C) -> C:
        for method, span in names.items():
            setattr(kind, method, _traced(getattr(kind, method), span))
        return kind

    return decorate


def span_of(name: str, what: Any) -> Span:
    """The span of one operation on `what` (with a length, if it is what it should be), for plain code (``with``)."""
    return _site.span(name, kind="client", blocks=_blocks((what,), {}))


@contextmanager
def within() -> Iterator[None]:
    """What is called here belongs to an operation that has its span already."""
    token = _within.set(True)
    try:
        yield
    finally:
        _within.reset(token)


def _traced(method: Method, name: str) -> Method:
    @functools.wraps(method)
    async def call(client: Any, *args: Any, trace: str = "", **options: Any) -> Any:
        if _within.get():
            return await method(client, *args, **options)
        async with _site.span(name, kind="client", parent=trace, blocks=_blocks(args, options)):
            return await method(client, *args, **options)

    return call


def _blocks(args: tuple[Any, ...], options: Mapping[str, Any]) -> int:
    """The rows of the keys (or locations): the first argument that has a length."""
    if args:
        with suppress(TypeError):
            return len(args[0])
    for found in (*args[1:2], options.get("keys"), options.get("what")):
        with suppress(TypeError):
            return len(found)
    return 0
