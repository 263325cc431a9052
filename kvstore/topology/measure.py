"""How fast GPUs of this host copy from one another, measured."""

from __future__ import annotations

import time
from dataclasses import replace

from kvstore.topology.graph import UNKNOWN, Gpu, Topology, Way
from kvstore.transport.device.cuda import CudaDevice
from kvstore.transport.device.memory import Move, device_named
from kvstore.transport.device.runtime import runtime

COPY_BYTES = 64 << 20
ROUNDS = 5
"""The best of so many copies counts, after one that warms up: what disturbs a copy only ever slows it."""


def measured(topology: Topology) -> Topology:
    """With the rate of every way that CUDA can copy over, in either direction. GPUs that the topology lacks are added.
    Raises `BadRequest` without CUDA or without memory, `DeviceFailed`."""
    devices = [device_named(f"cuda:{at}") for at in range(runtime().devices)]
    cuda = [device for device in devices if isinstance(device, CudaDevice)]
    named = {device.bus: topology.at(device.bus) or Gpu(device.name, device.bus) for device in cuda}
    more = tuple(gpu for gpu in named.values() if gpu not in topology.gpus)
    whole = replace(topology, gpus=(*topology.gpus, *more))
    ways = dict(whole.ways)
    for reader in cuda:
        for owner in cuda:
            if owner is not reader:
                ends = named[owner.bus].name, named[reader.bus].name
                ways[ends] = Way(whole.way(*ends).word, _rate(reader, owner))
    source = f"{topology.source}, measured" if topology.source else "measured"
    return Topology(whole.gpus, {ends: way for ends, way in ways.items() if _says(way)}, source)


def _rate(reader: CudaDevice, owner: CudaDevice) -> float:
    """Bytes per second of one copy of `COPY_BYTES` from `owner` to `reader`, asked for by the latter."""
    reader.reach(owner)
    to, source = reader.allocate(COPY_BYTES), owner.allocate(COPY_BYTES)
    try:
        move = Move(to.address, COPY_BYTES, source.address, COPY_BYTES, COPY_BYTES, 1)
        reader.move([move])
        best = float("inf")
        for _ in range(ROUNDS):
            began = time.perf_counter()
            reader.move([move])
            best = min(best, time.perf_counter() - began)
        return COPY_BYTES / best
    finally:
        source.close()
        to.close()


def _says(way: Way) -> bool:
    return way.word != UNKNOWN or way.bytes_per_second is not None
