"""`nixl`, as a client has it: two agents of its own, a stream to each shard, and a peer for its pool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvstore.arena import Arena
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, LayoutMismatch, ShardUnavailable, StoreError, decode
from kvstore.header import Bytes
from kvstore.layout import Layout
from kvstore.security import Access
from kvstore.transport.nixl.hello import PROTOCOL, Hello, agent_of, metadata_of, number
from kvstore.transport.nixl.landing import Landing
from kvstore.transport.nixl.lanes import Lane, lanes_of
from kvstore.transport.nixl.library import ucx_log
from kvstore.transport.nixl.owner import Owner
from kvstore.transport.nixl.peer import NixlPeer
from kvstore.transport.nixl.regions import Regions

if TYPE_CHECKING:
    from kvstore.transport.device.cuda import CudaDevice

_log = logging.getLogger("kvstore.transport.nixl")

ENTER = "/kvstore.Shard/Enter"
LANDING_BYTES = 32 << 20
GOODBYE_S = 0.2
_MAX_BLOCKS = 1 << 32


@dataclass(frozen=True, slots=True)
class _Agents:
    """What all shards of one client share: who reads, who serves staging, and where reads land."""

    reads: Owner
    serves: Owner
    metadata: bytes
    regions: Regions
    landing: Landing


class NixlTransport:
    """Agents are made when the first shard is reached."""

    name = "nixl"

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._staging: Arena | None = None
        self._making = asyncio.Lock()
        self._agents: _Agents | None = None
        self._streams: set[asyncio.Task[None]] = set()
        self._cards = True
        """As far as we know, reads can land on GPUs."""

    def register(self, arena: Arena) -> None:
        self._staging = arena

    def card_buffer(self, card: CudaDevice, n: int) -> Bytes | None:
        """Memory on a GPU that reads can land in: an address `[n, slot_bytes]`, not to be looked into. None where NIXL
        cannot have it, which is said once."""
        if self._agents is None or not self._cards:
            return None
        try:
            return self._agents.regions.make(n, card).array()
        except StoreError as error:
            self._cards = False
            _log.warning("blocks over the network reach %s by way of the host: %s", card.name, error)
            return None

    def buffer(self, n: int) -> Bytes | None:
        """Room for a get of `n` blocks that reads land in straight; None before a shard was reached."""
        return None if self._agents is None or n < 1 else self._agents.regions.make(n).array()

    def lanes(self) -> list[Lane]:
        """The lanes that reads of this process take, as UCX said when it chose them."""
        return lanes_of(ucx_log())

    async def connect(
        self, described: dict[str, Any], layout: dict[str, Any], name: str, deadline: Deadline
    ) -> NixlPeer:
        """See `Transport.connect`; `described["reached"]` is the address that it was reached at, `"access"` how."""
        if not described.get("nixl"):
            raise ShardUnavailable(
                f"shard {described.get('shard')} ({described['reached']}) does not offer nixl: start it with --nixl"
            )
        staging = self._staging
        if staging is None:
            raise BadRequest("register a staging arena before connecting")
        agents = await self._made(staging)
        base = int(staging.slots.ctypes.data)
        hello = Hello(Layout(**layout), name, os.getpid(), agents.serves.name, agents.metadata, base, len(staging))
        stream = Stream(str(described["reached"]), described.get("access"))
        try:
            facts = _checked(await stream.open(hello.pack(), deadline))
            return await self._meet(agents, stream, facts, deadline)
        except BaseException:
            await stream.close()
            raise

    async def _meet(self, agents: _Agents, stream: Stream, facts: dict[str, Any], deadline: Deadline) -> NixlPeer:
        facts["address"] = stream.address

        peer = NixlPeer(facts, agents.reads, agents.regions, agents.landing, stream.hang_up)
        watching = asyncio.get_running_loop().create_task(self._watch(stream, peer))
        self._streams.add(watching)
        watching.add_done_callback(self._streams.discard)
        await peer.meet(metadata_of(facts["nixl"]), deadline)
        with contextlib.suppress(StoreError):
            await stream.tell({"lanes": [[lane.lane, lane.device] for lane in self.lanes()]})
        return peer

    async def _watch(self, stream: Stream, peer: NixlPeer) -> None:
        """The stream's end is the connection's."""
        try:
            await stream.ended()
            peer.lose("its connection has ended")
            if not stream.goodbye and await stream.refused():
                peer.dead = True
                if peer.when_dead is not None:
                    peer.when_dead()
        finally:
            peer.lose("the connection was closed")
            peer.when_dead = None  # it leads back to the client, whose arenas would wait for a collection
            await stream.close()

    async def _made(self, staging: Arena) -> _Agents:
        async with self._making:
            if self._agents is None:
                self._agents = await asyncio.to_thread(_make_agents, staging)
            return self._agents

    async def leave(self) -> None:
        """Every stream ends, and then the agents: these even if whoever waits for it has no more time."""
        try:
            for stream in list(self._streams):
                stream.cancel()
            await asyncio.gather(*self._streams, return_exceptions=True)
        finally:
            agents, self._agents = self._agents, None
            if agents is not None:
                agents.reads.close()
                agents.serves.close()

    def close(self) -> None:
        self._staging = None


def _make_agents(staging: Arena) -> _Agents:
    """Takes some tens of milliseconds."""
    serves, reads = Owner("staging", serves=True), Owner("reader", serves=False)
    base, size, slot_bytes = int(staging.slots.ctypes.data), staging.slots.nbytes, staging.slot_bytes
    serves.call(lambda agent: agent.register(base, size))
    regions = Regions(reads, slot_bytes)
    landing = Landing(regions, max(2, LANDING_BYTES // slot_bytes), slot_bytes)
    return _Agents(reads, serves, serves.call(lambda agent: agent.metadata), regions, landing)


class Stream:
    """The open call to one shard whose end is the connection's end."""

    def __init__(self, address: str, access: Access | None = None) -> None:
        from kvstore.calls.rpc import channel_to

        self.address = address
        self.goodbye = False
        self._channel: Any = channel_to(address, access)
        self._call: Any = None

    async def open(self, hello: bytes, deadline: Deadline) -> dict[str, Any]:
        """The shard's answer. Raises `ShardUnavailable`."""
        import grpc.aio

        self._call = self._channel.stream_stream(ENTER)()
        try:
            async with asyncio.timeout(deadline.left_s):
                await self._call.write(hello)
                data = await self._call.read()
        except TimeoutError:
            raise ShardUnavailable(f"{self.address} has not answered within {deadline.allowed_ms:g} ms") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            raise ShardUnavailable(f"{self.address} cannot be reached: {why}") from None
        if data is grpc.aio.EOF:
            raise ShardUnavailable(f"{self.address} closed the connection")
        said = json.loads(data)
        if "error" in said:
            raise _refused(said)
        found: dict[str, Any] = said
        return found

    async def tell(self, said: dict[str, Any]) -> None:
        """Raises `ShardUnavailable`."""
        import grpc.aio

        try:
            await self._call.write(json.dumps(said).encode())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ShardUnavailable(f"{self.address}: {error}") from None

    async def ended(self) -> None:
        """Returns when the shard says no more (it says nothing after its welcome), or we have hung up."""
        import grpc.aio

        with contextlib.suppress(grpc.aio.AioRpcError):
            try:
                while await self._call.read() is not grpc.aio.EOF:
                    pass
            except asyncio.CancelledError:
                if _being_cancelled():
                    raise  # else it was hung up

    async def refused(self) -> bool:
        """Whether nobody listens there any more: the process has ended."""
        host, _, port = self.address.rpartition(":")
        try:
            async with asyncio.timeout(1.0):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    def hang_up(self, *, goodbye: bool) -> None:
        """We want no more of it: `ended` returns. `goodbye`: since we are done, not since something is wrong."""
        self.goodbye = self.goodbye or goodbye
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        """Say goodbye, and hear the end of it."""
        if self._call is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(GOODBYE_S):
                    await self._call.done_writing()
                    await self.ended()
            self._call.cancel()
            with contextlib.suppress(Exception):
                async with asyncio.timeout(GOODBYE_S):
                    await self._call.code()
        await self._channel.close()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _refused(said: dict[str, Any]) -> StoreError:
    error = decode(int(said["error"]), str(said.get("text", "")))
    if isinstance(error, LayoutMismatch):
        error.field = str(said.get("field", ""))
    return error


def _checked(facts: dict[str, Any]) -> dict[str, Any]:
    """What the rest relies on. Raises `BadRequest`."""
    pool = facts.get("nixl")
    if not isinstance(pool, dict) or pool.get("protocol") != PROTOCOL:
        raise BadRequest(f"the shard does not speak nixl protocol {PROTOCOL}")
    agent_of(pool)
    metadata_of(pool)
    for field, most in (("base", 1 << 63), ("landing_slots", 1 << 32)):
        number(pool, field, most)
    number(facts, "blocks", _MAX_BLOCKS)
    data = pool.get("data")
    if data is not None:
        if not isinstance(data, dict) or type(data.get("gpu")) not in (int, type(None)):
            raise BadRequest("the shard does not say where the data of its blocks lies")
        number(data, "base", 1 << 63)
    return facts
