"""The operators under test, and a way to break one: a check that cannot fail shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Op = Callable[..., Any]
NAMES = (
    "append", "gather", "scatter", "paged_decode", "bitmap_allocate", "bitmap_free", "bitmap_count",
    "block_table_update", "token_slots", "page_table",
)  # fmt: skip


def operator(name: str, wrong: str = "") -> Op:
    """The operator `name`; broken by one index where it is `wrong`."""
    op = _all()[name]
    return _BROKEN[name](op) if name == wrong else op


def _all() -> dict[str, Op]:
    from kvstore.kernels.append import append
    from kvstore.kernels.bitmap import bitmap_allocate, bitmap_count, bitmap_free
    from kvstore.kernels.decode import paged_decode
    from kvstore.kernels.moves import gather, scatter
    from kvstore.kernels.tables import block_table_update, page_table, token_slots

    found: tuple[Any, ...] = (
        append, gather, scatter, paged_decode, bitmap_allocate, bitmap_free, bitmap_count,
        block_table_update, token_slots, page_table,
    )  # fmt: skip
    return dict(zip(NAMES, found, strict=True))


def _moved(op: Op) -> Op:
    return lambda pool, blocks, staging: op(pool, blocks + 1, staging)


def _appended(op: Op) -> Op:
    return lambda key, value, cache, slots, *scales: op(key, value, cache, slots + 1, *scales)


def _decoded(op: Op) -> Op:
    def broken(query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, *rest: Any, **more: Any):  # type: ignore[no-untyped-def]
        return op(query, keys, values, tables, (lengths - 1).clamp(min=0), *rest, **more)

    return broken


def _allocated(op: Op) -> Op:
    """A slot of the answer stays free: the next request gets it, too."""

    def broken(words: Tensor, state: Tensor, counts: Tensor, out: Tensor, slots: int) -> None:
        op(words, state, counts, out, slots)
        _all()["bitmap_free"](words, state, out[:1, :1].contiguous(), slots)

    return broken


_BROKEN: dict[str, Callable[[Op], Op]] = {
    "append": _appended,
    "gather": _moved,
    "scatter": _moved,
    "paged_decode": _decoded,
    "bitmap_allocate": _allocated,
    "bitmap_free": lambda op: lambda words, state, slots, total: op(words, state, slots + 1, total),
    "bitmap_count": lambda op: lambda words: op(words) + 1,
    "block_table_update": lambda op: lambda table, rows, columns, values: op(table, rows, columns + 1, values),
    "token_slots": lambda op: lambda table, rows, firsts, *rest: op(table, rows, firsts + 1, *rest),
    "page_table": lambda op: lambda table, lengths, *rest: op(table, (lengths - 1).clamp(min=0), *rest),
}
