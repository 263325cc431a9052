"""Calls over the Unix socket: frames cut right, answers to whom they belong, bad bytes harm only their sender."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from kvstore import messages as m
from kvstore import wire
from kvstore.calls import Broken, TimedOut, Unfit
from kvstore.calls.frames import FrameCalls, FrameServer, Splitter, frame
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.deadline import Deadline
from kvstore.serve import make_shard
from kvstore.server import ShardServer
from kvstore.settings import Settings
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

Served = Callable[[Callable[[bytes], Awaitable[bytes]]], Awaitable[FrameCalls]]


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A server with a given answer, and a connection to it."""
    open_now: list[FrameCalls | FrameServer] = []

    async def serve(answer: Callable[[bytes], Awaitable[bytes]]) -> FrameCalls:
        server = FrameServer(tmp_path / "calls", answer)
        await server.start()
        calls = await FrameCalls.connect(str(server.path), 5)
        open_now.extend((calls, server))
        return calls

    yield serve
    for each in open_now:
        await (each.stop() if isinstance(each, FrameServer) else each.close())


@pytest.mark.parametrize("step", [1, 2, 7, 8, 9, 13, 1000])
def test_a_stream_is_cut_into_its_frames_however_it_arrives(step: int) -> None:
    sent = [(1, b""), (7, b"a"), (2**32 - 1, bytes(range(256))), (3, b"last")]
    stream = b"".join(frame(number, message) for number, message in sent)
    splitter = Splitter()
    found = [each for at in range(0, len(stream), step) for each in splitter.feed(stream[at : at + step])]
    assert found == sent


@pytest.mark.parametrize("first", [3, 8, 12])
def test_a_frame_over_the_limit_is_refused_before_it_is_there(first: int) -> None:
    stream = struct.pack("<II", wire.MAX_BYTES + 1, 1) + b"...."
    splitter = Splitter()
    parts = stream[:first], stream[first:]
    with pytest.raises(ValueError, match="frame of"):
        [list(splitter.feed(part)) for part in parts]


async def test_answers_find_their_questions_in_any_order(served: Served) -> None:
    async def answer(request: bytes) -> bytes:
        await asyncio.sleep(0.02 if request < b"5" else 0)
        return request * 1000

    calls = await served(answer)
    asked = [str(n).encode() for n in range(10)]
    assert await asyncio.gather(*(calls.call(m.Ping, each, 5) for each in asked)) == [each * 1000 for each in asked]


async def test_a_late_answer_is_nobody_elses(served: Served) -> None:
    async def answer(request: bytes) -> bytes:
        await asyncio.sleep(0.2 if request == b"slow" else 0)
        return request

    calls = await served(answer)
    with pytest.raises(TimedOut):
        await calls.call(m.Ping, b"slow", 0.02)
    await asyncio.sleep(0.3)
    assert await calls.call(m.Ping, b"quick", 5) == b"quick"


async def test_a_closed_connection_answers_nobody(served: Served) -> None:
    async def answer(request: bytes) -> bytes:
        await asyncio.sleep(60)
        return request

    calls = await served(answer)
    waiting = asyncio.create_task(calls.call(m.Ping, b"x", 30))
    await asyncio.sleep(0.05)
    await calls.close()
    with pytest.raises(Broken):
        await waiting
    with pytest.raises(Broken):
        await calls.call(m.Ping, b"x", 1)


async def test_what_is_too_large_is_not_sent(served: Served) -> None:
    async def answer(request: bytes) -> bytes:
        return request

    calls = await served(answer)
    with pytest.raises(Unfit):
        await calls.call(m.Put, bytes(wire.MAX_BYTES + 1), 5)
    assert await calls.call(m.Put, b"fits", 5) == b"fits"


async def test_who_takes_no_answers_is_read_no_further(tmp_path: Path) -> None:
    asked = 0

    async def answer(request: bytes) -> bytes:
        nonlocal asked
        asked += 1
        return bytes(100_000)

    server = FrameServer(tmp_path / "calls", answer)
    await server.start()
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deaf.connect(str(server.path))
    deaf.setblocking(False)
    try:
        for number in range(200_000):
            try:
                deaf.send(frame(number, b"?"))
            except BlockingIOError:
                if asked:
                    break
                await asyncio.sleep(0.01)
            if number % 1000 == 0:
                await asyncio.sleep(0)
        else:
            pytest.fail("200,000 requests were read from a client that takes no answer")
        await asyncio.sleep(0.1)
        assert asked < 20_000
    finally:
        deaf.close()
        await server.stop()


@pytest_asyncio.fixture
async def shard(tmp_path: Path) -> AsyncIterator[ShardServer]:
    settings = Settings(LAYOUT, 64, metrics_port=None, run_dir=tmp_path / "run")
    running = ShardServer(make_shard(settings), settings)
    await running.start()
    yield running
    await running.stop()


@pytest.mark.parametrize(
    "request_bytes", [b"", b"\x00" * 8, bytes(range(256)), wire.pack_reply(1, m.Pong(0, 1)), b"\xff" * 70_000]
)
async def test_bytes_that_are_no_request_get_an_error_and_the_connection_goes_on(
    shard: ShardServer, request_bytes: bytes
) -> None:
    calls = await FrameCalls.connect(shard.facts()["calls"], 5)
    try:
        _, answer = wire.unpack_reply(await calls.call(m.Ping, request_bytes, 5))
        assert isinstance(answer, Exception)
        _, answer = wire.unpack_reply(await calls.call(m.Ping, wire.pack_request(m.Envelope(), m.Ping()), 5))
        assert isinstance(answer, m.Pong)
    finally:
        await calls.close()


async def test_a_client_on_the_shards_host_asks_over_the_socket_and_finds_it_again() -> None:
    keys = some_keys(8, 1)
    with LocalCluster(1, LAYOUT, 64) as cluster:
        async with await Client.connect(cluster.targets, LAYOUT) as client:
            link = client.shards.links[0]
            assert isinstance(link._calls, FrameCalls)
            await client.put(keys, blocks_for(keys))
            await link._calls.close()
            assert not link.up
            assert (await client.lookup(keys, counted=True)).found.all()
            assert isinstance(await link.call(m.Ping(), Deadline(5000)), m.Pong)
