"""A client whose shard has forgotten it, while its own connection looks well: as after a link was down for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvstore.client import Client
from kvstore.deadline import Deadline
from kvstore.errors import ClientUnknown
from kvstore.messages import Lookup
from kvstore.server import ShardServer
from kvstore.settings import Settings
from kvstore.shard import Shard
from tests.kvstore.nixl_rig import NEEDS_NIXL
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys


@pytest.fixture(params=["mapped", pytest.param("nixl", marks=NEEDS_NIXL)])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ShardServer]:
    settings = Settings(LAYOUT, 64, nixl=request.param == "nixl", metrics_port=None, run_dir=tmp_path)
    running = ShardServer(Shard.create(LAYOUT, 64), settings)
    await running.start()
    yield running
    await running.stop(1)


@pytest.fixture
async def client(server: ShardServer) -> AsyncIterator[Client]:
    way = "nixl" if server.settings.nixl else "mapped"
    async with await Client.connect(f"127.0.0.1:{server.port}", LAYOUT, transport=way) as connected:
        yield connected


def forget_all(server: ShardServer) -> None:
    for known in server.clients:
        server.clients.leave(known)


async def test_a_client_that_was_forgotten_comes_in_again(server: ShardServer, client: Client) -> None:
    keys = some_keys(4, 1)
    await client.put(keys, blocks_for(keys))
    forget_all(server)
    found = await client.get(keys)
    assert found.found.all()
    assert (found.data == blocks_for(keys)).all()
    forget_all(server)
    more = some_keys(4, 2)
    await client.put(more, blocks_for(more))
    assert (await client.get(more)).found.all()
    assert len(server.clients) == 1


async def test_all_who_ask_at_once_come_in_by_one_door(server: ShardServer, client: Client) -> None:
    keys = some_keys(4, 3)
    await client.put(keys, blocks_for(keys))
    forget_all(server)
    answers = await asyncio.gather(*(client.lookup(keys, lease_ms=5_000) for _ in range(8)))
    assert all(answer.found.all() for answer in answers)
    assert len(server.clients) == 1


async def test_who_names_anothers_number_is_told(server: ShardServer, client: Client) -> None:
    link = client.shards.links[0]
    with pytest.raises(ClientUnknown, match="unknown client"):
        await link.call(Lookup(some_keys(1, 1)), Deadline(5_000), client=4711)
