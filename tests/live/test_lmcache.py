"""LMCache's own conformance check of L2 adapters, on ours: `make test-lmcache` (an environment of about 1 GB)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.live import lmcache_lab

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.environ.get("KVSCOPE_TEST_LMCACHE") != "1", reason="needs LMCache: make test-lmcache"),
]

KEYS = 20


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Two shards with blocks of 16 KiB, 32 in a window."""
    from kvstore.cluster import LocalCluster
    from kvstore.layout import Layout

    layout = Layout("objects", head_dim=512, dtype="uint8")
    with LocalCluster(2, layout, 4096) as cluster:
        yield str(cluster.file)


def _check(targets: str, elements: int, dtype: str, *more: str) -> str:
    words = ["-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--num-keys", str(KEYS)]
    words += ["--obj-size", str(elements), "--kv-dtype", dtype, "--l2-adapter", lmcache_lab.adapter(targets), *more]
    done = subprocess.run(
        [str(lmcache_lab.python()), *words], env=lmcache_lab.environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("elements", "dtype"),
    [(256, "float32"), (8192, "bfloat16"), (8200, "bfloat16"), (60_000, "float32")],
    ids=["less than a block", "one block", "a block and a bit", "a run"],
)
def test_the_conformance_check_passes(store: str, elements: int, dtype: str) -> None:
    said = _check(store, elements, dtype)
    all_of = f"{KEYS}/{KEYS}"
    for phase in ("correctly absent", "found"):
        assert f"Validation: {all_of} {phase}" in said, said
    for phase in ("loaded", "content"):
        assert f"Validation ({phase}): {all_of}" in said, said


def test_an_object_larger_than_a_window_fails_in_one_line_and_the_rest_goes_on(store: str) -> None:
    said = _check(store, 300_000, "float32")
    assert "Batch store FAIL" in said
    assert re.search(rf"Validation \(loaded\): 0/{KEYS}", said)
    assert f"Validation (content): {KEYS}/{KEYS}" in _check(store, 256, "bfloat16")


def test_a_deleted_object_is_gone_whole_and_its_bytes_are_given_back(store: str) -> None:
    code = """
import select, sys, torch
from lmcache.v1.check.check_mode_test_l2_adapter import _create_memory_obj, _create_object_key
from kvstore.integrations.lmcache import KvstoreL2Adapter, objects
adapter = KvstoreL2Adapter({"targets": sys.argv[1]})
keys = [_create_object_key("delete", str(i)) for i in range(3)]
given = [_create_memory_obj(obj_size=size, fill_value=1.0) for size in (100, 4096, 20_000)]
adapter.submit_store_task(keys, given)
assert select.select([adapter.get_store_event_fd()], [], [], 20)[0]
print("stored", adapter.get_usage().total_bytes_used)
adapter.delete(keys)
print("left", adapter.get_usage().total_bytes_used)
every = [objects.keys_of(key, objects.blocks_for(one.get_size(), 16384)) for key, one in zip(keys, given)]
print("blocks", sum(int(adapter._client.lookup(one).found.sum()) for one in every), flush=True)
adapter.close()
"""
    done = subprocess.run(
        [str(lmcache_lab.python()), "-c", code, store], env=lmcache_lab.environment(), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"stored {4 * (100 + 4096 + 20_000)}" in done.stdout
    assert "left 0" in done.stdout
    assert "blocks 0" in done.stdout


def test_a_store_that_dies_is_a_miss_and_no_hang() -> None:
    from kvstore.cluster import LocalCluster
    from kvstore.layout import Layout

    code = f"""
import select, sys
from lmcache.v1.distributed.api import ObjectKey
from kvstore.integrations.lmcache import KvstoreL2Adapter
adapter = KvstoreL2Adapter({{"targets": sys.argv[1], "deadline_ms": 2000}})
keys = [ObjectKey(chunk_hash=bytes([i] * 8), model_name="m", kv_rank=0) for i in range({KEYS})]
print("ready", flush=True)
sys.stdin.readline()
task = adapter.submit_lookup_and_lock_task(keys, {{}})
assert select.select([adapter.get_lookup_and_lock_event_fd()], [], [], 20)[0], "no event"
found = adapter.query_lookup_and_lock_result(task)
print("found", sum(found.test(i) for i in range(len(keys))), adapter.report_status()["is_healthy"], flush=True)
adapter.close()
"""
    with LocalCluster(1, Layout("objects", head_dim=512, dtype="uint8"), 256) as cluster:
        child = subprocess.Popen(
            [str(lmcache_lab.python()), "-c", code, cluster.targets],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=lmcache_lab.environment(), text=True,
        )  # fmt: skip
        assert child.stdout is not None
        while "ready" not in (line := child.stdout.readline()):
            assert line, "the adapter did not start"
        cluster.kill(0, signal.SIGKILL)
        said, _ = child.communicate("go\n", timeout=60)
    assert child.returncode == 0
    assert "found 0 False" in said
