"""Members that never change: named by the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from kvstore.addresses import addresses_of
from kvstore.deadline import Deadline
from kvstore.membership import STATIC_EPOCH, Member, View


class Static:
    """See `Membership`. Raises `BadRequest` for what names no shards."""

    def __init__(self, targets: str | Path | Sequence[str]) -> None:
        self._view = View(STATIC_EPOCH, tuple(Member(address) for address in addresses_of(targets)))

    async def view(self, deadline: Deadline) -> View:
        return self._view

    async def newer(self, than: View) -> View:
        await asyncio.Event().wait()
        return than

    async def close(self) -> None:
        pass
