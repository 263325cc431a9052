"""The process of one shard: memory, log and server up, then until a signal or a failure; and the exit code."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from kvstore.descriptors import raise_limit
from kvstore.errors import BadRequest, LogFailed, StoreError
from kvstore.memory import MIB, require_memory
from kvstore.messages import Durability
from kvstore.settings import Settings
from probes.instrument import InstrumentError, configure

if TYPE_CHECKING:
    from kvstore.log import Log
    from kvstore.membership.ownership import Ownership
    from kvstore.membership.registration import Registration
    from kvstore.meters import Meters
    from kvstore.server import ShardServer
    from kvstore.shard import Shard
    from kvstore.transport.device.arena import DeviceArena
    from kvstore.transport.nixl.beside import Beside

EXIT_OK = 0
EXIT_FAILED = 1
"""The shard had to stop: its log failed, or its pool on a device is gone with the mover that held it."""
EXIT_USAGE = 2
"""It could not start as it was told to."""


def serve(settings: Settings, *, ready_fd: int = -1, lifeline_fd: int = -1) -> int:
    """Run a shard until SIGTERM or SIGINT; the exit code.

    `ready_fd`: where its facts are written as JSON once it serves. `lifeline_fd`: the shard ends when that pipe does,
    so that it never outlives the process that started it.
    """
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    for line in settings.warnings():
        logging.getLogger("kvstore.serve").warning(line)
    raise_limit()
    require_memory(settings.host_bytes)
    try:
        configure(instance=f"shard-{settings.shard}")
    except InstrumentError as error:
        raise BadRequest(str(error)) from None
    return asyncio.run(_serve(settings, ready_fd, lifeline_fd))


def make_shard(settings: Settings, ownership: Ownership | None = None, arena: DeviceArena | None = None) -> Shard:
    """The shard, recovered from its log if it has one; `arena`: its pool, where its mover holds that (`_held`). Raises
    `LogLocked`, `LogCorrupt`, `LogFailed`, `BadRequest`."""
    from kvstore.bitmap import NaiveBitmap
    from kvstore.meters import Meters
    from kvstore.shard import Shard
    from kvstore.transport.nixl.library import has_hca

    meters = Meters()
    log = _open_log(settings, meters)
    shard = Shard.create(
        settings.layout,
        settings.blocks,
        device=settings.device,
        arena=arena,
        sealed=not (settings.nixl and has_hca()),
        bitmap=NaiveBitmap(settings.blocks, drain_s=settings.drain_us / 1e6) if settings.naive_bitmap else None,
        number=settings.shard,
        log=log,
        durability=settings.durability,
        meters=meters,
        ownership=ownership,
    )
    try:
        shard.recover(drop_surplus=settings.drop_surplus)
    except BaseException:
        if log is not None:
            log.close()
        raise
    return shard


def _open_log(settings: Settings, meters: Meters) -> Log | None:
    if settings.durability is Durability.NONE or settings.log_dir is None:
        return None
    from kvstore.log import Log, LogConfig
    from kvstore.shard.journal import durability_of, shape_of

    layout = settings.layout
    pool = settings.blocks * layout.block_bytes
    # Sixteen segments of a quarter of the pool: four times its size, so that rewriting stays rare.
    segment = min(64 * MIB, max(MIB, 16 * layout.block_bytes, -(-pool // 4)))
    config = LogConfig(
        shape_of(layout),
        durability_of(settings.durability),
        segment_bytes=-(-segment // MIB) * MIB,
        layout=layout.as_json(),
        drop_damaged=settings.drop_damaged,
    )
    return Log(settings.log_dir, config, stats=meters)


async def _serve(settings: Settings, ready_fd: int, lifeline_fd: int) -> int:
    from kvstore.server import ShardServer

    told = _ears(lifeline_fd)
    settings, registration = await _registered(settings)
    beside, arena = await _held(settings)
    try:
        shard = make_shard(settings, registration.ownership if registration is not None else None, arena)
    except BaseException:
        if beside is not None:
            await beside.stop()
        raise
    server = ShardServer(shard, settings, registration, beside)
    try:
        await server.start()
    except OSError as error:
        await server.stop(0)
        raise BadRequest(_why_not(settings, error)) from None
    except BaseException:
        await server.stop(0)
        raise
    stuck: LogFailed | None = None
    try:
        _tell(server, ready_fd)
        failure = await _until_told(server, told)
    finally:
        try:
            await server.stop()
        except LogFailed as error:
            stuck = error
    failure = failure or stuck
    if failure is not None:
        print(f"kvstore serve: shard {settings.shard} stops: {failure}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


async def _held(settings: Settings) -> tuple[Beside | None, DeviceArena | None]:
    """The mover that has the pool, and the pool, where it lies on a device and is offered by NIXL: who registers memory
    must be who has it. It ends with this process. Raises `BadRequest`."""
    if not (settings.nixl and settings.device):
        return None, None
    from kvstore.transport.nixl.beside import hold
    from kvstore.transport.nixl.library import has_hca

    return await hold(settings.layout, settings.blocks, settings.device, sealed=not has_hca())


async def _registered(settings: Settings) -> tuple[Settings, Registration | None]:
    """With the number that etcd has for us, where members register there. Raises `BadRequest`, `LayoutMismatch`."""
    if settings.etcd is None or settings.cluster is None:
        return settings, None
    from kvstore.membership.calls import EtcdCalls, endpoints_of
    from kvstore.membership.ownership import Ownership
    from kvstore.membership.registration import Registration, Terms

    endpoints, tls = endpoints_of(settings.etcd, settings.access)
    terms = Terms(settings.cluster, settings.layout, settings.placement, settings.shards, settings.lease_s)
    registration = Registration(EtcdCalls(endpoints, settings.access, tls=tls), terms, Ownership())
    number = await registration.reserve()
    return replace(settings, shard=number, shards=max(settings.shards, number + 1)), registration


def _ears(lifeline_fd: int) -> asyncio.Event:
    """Set by a signal or the end of the lifeline: before anything can hear of us, so that no signal kills us."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told.set)
    if lifeline_fd >= 0:

        def ended() -> None:
            loop.remove_reader(lifeline_fd)
            told.set()

        loop.add_reader(lifeline_fd, ended)
    return told


async def _until_told(server: ShardServer, told: asyncio.Event) -> StoreError | None:
    """Wait for `told` or a failure; the failure."""
    server.failed.add_done_callback(lambda _: told.set())
    await told.wait()
    if server.failed.done():
        return server.failed.result()
    failure: LogFailed | None = server.shard.log.failure if server.shard.log is not None else None
    return failure


def _tell(server: ShardServer, ready_fd: int) -> None:
    facts = server.facts()
    if ready_fd >= 0:
        os.write(ready_fd, json.dumps(facts).encode() + b"\n")
        os.close(ready_fd)
        return
    page = f", metrics {facts['metrics']}" if facts["metrics"] else ""
    who = f"shard {facts['shard']} of {facts['cluster'] or facts['shards']}"
    print(f"{who}: {facts['address']}{page}, {facts['blocks']} blocks", flush=True)


def _why_not(settings: Settings, error: OSError) -> str:
    """One line for what stands in a shard's way."""
    where = error.filename or f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        option = "--metrics-port PORT" if "(metrics)" in str(where) else "--listen HOST:PORT"
        return f"cannot listen on {where}: it is in use (another shard?); choose another with {option}"
    if settings.run_dir is not None and str(where).startswith(str(settings.run_dir)):
        return f"run directory {settings.run_dir}: {error.strerror or error}; choose another with --run-dir"
    if error.errno == errno.EACCES:
        return f"cannot listen on {where}: no permission"
    return f"cannot listen on {where}: {error.strerror or error}"
