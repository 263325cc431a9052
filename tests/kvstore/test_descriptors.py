"""A shard that could run out of file descriptors: it takes as many clients as they do for, and says so to the next."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import descriptors
from kvstore.client import Client
from kvstore.errors import BadRequest, ShardUnavailable
from kvstore.serve import make_shard
from kvstore.server import ShardServer
from kvstore.settings import Settings
from tests.kvstore.process_rig import LAYOUT, ROOT, blocks_for, some_keys

SOFT, HARD = 64, 220
MOST = (HARD - descriptors.RESERVED) // descriptors.A_CLIENT


@pytest.mark.parametrize(("limit", "most"), [(1024, 288), (220, 20), (100, 1), (16_384, 1024), (4096, 1024)])
def test_clients_are_as_many_as_descriptors_do_for(limit: int, most: int) -> None:
    assert descriptors.most_clients(limit) == most


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[tuple[int, str, str]]:
    """Its process, address and page, under limits of open files."""
    code = "from kvstore.cli import main; import sys; sys.exit(main())"
    words = ["serve", "--listen", "127.0.0.1:0", "--layout", LAYOUT.as_json(), "--blocks", "64"]
    words += ["--run-dir", str(tmp_path / "run")]
    with subprocess.Popen(
        ["bash", "-c", f'ulimit -Sn {SOFT}; ulimit -Hn {HARD}; exec "$@"', "-", sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().split()  # shard 0 of 1: ADDRESS, metrics URL, …
        yield process.pid, said[4].rstrip(","), said[6].rstrip(",")
        process.terminate()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


async def test_a_full_shard_says_so_and_goes_on(shard: tuple[int, str, str]) -> None:
    pid, target, page = shard
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (HARD, HARD)
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(await Client.connect(target, LAYOUT, staging_blocks=1)) for _ in range(MOST)
        ]
        for _ in range(3):
            with pytest.raises(BadRequest, match=f"{MOST} clients .* open files is {HARD}"):
                await Client.connect(target, LAYOUT, staging_blocks=1)
        assert len(os.listdir(f"/proc/{pid}/fd")) < HARD
        for seed, client in enumerate(clients):
            await client.put(some_keys(1, seed), blocks_for(some_keys(1, seed)))
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(page, timeout=10).read().decode())
        assert f'kv_clients{{shard="0"}} {MOST}.0' in text
        await clients[0].close()
        await asyncio.sleep(0.2)
        await (await Client.connect(target, LAYOUT, staging_blocks=1)).close()


async def test_who_knocks_when_no_descriptor_is_left_hears_why(tmp_path: Path) -> None:
    """And the loop goes on meanwhile, instead of finding the same visitor again and again."""
    settings = Settings(LAYOUT, 64, metrics_port=None, run_dir=tmp_path / "run")
    server = ShardServer(make_shard(settings), settings)
    await server.start()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    visitors = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) for _ in range(8)]
    try:
        # No number from here on is to be had: those that are in use stay.
        resource.setrlimit(resource.RLIMIT_NOFILE, (visitors[0].fileno(), before[1]))
        for visitor in visitors[:2]:
            visitor.connect(server.facts()["door"])
        await asyncio.sleep(0.1)
        said = json.loads(visitors[0].recv(4096))
        assert said["error"] == ShardUnavailable.code
        assert "descriptors" in said["text"]
        assert server.refusals.counts["door"] <= 2
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        client = await Client.connect(f"127.0.0.1:{server.port}", LAYOUT, staging_blocks=1)
        await client.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for visitor in visitors:
            visitor.close()
        await server.stop()
