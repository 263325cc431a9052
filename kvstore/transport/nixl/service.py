"""What a shard does for clients that reach it by NIXL: lets them in, and brings what they put.

What a client puts is pulled into a *landing arena* first and copied into the pool from there, as out of a staging
arena that is mapped: a pull may go on for as long as its client is frozen, and slots of the pool must not wait for it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from kvstore.arena import Arena
from kvstore.clients import Clients, Connected
from kvstore.deadline import Deadline
from kvstore.door import refusal
from kvstore.errors import BadRequest, DeadlineExceeded, ShardUnavailable, StagingRejected, StoreError
from kvstore.layout import Layout
from kvstore.meters import Meters
from kvstore.runs import pieces
from kvstore.shard.pull import Slots
from kvstore.transport.nixl.beside import Beside
from kvstore.transport.nixl.hello import PROTOCOL, Hello, json_object
from kvstore.transport.nixl.lanes import MAX_LANES, Lane

SILENT_S = 15.0
"""A client that has said nothing for so long is forgotten: fifteen of its heartbeats (policy)."""
HELLO_TIMEOUT_S = 5.0
MAX_PIECES = 16_384
_WORD = re.compile(r"[A-Za-z0-9_.:-]{0,64}")


class Guest:
    """A client behind its stream. `gone` is set when it is to leave; `turn`: one pull at a time."""

    def __init__(self, client: Connected) -> None:
        self.client = client
        self.gone = asyncio.Event()
        self.turn = asyncio.Lock()
        self.lanes: tuple[Lane, ...] = ()


class Afar:
    """The staging arena of one put that is read over the network (`shard.pull.Afar`)."""

    def __init__(self, service: NixlService, guest: Guest) -> None:
        self._service = service
        self._guest = guest
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @asynccontextmanager
    async def bring(self, rows: Slots, left_s: float) -> AsyncIterator[tuple[Arena, Slots]]:
        """The blocks of staging slots `rows`, in the landing arena. It lasts until the transfer has ended, which may be
        later than `left_s`; that only bounds the wait for room. Raises `StagingRejected`, `DeadlineExceeded`."""
        self._under_way += 1
        self._quiet.clear()
        try:
            async with self._service.pulled(self._guest, rows, left_s) as brought:
                yield brought
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    async def over(self) -> None:
        """Returns when nothing reads the client's staging arena for this put."""
        await self._quiet.wait()


class NixlService:
    """`facts()` is what every client is told; `left` hears of each that has gone, `lost` of the pool's end: it was the
    mover's, which has ended."""

    def __init__(
        self,
        layout: Layout,
        beside: Beside,
        clients: Clients,
        meters: Meters,
        facts: Callable[[], dict[str, Any]],
        left: Callable[[Connected], None],
        lost: Callable[[], None],
    ) -> None:
        self._layout = layout
        self._clients = clients
        self._meters = meters
        self._facts = facts
        self._left = left
        self._lost = lost
        self._beside = beside
        self._landing, self._hands = beside.landing, beside.hands
        self._hands.ended = self._mover_ended
        self._guests: dict[int, Guest] = {}
        self._lanes: tuple[Lane, ...] = ()
        self._asking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises `BadRequest` where NIXL cannot be used."""
        await self._hands.start()

    async def stop(self) -> None:
        for guest in self._guests.values():
            guest.gone.set()
        if self._asking is not None:
            self._asking.cancel()
        await self._beside.stop()

    @property
    def mover_pid(self) -> int:
        return self._hands.pid

    def lanes(self) -> list[Lane]:
        """Lanes in use: of our pulls, and of clients' reads as they say themselves.

        A client names the lanes of all its reads, those of other shards among them. Both ends choose from what both
        have: where our own pulls have shown a lane, a client's further ones are other shards'.
        """
        ours = {lane.lane for lane in self._lanes}
        found = set(self._lanes)
        for guest in self._guests.values():
            found.update([lane for lane in guest.lanes if lane.lane in ours] or guest.lanes)
        return sorted(found)[:MAX_LANES]

    def sweep(self) -> None:
        """To be called about once a second: who is silent leaves."""
        now = time.monotonic()
        for guest in self._guests.values():
            if now - guest.client.heartbeat > SILENT_S:
                guest.gone.set()

    # --- clients ----------------------------------------------------------------------------------------------------

    async def enter(self, said: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """One client's stream: its hello, our answer, and then nothing from us until either side leaves."""
        guest: Guest | None = None
        try:
            try:
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    guest = await self._admit(await anext(said))
                welcome = self._welcome(guest.client)
            except StoreError as error:
                welcome = refusal(error)
            except TimeoutError:
                why = f"its mover has not answered within {HELLO_TIMEOUT_S:g} s (it may be being started again)"
                welcome = refusal(ShardUnavailable(f"{self._name()}: {why}"))
            except StopAsyncIteration:
                return
            yield json.dumps(welcome).encode()
            if guest is None or "error" in welcome:
                return
            await self._until_it_leaves(guest, said)
        finally:
            if guest is not None:
                await self._forget(guest)

    async def _admit(self, data: bytes) -> Guest:
        hello = Hello.unpack(data)
        self._layout.require_same(hello.layout)
        await self._hands.ready()
        client = self._clients.admit(hello.name, hello.pid, None, afar=hello.slots)
        guest = Guest(client)
        self._guests[client.number] = guest
        try:
            await self._hands.ask(
                "add",
                client=client.number,
                agent=hello.agent,
                metadata=base64.b64encode(hello.metadata).decode(),
                base=hello.base,
                slots=hello.slots,
            )
        except BadRequest as error:
            await self._forget(guest)
            raise StagingRejected(f"staging arena: {error}") from None
        except BaseException:
            await self._forget(guest)
            raise
        return guest

    def _name(self) -> str:
        return f"shard {self._facts().get('shard')}"

    def _welcome(self, client: Connected) -> dict[str, Any]:
        facts = self._facts()
        for local in ("door", "calls"):
            facts.pop(local, None)
        if not self._hands.said:
            raise ShardUnavailable(f"{self._name()}: its mover has ended")
        pool = {name: self._hands.said.get(name) for name in ("agent", "metadata", "base", "data")}
        return {
            **facts,
            "client": client.number,
            "nixl": {"protocol": PROTOCOL, **pool, "landing_slots": len(self._landing)},
        }

    async def _until_it_leaves(self, guest: Guest, said: AsyncIterator[bytes]) -> None:
        loop = asyncio.get_running_loop()
        ends = {loop.create_task(self._listen(guest, said)), loop.create_task(guest.gone.wait())}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _listen(self, guest: Guest, said: AsyncIterator[bytes]) -> bool:
        """All that a client says after its hello is which lanes its reads take."""
        async for data in said:
            with contextlib.suppress(BadRequest):
                guest.lanes = _lanes_in(json_object(data))
        return True

    async def _forget(self, guest: Guest) -> None:
        if self._guests.pop(guest.client.number, None) is None:
            return
        guest.gone.set()
        self._clients.leave(guest.client)
        self._left(guest.client)
        with contextlib.suppress(StoreError):
            await self._hands.ask("drop", client=guest.client.number)

    def _mover_ended(self) -> None:
        """Every client has lost sight of the pool: it comes in again, if there is still a pool."""
        for guest in self._guests.values():
            guest.gone.set()
        if self._hands.device:
            self._lost()

    # --- puts -------------------------------------------------------------------------------------------------------

    def afar(self, client: Connected) -> Afar:
        """Where a put of this client comes from. Raises `StagingRejected` once it is gone."""
        guest = self._guests.get(client.number)
        if guest is None:
            raise StagingRejected("the client that owns this staging arena is gone")
        return Afar(self, guest)

    @asynccontextmanager
    async def pulled(self, guest: Guest, rows: Slots, left_s: float) -> AsyncIterator[tuple[Arena, Slots]]:
        """See `Afar.bring`."""
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < guest.client.afar):
            raise StagingRejected(f"a staging slot lies outside the arena of {guest.client.afar} slots")
        if not len(rows):
            yield self._landing.arena, rows
            return
        if len(rows) > len(self._landing):
            raise BadRequest(f"{len(rows)} blocks at once: this shard takes {len(self._landing)} in one put")
        deadline = Deadline(max(1.0, left_s * 1000))
        await _in_time(guest.turn.acquire(), deadline)
        try:
            run = await self._landing.take(len(rows), deadline)
            try:
                await self._pull(guest, rows, run.slots)
                yield self._landing.arena, run.slots
            finally:
                self._landing.give(run)
        finally:
            guest.turn.release()

    async def _pull(self, guest: Guest, rows: Slots, into: Slots) -> None:
        """Returns or raises once nothing of it is under way any more."""
        found = pieces(rows, into)
        if len(found) > MAX_PIECES:
            raise StagingRejected(f"the staging slots of a put lie in {len(found)} pieces: {MAX_PIECES} are allowed")
        began = time.perf_counter()
        moved = await self._hands.ask("pull", client=guest.client.number, pieces=found)
        self._meters.moved(int(moved["descriptors"]), int(moved["size"]), time.perf_counter() - began)
        if not self._lanes and self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask_lanes())

    async def _ask_lanes(self) -> None:
        with contextlib.suppress(StoreError):
            answer = await self._hands.ask("lanes")
            self._lanes = tuple(Lane(lane, device) for lane, device in answer["lanes"])
        self._asking = None


def _lanes_in(said: dict[str, Any]) -> tuple[Lane, ...]:
    """Raises `BadRequest`: these words end up on the page."""
    rows = said.get("lanes")
    if not isinstance(rows, list) or len(rows) > MAX_LANES:
        raise BadRequest("lanes is a list of pairs")
    found = []
    for row in rows:
        if not (
            isinstance(row, list) and len(row) == 2 and all(isinstance(w, str) and _WORD.fullmatch(w) for w in row)
        ):
            raise BadRequest("a lane is a pair of short words")
        found.append(Lane(row[0], row[1]))
    return tuple(found)


async def _in_time(waiting: Any, deadline: Deadline) -> None:
    try:
        async with asyncio.timeout(deadline.left_s):
            await waiting
    except TimeoutError:
        raise DeadlineExceeded(
            "another put of this client is still being pulled: no answer within the deadline"
        ) from None
