"""A shard's hold on its mover: started, asked, and started again when it has ended (unless it held the pool)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from kvstore.arena import Arena, Memory
from kvstore.door import close_all
from kvstore.errors import BadRequest, ShardUnavailable, StagingRejected, StoreError, decode
from kvstore.layout import Layout
from kvstore.transport.nixl import frames

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 2.0
AGAIN_S, LONGEST_AGAIN_S = 0.05, 5.0
"""The wait before a mover that ended is started again; doubled each time until one has lived for the longest."""


class Hands:
    """The mover of one shard. `ended` is called when it has ended by itself: its clients have lost their memory. With a
    `device` the data of the pool's blocks is in that process's memory, and it is not started again."""

    def __init__(self, layout: Layout, pool: Memory, blocks: int, landing: Arena, device: str = "") -> None:
        """`pool`: `blocks` slots of the layout, or only their headers with a `device`."""
        self._layout = layout
        self._pool = pool
        self._blocks = blocks
        self._landing = landing
        self.device = device
        self.ended: Callable[[], None] = _nobody
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self.said: dict[str, Any] = {}
        """Agent, metadata and address of the pool; empty while there is no mover."""
        self.fds: list[int] = []
        """What came beside it, and is whose who takes it: its mark, and what its memory on a device is opened by."""

    @property
    def pid(self) -> int:
        """The mover's process; 0 without one."""
        return 0 if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it, once. Raises `BadRequest` with what stands in its way."""
        if self._keeping is not None:
            return
        reader = await self._spawn()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(reader))

    async def ready(self) -> None:
        """Returns when there is a mover, which may take as long as starting one. Raises `ShardUnavailable` where there
        will be none."""
        if self.device and self._writer is None:
            raise ShardUnavailable("the shard's mover has ended, and with it the pool")
        await self._up.wait()

    async def stop(self) -> None:
        """End it; what was under way has ended with it."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._bury()

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Its answer, however long that takes: to a pull it comes when the pull is over. Raises what it refuses, and
        `ShardUnavailable` when it has ended (and everything that it did with it)."""
        if self._writer is None:
            raise ShardUnavailable("the shard's mover is being started again")
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(frames.pack({"op": op, "id": number, **fields}))
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _spawn(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        fds = {"socket": theirs.fileno(), "pool": self._pool.fd, "landing": self._landing.memory.fd}
        words = [f"--{name}={fd}" for name, fd in fds.items()]
        words += [f"--slots={self._blocks}", f"--landing-slots={len(self._landing)}"]
        words += [f"--device={self.device}", f"--block-bytes={self._layout.block_bytes}"] if self.device else []
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "kvstore.transport.nixl.mover",
                *words,
                f"--slot-bytes={self._layout.slot_bytes}",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=tuple(fds.values()),
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        ours.setblocking(False)
        said: dict[str, Any] | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                said, self.fds = await frames.first_frame(ours)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        if said is None or not said.get("ready"):
            close_all(self.fds)
            await self._bury()
            raise decode(int((said or {}).get("code", BadRequest.code)), (said or {}).get("text", _SILENT))
        self.said = said
        self._up.set()
        return reader

    async def _keep(self, reader: asyncio.StreamReader) -> None:
        """Hand out answers; start it again when it ends."""
        loop = asyncio.get_running_loop()
        wait_s = AGAIN_S
        while True:
            began = loop.time()
            while (said := await frames.next_frame(reader)) is not None:
                self._take(said)
            await self._bury()
            self.ended()
            if self.device:
                return
            wait_s = AGAIN_S if loop.time() - began > LONGEST_AGAIN_S else min(LONGEST_AGAIN_S, wait_s * 2)
            while True:
                await asyncio.sleep(wait_s)
                with contextlib.suppress(StoreError):
                    reader = await self._spawn()
                    break
                wait_s = min(LONGEST_AGAIN_S, wait_s * 2)

    def _take(self, said: dict[str, Any]) -> None:
        answer = self._waiting.get(int(said["id"]))
        if answer is None or answer.done():
            return
        if said.get("over"):
            answer.set_exception(StagingRejected(f"nothing was pulled: {said['text']}"))
        elif "code" in said:
            answer.set_exception(decode(int(said["code"]), str(said["text"])))
        else:
            answer.set_result(said)

    async def _bury(self) -> None:
        """It has ended, or does now; nobody waits for it any more."""
        self.said = {}
        self._up.clear()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        process, self._process = self._process, None
        if process is not None:
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ShardUnavailable("the shard's mover has ended"))
        self._waiting.clear()


def _nobody() -> None:
    """Is told of its end."""


_SILENT = "the shard's mover, the process that moves blocks by NIXL, does not start (its output says more)"
