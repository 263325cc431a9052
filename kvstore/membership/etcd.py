"""A client's look at the members of a store that registered in etcd."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, ShardUnavailable
from kvstore.membership import Member, View
from kvstore.membership.calls import Entry, EtcdCalls, EtcdSilent, endpoints_of, unavailable
from kvstore.membership.document import Document, folder_of
from kvstore.security import Access

AGAIN_S = 0.2
ASK_S = 2.0


class Etcd:
    """See `Membership`; made by `of`."""

    def __init__(self, calls: EtcdCalls, cluster: str) -> None:
        self._calls = calls
        self._cluster = cluster
        self._folder = folder_of(cluster)
        self._revision = 0
        self._seen: View | None = None

    @classmethod
    def of(cls, target: str, access: Access) -> Etcd:
        """`etcd://HOST:PORT,HOST:PORT/NAME`, or `etcds://` for TLS. Raises `BadRequest`."""
        where, _, cluster = target.rpartition("/")
        endpoints, tls = endpoints_of(where, access)
        return cls(EtcdCalls(endpoints, access, tls=tls), cluster)

    async def view(self, deadline: Deadline) -> View:
        """Waits, within the deadline, for the founders to be complete."""
        why = f"no store {self._cluster!r} is registered in etcd"
        while True:
            try:
                document, alive = await self._read(min(ASK_S, max(0.05, deadline.left_s)))
                if document is not None and document.epoch:
                    self._seen = view_of(document, alive, self._seen)
                    return self._seen
                if document is not None:
                    count, wanted = len(document.first), document.founders
                    why = f"{count} of the {wanted} founding shards of {self._cluster!r} are there"
            except EtcdSilent as error:
                if deadline.passed:
                    raise unavailable(error) from None
                why = str(error)
            if deadline.passed:
                raise ShardUnavailable(f"{why}, after {deadline.allowed_ms:g} ms")
            await asyncio.sleep(min(AGAIN_S, deadline.left_s))

    async def newer(self, than: View) -> View:
        while True:
            try:
                document, alive = await self._read(ASK_S)
                if document is not None and document.epoch:
                    found = view_of(document, alive, than)
                    if (found.epoch, found.members) != (than.epoch, than.members):
                        return found
                await self._calls.changed(self._folder, self._revision)
            except (EtcdSilent, BadRequest):
                await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        await self._calls.close()

    async def _read(self, timeout_s: float) -> tuple[Document | None, dict[int, Alive]]:
        entries, self._revision = await self._calls.read(self._folder, timeout_s)
        return read(entries, self._folder)


@dataclass(frozen=True, slots=True)
class Alive:
    """What a shard says of itself under its lease: where it is, and the last epoch whose handover it has done."""

    address: str
    epoch: int = 0


def read(entries: list[Entry], folder: str) -> tuple[Document | None, dict[int, Alive]]:
    """The document, if there is one, and the shards whose lease runs, by number."""
    document: Document | None = None
    alive: dict[int, Alive] = {}
    for entry in entries:
        name = entry.key.removeprefix(folder)
        if name == "members":
            document = Document.from_bytes(entry.value)
        elif name.startswith("live/") and name[5:].isdecimal():
            try:
                said = json.loads(entry.value)
                alive[int(name[5:])] = Alive(str(said["address"]), int(said["epoch"]))
            except (ValueError, KeyError, TypeError):
                raise BadRequest(f"{entry.key} in etcd cannot be read") from None
    return document, alive


def view_of(document: Document, alive: dict[int, Alive], before: View | None = None) -> View:
    """Members whose lease has ended stay in the book until the others have struck them off: they are named without
    being reached."""
    if before is not None and before.epoch == document.epoch and before.homes is not None:
        homes = before.homes
    else:
        homes = document.homes(before.homes if before is not None else None)
    members = tuple(Member(alive[number].address, number) for number in sorted(homes.live) if number in alive)
    return View(document.epoch, members, homes)
