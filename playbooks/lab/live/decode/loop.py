"""Batches of sequences, decoded token by token, with the KV in a pool on the device.

A step changes the tables for its tokens, queues the model behind that, and waits for the step before: the loop is one
step ahead of its device, as an engine that schedules asynchronously. What costs is whatever makes it wait earlier.
"""

from __future__ import annotations

import time
from random import Random
from threading import Event

import numpy as np
import torch

from kvstore.bitmap import runs_of
from kvstore.device import DevicePool
from kvstore.layout import Layout
from kvstore.meters import Meters
from kvstore.page import PoolFigures
from kvstore.pool import State
from playbooks.lab.live.decode.device import Device, Wait
from playbooks.lab.live.decode.model import Batch, Model
from playbooks.lab.live.loops import Loop, LoopReport
from probes.instrument import Instrument

BLOCK_TOKENS = 8
FIGURES_S = 5.0
"""So often at most are the tables read for the page: each read holds up a step (policy)."""

_instrument = Instrument("playbooks.lab.decode")


class DecodeLoop:
    """One loop and its pool; all of it belongs to one thread, but for `figures` and `meters`, which others may read."""

    def __init__(self, loop: Loop, device: Device, meters: Meters) -> None:
        size = device.size
        self.meters = meters
        self.layout = Layout(
            "lab-decode", layers=size.layers, heads=size.kv_heads, head_dim=size.head_dim, block_tokens=BLOCK_TOKENS,
            dtype=size.dtype,
        )  # fmt: skip
        self._loop, self._device, self._size = loop, device, size
        self._rng = Random(f"decode/{loop.seed}/{loop.number}")
        self._count = loop.rows * size.rows
        columns = -(-(size.prompt + BLOCK_TOKENS + size.steps) // BLOCK_TOKENS)
        self.pool = DevicePool(
            self.layout, 2 * self._count * columns, rows=self._count, columns=columns,
            bitmap=loop.bitmap, table=loop.table, crossing=device.crossing(meters),
        )  # fmt: skip
        self._model = Model(size, self.pool, loop.seed)
        self._hidden = torch.randn(self._count, size.hidden, device=self.pool.kv.device).to(self.pool.kv.dtype)
        self._rows: list[int] = []
        self._before: Wait | None = None
        self._steps = 0
        self.figures = self._empty()
        self._read_at = time.monotonic()

    def run(self, ended: Event) -> LoopReport:
        """Batch after batch until `ended`."""
        while not ended.is_set():
            self.admit()
            for _ in range(self._size.steps):
                if ended.is_set():
                    break
                self.step()
            self.finish()
            ended.wait(self._loop.pause_s * self._rng.uniform(0.5, 1.5))
        return LoopReport(self._device.name, self._steps, self._steps * self._count, self.meters.busy_seconds)

    def admit(self) -> None:
        """A batch comes: rows, blocks, and the KV of its prompts."""
        begun = time.perf_counter()
        prompts = [self._size.prompt + self._rng.randrange(BLOCK_TOKENS) for _ in range(self._count)]
        with _instrument.span("kv.put", meter=self.meters.operations["put"], blocks=self._count):
            free = self.pool.free
            self._rows = [self.pool.open() for _ in prompts]
            step = self.pool.extend(self._rows, prompts)
            tokens = sum(prompts)
            self._device.run(lambda: self._model.fill(tokens, step.slots))()
        self.meters.put_blocks += free - self.pool.free
        self.meters.put_bytes += (free - self.pool.free) * self.layout.block_bytes * self._size.layers
        self._allocated(free)
        self.figures = self._read()
        self.meters.busy_seconds += time.perf_counter() - begun

    def step(self) -> None:
        """One token of every sequence."""
        begun = time.perf_counter()
        with _instrument.span("kv.append", meter=self.meters.operations["append"], blocks=self._count):
            free = self.pool.free
            step = self.pool.extend(self._rows, [1] * self._count)
            # Copies, since the next step's changes may come before the stand-in's thread has read these.
            batch = Batch(step.slots, self.pool.table.clone(), self.pool.lengths.clone())
            after = self._device.run(lambda: self._decode(batch))
            if self._before is not None:
                self._before()
            self._before = after
        self._allocated(free)
        self._steps += 1
        if time.monotonic() - self._read_at > FIGURES_S:
            self.figures = self._read()
        self.meters.busy_seconds += time.perf_counter() - begun

    def finish(self) -> None:
        """The batch ends, and its blocks are free."""
        begun = time.perf_counter()
        if self._before is not None:
            self._before()
            self._before = None
        self.pool.close(*self._rows)
        self._rows = []
        self.figures = self._empty()
        self.meters.busy_seconds += time.perf_counter() - begun

    def _decode(self, batch: Batch) -> None:
        self._hidden = self._model.forward(self._hidden, batch)

    def _allocated(self, free: int) -> None:
        if free > self.pool.free:
            self.meters.allocations += 1
            self.meters.allocation_blocks += free - self.pool.free

    def _empty(self) -> PoolFigures:
        """Of a pool in which nothing is: no device needs to be asked."""
        blocks = self.pool.blocks
        return PoolFigures(np.zeros(blocks, np.uint8), np.full(blocks, -1, np.int64), np.asarray([blocks], np.int64))

    def _read(self) -> PoolFigures:
        """Which blocks are whose: a read of the device, counted as such."""
        self._read_at = time.monotonic()
        table = self.pool.crossing.read("block_table.read", self.pool.table).numpy()
        lengths = np.asarray([self.pool.tokens(row) for row in self._rows], np.int64)
        valid = np.full(self.pool.blocks, -1, np.int64)
        filled = np.clip(lengths[:, None] - np.arange(table.shape[1]) * BLOCK_TOKENS, 0, BLOCK_TOKENS)
        held = table[self._rows] >= 0
        valid[table[self._rows][held]] = filled[held]
        states = np.where(valid >= 0, State.USED, State.FREE).astype(np.uint8)
        return PoolFigures(states, valid, runs_of(valid < 0)[1])
