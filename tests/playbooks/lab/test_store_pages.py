"""The simulated store: its page is the one that docs/store.md lists, and its parts behave as the real ones do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from kvstore import meters as real
from playbooks.lab import store_meters as simulated
from playbooks.lab.shelf import Shelf
from playbooks.lab.store_meters import ShardMeters
from playbooks.lab.store_pages import shard_families
from playbooks.lab.store_pool import RefusedError, StorePool
from playbooks.lab.store_shard import StoreConfig, StoreShard
from playbooks.lab.trim import families

CONTRACT = Path(__file__).parents[3] / "docs" / "store.md"
# The lab draws no block map: 256 series that no playbook asks for. How bytes move is not simulated.
LEFT_OUT = {"kv_block_map", "kv_block_map_cell_blocks", "kv_transport_info"}


def _listed() -> set[str]:
    rows = [line for line in CONTRACT.read_text(encoding="utf-8").splitlines() if line.startswith("| `kv_")]
    names = {name for row in rows for name in re.findall(r"`(kv_[a-z_]+)`", row.split("|")[1])}
    return {name.removesuffix("_total") for name in names} - LEFT_OUT


def _busy_shard() -> StoreShard:
    shard = StoreShard("0", "store:9600", StoreConfig(blocks=512, durable=True), Random(1))
    for second in range(50):
        session = shard.open(second, "chat", 60.0, float(second))
        shard.put(f"chat/{second}/0", 500, session, float(second))
        shard.lookup([(f"chat/{second}/0", 500), (f"chat/{second}/9", 500)], float(second))
    return shard


def test_the_page_has_the_families_of_the_contract() -> None:
    shard = _busy_shard()
    page = shard_families(shard, "m", 50.0, 1_790_000_000.0, {})
    assert _listed() - {family.name for family in page} == {
        "kv_peer_up", "kv_peer_heartbeat_age_seconds", "kv_peer_pending_operations",
        "kv_transfer_seconds", "kv_transfer_descriptors", "kv_transfer_bytes",
        "kv_device_uploads", "kv_device_upload_bytes", "kv_device_upload_seconds",
    }, "a shard without peers says nothing of them, and one without nixl nothing of transfers"  # fmt: skip
    assert all(dict(labels)["shard"] == "0" for f in page if f.name[:3] == "kv_" for _, labels, _ in f.samples)


def test_buckets_and_reasons_are_those_of_the_real_store() -> None:
    assert list(simulated.OPERATION) == list(real.OPERATION_BOUNDS_S)
    assert list(simulated.FLUSH) == list(real.FLUSH_BOUNDS_S)
    assert list(simulated.COUNT) == list(real.COUNT_BOUNDS)
    assert list(simulated.LIFE) == list(real.LIFE_BOUNDS_S)
    assert list(simulated.RETURN) == list(real.RETURN_BOUNDS_S)
    assert list(simulated.MISS_REASONS) == list(real.MISS_REASONS)
    assert simulated.PUT_REFUSALS == real.PUT_REFUSALS
    assert simulated.SITES == real.DEVICE_SITES
    assert simulated.OPERATIONS == real.OPERATIONS


def test_states_and_runs_account_for_every_block() -> None:
    pool = _busy_shard().pool
    assert sum(pool.states(1e9).values()) == pool.capacity == 512
    assert sum(length for _first, length in pool.free_runs()) == pool.free
    assert pool.token_slots()["valid"] + pool.token_slots()["tail_waste"] == (512 - pool.free) * 16


def test_a_full_pool_evicts_the_oldest_and_remembers_it() -> None:
    pool = StorePool(64, 16, ShardMeters())
    for number in range(3):
        pool.store(str(number), 512, None, float(number))
    assert sorted(pool.chunks) == ["1", "2"]
    assert pool.ghosts["0"] == "evicted"
    assert pool.meters.evicted_blocks["capacity"] == 32


def test_held_blocks_are_never_evicted_and_holes_refuse_runs() -> None:
    full = StorePool(64, 16, ShardMeters())
    full.store("a", 512, 1, 0.0)
    full.store("b", 512, 2, 0.0)
    with pytest.raises(RefusedError) as refused:
        full.store("c", 512, 3, 1.0)
    assert refused.value.reason == "no_space"
    holes = StorePool(64, 16, ShardMeters(), one_run=True)
    chunks = [holes.store(str(number), 16, number, 0.0) for number in range(64)]
    for chunk in chunks[::2]:
        holes.release(chunk, int(chunk.key), expired=True)
    assert holes.free == 32
    with pytest.raises(RefusedError) as refused:
        holes.store("long", 32, 99, 1.0)
    assert refused.value.reason == "no_run"


def test_puts_of_one_gathering_window_share_a_flush() -> None:
    shard = StoreShard("0", "store:9600", StoreConfig(durable=True), Random(1))
    for number in range(5):
        shard.put(str(number), 16, None, 1.0)
    assert shard.meters.flush_seconds.count == 1
    assert shard.meters.put_stage["log"].count == 5


@pytest.mark.parametrize("name", ["store-healthy-durable", "store-healthy-restart"])
def test_counters_only_grow_but_for_a_restart(name: str, shelf: Shelf) -> None:
    falls: set[str] = set()
    made = shelf.composed(name)
    for family, lines in families(made.text):
        if not lines[0].endswith(" counter"):
            continue
        last: dict[str, float] = {}
        for line in lines:
            if line[0] != "#":
                series, value, _time = line.rsplit(" ", 2)
                if float(value) < last.get(series, 0.0):
                    falls.add(family)
                last[series] = float(value)
    assert ("kv_operations" in falls) == (name == "store-healthy-restart")


COMPOSED = """
import hashlib, sys
from playbooks.lab.compose import compose
print(hashlib.sha256(compose(sys.argv[1], int(sys.argv[2])).text.encode()).hexdigest())
"""


def composed_elsewhere(name: str, seed: int, hashing: str) -> str:
    """What a process composes in which strings have other hashes."""
    environment = {**os.environ, "PYTHONHASHSEED": hashing}
    words = [sys.executable, "-c", COMPOSED, name, str(seed)]
    return subprocess.run(words, capture_output=True, text=True, env=environment, check=True).stdout


def test_the_same_seed_gives_the_same_store_in_every_process() -> None:
    first = composed_elsewhere("store-ttl-too-short", 2, "0")
    assert composed_elsewhere("store-ttl-too-short", 2, "1") == first
    assert composed_elsewhere("store-ttl-too-short", 3, "0") != first
