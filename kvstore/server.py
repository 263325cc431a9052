"""One shard as a process: calls (gRPC, frames), the door for descriptors, a sweeper, heartbeats to its peers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstore import messages as m
from kvstore import wire
from kvstore.addresses import read_cluster
from kvstore.arena import Arena
from kvstore.calls.frames import FrameServer
from kvstore.calls.turns import Turns
from kvstore.clients import Clients, Connected
from kvstore.door import PROTOCOL, Door, refusal
from kvstore.errors import BadRequest, ClientUnknown, LogFailed, ShardUnavailable, StoreError
from kvstore.listen import behind_front, take_port
from kvstore.peers import Peers
from kvstore.security import Refusals
from kvstore.settings import Settings, default_run_dir, make_run_dir

if TYPE_CHECKING:
    import grpc
    import grpc.aio

    from kvstore.membership import View
    from kvstore.membership.homes import Homes
    from kvstore.membership.registration import Registration
    from kvstore.page import MetricsServer
    from kvstore.page.figures import Transport
    from kvstore.security.front import Front
    from kvstore.shard import Shard
    from kvstore.transport.device.arena import DeviceArena
    from kvstore.transport.nixl.beside import Beside
    from kvstore.transport.nixl.service import NixlService

SWEEP_INTERVAL_S = 0.1
SEND_S = 0.2
ENTER = "Enter"
"""The method by which clients come in that cannot pass descriptors: a stream (`transport.nixl.hello`)."""
_log = logging.getLogger("kvstore.server")

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", wire.MAX_BYTES),
    ("grpc.max_send_message_length", wire.MAX_BYTES),
]
_SERVER_OPTIONS = [
    *CHANNEL_OPTIONS,
    ("grpc.so_reuseport", 0),  # a second shard on the same port is an error, not a coin toss
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),  # those that waited while the shard was stopped come all at once
    ("grpc.keepalive_permit_without_calls", 1),
]


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ShardServer:
    """Serves `shard` until stopped. `failed` is done with a `StoreError` when the shard must not go on."""

    def __init__(
        self,
        shard: Shard,
        settings: Settings,
        registration: Registration | None = None,
        beside: Beside | None = None,
    ) -> None:
        """`beside`: the mover that holds the shard's pool, where that lies on a device and is offered by NIXL."""
        self.registration = registration
        self._beside = beside
        self.shard = shard
        self.settings = settings
        self.clients = Clients()
        self.peers = Peers(settings.access)
        self.refusals = Refusals()
        self.instance = f"{secrets.randbits(64):016x}"
        self.port = 0
        self.metrics_url = ""
        self.failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        self._grpc: grpc.aio.Server | None = None
        self._front: Front | None = None
        self._turns = Turns()
        self._frames: FrameServer | None = None
        self._door: Door | None = None
        self._nixl: NixlService | None = None
        self._page: MetricsServer | None = None
        self._pidfd = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._work: set[asyncio.Task[Any]] = set()
        self._answering = 0
        self._ending = False
        self._lost: ShardUnavailable | None = None
        """Once the pool is gone with the process that held it."""

    async def start(self) -> None:
        """Bind everything. Raises `OSError` (port in use, no permission) or `BadRequest` (run directory)."""
        make_run_dir(self.settings.run_dir or default_run_dir())
        await self._serve_nixl()
        self._grpc = self._new_grpc()
        self._listen(self._grpc)
        self._frames = FrameServer(self._socket("calls"), self._answer, self.refusals, self._turns)
        await self._serve_page()
        self._pidfd = os.pidfd_open(os.getpid())
        self._door = self._new_door()
        self._door.open()
        await self._frames.start()
        await self._grpc.start()
        if self._front is not None:
            self._front.start()
        self._meet()
        self._tasks = [asyncio.create_task(self._sweep()), asyncio.create_task(self.peers.watch())]
        await self._register()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Leave the other members, answer what is in flight, take nothing new, let the log end, remove the sockets."""
        if self.registration is not None:
            await self.registration.leave()
        self._ending = True
        end = time.monotonic() + grace_s
        while (self._answering or self._work) and time.monotonic() < end and self._lost is None:
            await asyncio.sleep(0.01)
        if self._grpc is not None:
            # gRPC waits so long for clients to hang up, whatever is in flight: only what it takes to send answers.
            await self._grpc.stop(min(grace_s, SEND_S))
        if self._front is not None:
            self._front.close()
            self._socket("rpc").unlink(missing_ok=True)
        if self._nixl is not None:
            await self._nixl.stop()
        elif self._beside is not None:
            await self._beside.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._page is not None:
            await self._page.close()
        if self._door is not None:
            await self._door.close()
        if self._frames is not None:
            await self._frames.stop()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        await self.shard.close()

    async def _serve_nixl(self) -> None:
        """Raises `BadRequest` where NIXL is asked for and cannot be used."""
        if not self.settings.nixl:
            return
        from kvstore.transport.nixl.beside import Beside
        from kvstore.transport.nixl.service import NixlService

        layout, pool = self.settings.layout, self.shard.pool.arena
        if self._beside is None:
            assert isinstance(pool, Arena)  # who made a pool on a device has made its mover before
            self._beside = Beside.of(layout, pool)
        self._nixl = NixlService(
            layout, self._beside, self.clients, self.shard.meters, self.facts, self._left, self._pool_lost
        )
        await self._nixl.start()

    def _pool_lost(self) -> None:
        """Nothing is answered from it any more, and the shard ends."""
        what = f"the process that held its pool on {self.settings.device} (its mover) has ended, and the pool with it"
        self._lost = ShardUnavailable(f"shard {self.settings.shard}: {what}")
        self._ending = True
        if self._door is not None:
            self._begin(self._door.close())
        if not self.failed.done():
            self.failed.set_result(ShardUnavailable(what))

    def _ways(self) -> list[Transport]:
        """Transports in use beside `mapped`: one row a lane, and one without a lane until a first transfer shows it."""
        from kvstore.page.figures import Transport

        if self._nixl is None:
            return []
        return [Transport("nixl", lane.lane, lane.device) for lane in self._nixl.lanes()] or [Transport("nixl", "")]

    async def _serve_page(self) -> None:
        """`/metrics`, on this loop. Raises `OSError` (port in use)."""
        host = self.settings.page_host
        if self.settings.metrics_port is None:
            return
        from kvstore.page import ShardSource, StoreCollector, serve_metrics

        source = ShardSource(self.shard, self.settings, self.clients, self.peers, self._ways, self.refusals)
        try:
            self._page = await serve_metrics(StoreCollector(source), host, self.settings.metrics_port)
        except OSError as error:
            error.filename = f"{host}:{self.settings.metrics_port} (metrics)"
            raise
        self.metrics_url = self._page.url

    async def _register(self) -> None:
        """Once everything is answered here: be a member, and hear of the others. Raises `BadRequest`, …"""
        if self.registration is None:
            return
        self.shard.drop_tails()
        self.registration.changed = self._members_changed
        self.registration.lost = lambda: self._drop_moved(None)
        await self.registration.join({"address": self.settings.address(self.port), "instance": self.instance})

    def _new_door(self) -> Door:
        pool, device = self.shard.pool, self._on_device
        fds = [pool.arena.memory.fd, pool.index.memory.fd, self._pidfd, *(device.exported.fds if device else [])]
        where, layout = self._socket("door"), self.settings.layout
        return Door(where, layout, self.clients, fds, self._welcome, self._left, self.refusals, device)

    @property
    def _on_device(self) -> DeviceArena | None:
        """The pool, where it lies on a device."""
        from kvstore.transport.device.arena import DeviceArena

        arena = self.shard.pool.arena
        return arena if isinstance(arena, DeviceArena) else None

    def _members_changed(self, view: View) -> None:
        self._drop_moved(view.homes)
        others = {str(one.number): one.address for one in view.members if one.number != self.settings.shard}
        self.peers.meet(others)

    def _drop_moved(self, homes: Homes | None) -> None:
        try:
            count = self.shard.drop_moved(homes)
        except StoreError as error:
            self._noticed(error)
            return
        if count:
            _log.warning("%d blocks were let go: their home is another shard now", count)

    @property
    def _epoch(self) -> int:
        return self.shard.core.ownership.epoch

    def _meet(self) -> None:
        """Learn of the other shards from the cluster file, which may be written after we have started."""
        path = self.settings.cluster_file
        if self.registration is None and path is not None and path.exists():
            with contextlib.suppress(BadRequest):
                others = {str(shard["shard"]): str(shard["address"]) for shard in read_cluster(path)}
                others.pop(str(self.settings.shard), None)
                self.peers.meet(others)

    def facts(self) -> dict[str, Any]:
        """What everybody may know of this shard."""
        return {
            "protocol": PROTOCOL,
            "shard": self.settings.shard,
            "shards": self.settings.shards,
            "instance": self.instance,
            "pid": os.getpid(),
            "layout": json.loads(self.settings.layout.as_json()),
            "blocks": len(self.shard.pool),
            "placement": self.settings.placement,
            "durability": int(self.settings.durability),
            "session_ttl_ms": self.settings.session_ttl_ms,
            "address": self.settings.address(self.port),
            "door": str(self._socket("door")),
            "calls": str(self._socket("calls")),
            "nixl": self._nixl is not None,
            "pool_on": self.settings.device or "host",
            "pool_pid": os.getpid() if self._beside is None else self._beside.pool_pid,
            "cluster": self.settings.cluster,
            "epoch": self._epoch,
            "metrics": self.metrics_url,
        }

    def _welcome(self) -> dict[str, Any]:
        """The facts, for who came through the door: how memory of a device is opened is for nobody else."""
        device = self._on_device
        return self.facts() if device is None else {**self.facts(), "device": device.exported.words}

    def _listen(self, server: grpc.aio.Server) -> None:
        """Take the port: for gRPC itself, or for the front that ends TLS before it. Raises `OSError`."""
        settings = self.settings
        if settings.access.tls:
            self.port, self._front = behind_front(server, settings, self.refusals)
        else:
            self.port = take_port(server, settings.host, settings.port)

    def _socket(self, kind: str) -> Path:
        return self.settings.socket_path(self.port, kind)

    def _new_grpc(self) -> grpc.aio.Server:
        import grpc
        import grpc.aio

        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(message)) for message, name in wire.METHODS.items()
        }
        handlers["Describe"] = grpc.unary_unary_rpc_method_handler(self._describe)
        handlers[ENTER] = grpc.stream_stream_rpc_method_handler(self._enter)
        gates: list[Any] = []
        if self.settings.access.token is not None:
            from kvstore.security.gate import gate

            gates = [gate(self.settings.access.token, self.refusals)]
        server = grpc.aio.server(options=_SERVER_OPTIONS, interceptors=gates)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, handlers),))
        return server

    async def _describe(self, _request: bytes, _context: Any) -> bytes:
        return json.dumps(self.facts()).encode()

    async def _enter(self, said: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        """One client that comes in by NIXL, until it leaves."""
        if self._nixl is None or self._ending:
            why = "is ending" if self._ending else "does not offer nixl: start it with --nixl"
            yield json.dumps(refusal(ShardUnavailable(f"shard {self.settings.shard} {why}"))).encode()
            return
        async for answer in self._nixl.enter(said):
            yield answer

    def _handler(self, expected: type[Any]) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def answer(data: bytes, _context: Any) -> bytes:
            await self._turns.mine(wire.asker(data), len(data))
            return await self._answer(data, expected)

        return answer

    async def _answer(self, data: bytes, expected: type[Any] | None = None) -> bytes:
        """The packed reply to a packed request (of the kind that its method names), or its error."""
        self._answering += 1
        try:
            if self._ending:
                raise ShardUnavailable(f"shard {self.settings.shard} is ending")
            envelope, message = wire.unpack_request(data)
            kind = type(message)
            if kind not in wire.METHODS or kind is not (expected or kind):
                where = "where only requests go" if expected is None else f"to the method {expected.__name__}"
                raise BadRequest(f"a {kind.__name__} was sent {where}")
            reply = await self._perform(envelope, message)
            if self._lost is not None:
                raise self._lost
            return wire.pack_reply(self.shard.clock.now, reply, self._epoch)
        except StoreError as error:
            self._noticed(error)
            if isinstance(error, BadRequest | ClientUnknown):
                self.refusals.note("request", "a request", str(error))
            return wire.pack_error(self.shard.clock.now, error, self._epoch)
        except Exception:
            _log.exception("a request failed")
            return wire.pack_error(self.shard.clock.now, StoreError("a fault of the shard; its output says more"))
        finally:
            self._answering -= 1

    async def _perform(self, envelope: m.Envelope, message: Any) -> Any:
        """The answer to one request. What changes the store runs to its end even if the asker gives up."""
        if isinstance(message, m.Ping):
            return m.Pong(self.settings.shard, now_ms())
        if isinstance(message, wire.Cancel):
            return await self._cancel(envelope, message)
        client = self.clients.known(envelope.client)
        if isinstance(message, m.Measured):
            client.measured[message.lane] = message.bytes_per_second
            return m.Pong(self.settings.shard, now_ms())
        if not isinstance(message, m.Put | m.Append | m.Remove):
            return await self.shard.answer(envelope, message, None)
        if client.afar and not isinstance(message, m.Remove):
            told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            told.add_done_callback(lambda done: done.cancelled() or done.exception())  # its asker may have given up
            self._begin(self._write_from_afar(client, envelope, message, told))
            return await asyncio.shield(told)
        return await asyncio.shield(self._begin(self._write(client, envelope, message)))

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        work = asyncio.create_task(coroutine)
        self._work.add(work)
        work.add_done_callback(self._done)
        return work

    def _done(self, work: asyncio.Task[Any]) -> None:
        """Also of one whose asker gave up: its failure is seen all the same."""
        self._work.discard(work)
        error = None if work.cancelled() else work.exception()
        if isinstance(error, StoreError):
            self._noticed(error)

    async def _write(self, client: Connected, envelope: m.Envelope, message: Any) -> Any:
        if isinstance(message, m.Remove):
            return await self.shard.answer(envelope, message, None)
        with client.pulling(envelope.ticket) as staging:
            return await self.shard.answer(envelope, message, staging)

    async def _write_from_afar(
        self, client: Connected, envelope: m.Envelope, message: Any, told: asyncio.Future[Any]
    ) -> None:
        """The answer goes to `told` in time; the ticket is in use until nothing reads the client's memory any more."""
        assert self._nixl is not None
        afar = None
        try:
            with client.pulling(envelope.ticket):
                try:
                    afar = self._nixl.afar(client)
                    told.set_result(await self.shard.answer(envelope, message, afar))
                except Exception as error:
                    told.set_exception(error)
                    if isinstance(error, StoreError):
                        self._noticed(error)
                if afar is not None:
                    await afar.over()
        except StoreError as error:
            if not told.done():
                told.set_exception(error)

    async def _cancel(self, envelope: m.Envelope, message: wire.Cancel) -> wire.Cancelled:
        """A client that is not known here (any more) has no pull running."""
        client = self.clients.get(envelope.client)
        if client is not None:
            await client.cancel(message.tickets.tolist())
        return wire.Cancelled(message.tickets)

    def _noticed(self, error: StoreError) -> None:
        if isinstance(error, LogFailed) and not self.failed.done():
            self.failed.set_result(error)

    def _left(self, client: Connected) -> None:
        self.shard.forget_client(client.number)

    async def _sweep(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(SWEEP_INTERVAL_S)
            if turn % 10 == 0:
                self._meet()
                if self._nixl is not None:
                    self._nixl.sweep()
            try:
                self.shard.sweep(now_ms())
            except StoreError as error:
                self._noticed(error)
            except Exception:
                _log.exception("sweep failed")
