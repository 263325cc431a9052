"""A shard's membership in etcd: a number, a lease that it renews, its place in the book, and what the others do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstore.errors import BadRequest, StoreError
from kvstore.layout import Layout
from kvstore.membership import View
from kvstore.membership.calls import Entry, EtcdCalls, EtcdSilent
from kvstore.membership.document import Document, folder_of
from kvstore.membership.etcd import ASK_S, Alive, read, view_of
from kvstore.membership.homes import number_of
from kvstore.membership.ownership import Ownership

MARGIN_MS = 250
"""A shard counts its lease as over so much, or a tenth of it if that is more, before etcd may end it (policy)."""
AGAIN_S = 0.2
_TRIES = 100
_log = logging.getLogger("kvstore.membership")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a shard registers as. `founders`: how many shards the store begins with, if it is new."""

    cluster: str
    layout: Layout
    placement: str
    founders: int
    lease_s: int


class Registration:
    """`reserve`, then `join` once the shard serves; `leave` before it ends. For one event loop.

    `changed(view)` is called whenever the members have: the shard drops what it is not the home of any more.
    `lost()` when the others had struck the shard off (its lease had ended): whatever it holds may be old.
    """

    def __init__(
        self,
        calls: EtcdCalls,
        terms: Terms,
        ownership: Ownership,
        changed: Callable[[View], None] = lambda _: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.ownership = ownership
        self.changed = changed
        self.lost = lost
        self.view: View | None = None
        self._calls = calls
        self._terms = terms
        self._folder = folder_of(terms.cluster)
        self._facts: dict[str, Any] = {}
        self._name = ""
        self._again = 0
        self._lease = 0
        self._lease_ms = terms.lease_s * 1000
        self._tasks: list[asyncio.Task[None]] = []
        self._silent_since: float | None = None

    async def reserve(self) -> int:
        """A number that no shard of this store has had. Raises `ShardUnavailable`, `LayoutMismatch`, `BadRequest`."""
        key = f"{self._folder}next"
        for _ in range(_TRIES):
            entries, _ = await self._ask(self._calls.read(self._folder, ASK_S))
            document, _ = read(entries, self._folder)
            if document is not None:
                document.require_same(self._terms.layout, self._terms.placement)
            entry = next((one for one in entries if one.key == key), None)
            number = 0 if entry is None else int(entry.value)
            value, revision = str(number + 1).encode(), 0 if entry is None else entry.revision
            if await self._ask(self._calls.swap(key, value, revision, ASK_S)):
                self.ownership.register(number)
                return number
        raise BadRequest(f"no number could be had in {self._folder}: too many shards register at once")

    async def join(self, facts: dict[str, Any]) -> None:
        """Be a member, under the address of `facts`. Raises as `reserve`."""
        self._facts = facts
        self._name = str(self.ownership.number)
        await self._ask(self._enter())
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep()), loop.create_task(self._watch())]

    async def leave(self) -> None:
        """Publish nothing any more, give the keys to the others, end the lease."""
        self.ownership.leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lease:
            with contextlib.suppress(EtcdSilent, StoreError):
                await self._change(lambda document: document.leave(self._name))
                await self._calls.revoke(self._lease, ASK_S)
        await self._calls.close()

    # --- the lease --------------------------------------------------------------------------------------------------

    async def _enter(self) -> None:
        """A lease, our address under it, our place in the book."""
        asked = _now_ms()
        self._lease, granted_s = await self._calls.grant(self._terms.lease_s, ASK_S)
        self._lease_ms = granted_s * 1000
        await self._say(0)
        name = self._name
        await self._change(self._with_us)
        if name != self._name:
            self.ownership.homes = self.ownership.settled = self.view = None
            self.lost()
        await self._look()
        self._owned_from(asked)

    async def _say(self, epoch: int) -> None:
        """Where we are, and the epoch whose changes we have taken up."""
        key = f"{self._folder}live/{self.ownership.number}"
        await self._calls.put(key, json.dumps({**self._facts, "epoch": epoch}).encode(), self._lease, ASK_S)

    def _with_us(self, document: Document) -> Document:
        """A name that was struck off is not taken again: what it was the home of may be old."""
        document.require_same(self._terms.layout, self._terms.placement)
        if self._name in document.live:
            return document
        while document.knows(self._name):
            self._again += 1
            self._name = f"{self.ownership.number}.{self._again}"
        return document.join(self._name)

    def _owned_from(self, asked_ms: int) -> None:
        self.ownership.renewed(asked_ms + self._lease_ms - max(MARGIN_MS, self._lease_ms // 10))

    async def _keep(self) -> None:
        """Renew three times a lease; while etcd is silent, or the lease has gone, several times a second."""
        while True:
            nap = AGAIN_S
            try:
                asked = _now_ms()
                if await self._calls.renew(self._lease, min(ASK_S, self._lease_ms / 3000)):
                    self._owned_from(asked)
                    nap = self._lease_ms / 3000
                else:
                    self.ownership.until_ms = 0
                    await self._enter()
                    _log.warning("shard %d is a member again, in epoch %d", self.ownership.number, self.ownership.epoch)
                self._heard()
            except Exception as error:  # whatever it is: a lease that nobody renews any more is the end of the shard
                self._unheard(error)
            await asyncio.sleep(nap)

    def _heard(self) -> None:
        if self._silent_since is not None:
            _log.warning("etcd answers again after %.1f s", time.monotonic() - self._silent_since)
            self._silent_since = None

    def _unheard(self, error: Exception) -> None:
        if self._silent_since is None:
            self._silent_since = time.monotonic()
            left = max(0, self.ownership.until_ms - _now_ms()) / 1000
            _log.warning("the lease was not renewed (%s): nothing is published from %.1f s on", error, left)

    # --- the others -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """See every change, and strike off members whose lease has ended."""
        while True:
            try:
                revision = await self._look()
                await self._calls.changed(self._folder, revision)
            except (EtcdSilent, StoreError):
                await asyncio.sleep(AGAIN_S)
            except Exception:
                _log.exception("the members could not be looked at")
                await asyncio.sleep(AGAIN_S)

    async def _look(self) -> int:
        """Take the members as they are now; etcd's revision then."""
        entries, revision = await self._calls.read(self._folder, ASK_S)
        document, alive = read(entries, self._folder)
        if document is None or self._name not in document.live:
            return revision  # not yet a member, or one that comes back
        if self.ownership.number not in alive:
            return revision  # our lease has ended: the next renewal finds that out, and comes back
        gone = [name for name in document.live if number_of(name) not in alive]
        if gone:
            await self._strike_off(entries, document, gone)
            return revision  # which changes the book, or somebody else has: look again
        if document.epoch and document.epoch >= self.ownership.epoch:
            await self._take(view_of(document, alive, self.view), alive)
        return revision

    async def _take(self, view: View, alive: dict[int, Alive]) -> None:
        """An epoch is settled once every member has taken it up: what it lost is out of its index then."""
        ownership = self.ownership
        if self.view is None or (view.epoch, view.members) != (self.view.epoch, self.view.members):
            if view.epoch != ownership.epoch or ownership.homes is None:
                ownership.homes, ownership.epoch = view.homes, view.epoch
            self.view = view
            self.changed(view)
        if alive[ownership.number].epoch < view.epoch:
            await self._say(view.epoch)
        others = [alive[member.number].epoch for member in view.members if member.number != ownership.number]
        if all(epoch >= view.epoch for epoch in others) and view.epoch == ownership.epoch:
            ownership.settled = ownership.homes

    async def _strike_off(self, entries: list[Entry], document: Document, gone: list[str]) -> None:
        """Only those whose lease has ended at that very moment; if somebody else was quicker, it is done."""
        after = document
        for name in gone:
            after = after.leave(name)
        if after == document:
            return  # the last one stays in the book
        key = f"{self._folder}members"
        revision = next(entry.revision for entry in entries if entry.key == key)
        absent = [f"{self._folder}live/{number_of(name)}" for name in gone]
        await self._calls.swap(key, after.as_bytes(), revision, ASK_S, absent=absent)

    async def _change(self, change: Callable[[Document], Document]) -> Document:
        """Read, change, compare and swap, until nobody came between; the document as it is then."""
        key, terms = f"{self._folder}members", self._terms
        for _ in range(_TRIES):
            entries, _ = await self._calls.read(self._folder, ASK_S)
            document, _ = read(entries, self._folder)
            after = change(document or Document(terms.layout, terms.placement, terms.founders))
            if after == document:
                return after
            revision = next((one.revision for one in entries if one.key == key), 0)
            if await self._calls.swap(key, after.as_bytes(), revision, ASK_S):
                return after
        raise BadRequest(f"{key} could not be changed: too many shards come and go at once")

    async def _ask(self, asked: Any) -> Any:
        """For a shard that starts: without etcd it does not."""
        try:
            return await asked
        except EtcdSilent as error:
            raise BadRequest(f"cannot register: {error}") from None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
