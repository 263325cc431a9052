"""The adapter itself: LMCache's tasks on two threads, over a `SyncClient`."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from kvstore.client import SyncClient
from kvstore.errors import BadRequest, StoreError
from kvstore.integrations.lmcache import objects
from kvstore.integrations.lmcache.locks import Locks
from kvstore.layout import Layout
from kvstore.replay import target

LOCK_MS = 30_000
DEADLINE_MS = 10_000
_THREADS = 2
_log = logging.getLogger("kvstore.lmcache")


class KvstoreL2Adapter(L2AdapterInterface):  # type: ignore[misc]  # its base is another package's
    """`params`: `targets` (addresses or a cluster file), and as one likes `lock_ms`, `deadline_ms`, `layout`.

    The store's layout says how large a block is; an object takes one block where it fits, else a run of at most one
    window. Raises `StoreError` when the store cannot be reached, `BadRequest` for unknown or bad parameters.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        self._pool = ThreadPoolExecutor(_THREADS, "kvstore-lmcache")
        # On a thread of ours: LMCache may make its adapters within an event loop.
        targets, layout, deadline_ms = self._pool.submit(_checked, params).result()
        self._lock_ms = int(params.get("lock_ms", LOCK_MS))
        self._client = SyncClient(targets, layout, deadline_ms=deadline_ms, name="lmcache")
        self._numbers = itertools.count()
        self._done = threading.Lock()
        self._stored: dict[int, L2StoreResult] = {}
        self._looked_up: dict[int, Bitmap] = {}
        self._loaded: dict[int, Bitmap] = {}
        self._told = {name: create_event_notifier() for name in ("store", "lookup", "load")}
        self._locks = Locks()
        self._sizes: dict[Any, int] = {}
        """Bytes of what this process stored and has not deleted, as LMCache's own accounts have it."""

    def get_store_event_fd(self) -> int:
        return int(self._told["store"].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._told["lookup"].fileno())

    def get_load_event_fd(self) -> int:
        return int(self._told["load"].fileno())

    # --- store ------------------------------------------------------------------------------------------------------

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._submit("store", self._store, L2StoreResult(False, 0), keys, objects)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._done:
            done, self._stored = self._stored, {}
        return done

    def _store(self, keys: list[Any], given: list[Any]) -> L2StoreResult:
        """Objects of one block in one put, larger ones each in a run of its own."""
        block_bytes, window = self._client.layout.block_bytes, self._client.layout.window_blocks
        data = [_bytes_of(one) for one in given]
        counts = [objects.blocks_for(len(one), block_bytes) for one in data]
        if max(counts, default=0) > window:
            raise BadRequest(
                f"an object of {max(map(len, data))} bytes takes {max(counts)} blocks, a window has {window}: "
                "make the store with larger blocks or windows"
            )
        single = [row for row, count in enumerate(counts) if count == 1]
        fresh = set()
        if single:
            rows = np.concatenate([objects.split(data[row], block_bytes) for row in single])
            marks = objects.size_marks([len(data[row]) for row in single])
            done = self._client.put(objects.first_keys([keys[row] for row in single]), rows, chains=marks)
            fresh |= {row for row, existed in zip(single, done.existed.tolist(), strict=True) if not existed}
        for row in set(range(len(keys))) - set(single):
            rows = objects.split(data[row], block_bytes)
            marks = objects.size_marks([len(data[row])] * len(rows))
            done = self._client.put(objects.keys_of(keys[row], len(rows)), rows, chains=marks, one_run=True)
            if not done.existed.all():
                fresh.add(row)
        new = sorted(fresh)
        self._sizes.update((keys[row], len(data[row])) for row in new)
        self._notify_keys_stored([keys[row] for row in new], [len(data[row]) for row in new])
        return L2StoreResult(True, sum(map(len, data)))

    # --- lookup and lock --------------------------------------------------------------------------------------------

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        return self._submit("lookup", self._lookup, Bitmap(len(keys)), keys)

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        with self._done:
            return self._looked_up.pop(task_id, None)

    def _lookup(self, keys: list[Any]) -> Bitmap:
        located = self._client.lookup(objects.first_keys(keys), lease_ms=self._lock_ms)
        found = np.flatnonzero(located.found).tolist()
        if found:
            self._locks.add([keys[row] for row in found], located)
        self._notify_keys_accessed([keys[row] for row in found])
        return _bitmap(len(keys), found)

    def submit_unlock(self, keys: list[Any]) -> None:
        self._pool.submit(self._unlock, keys)

    def _unlock(self, keys: list[Any]) -> None:
        for located in self._locks.remove(keys):
            try:
                self._client.release(located)
            except StoreError as error:
                _log.debug("a lease ends by itself, since it could not be released: %s", error)

    # --- load -------------------------------------------------------------------------------------------------------

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._submit("load", self._load, Bitmap(len(keys)), keys, objects)

    def query_load_result(self, task_id: int) -> Bitmap | None:
        with self._done:
            return self._loaded.pop(task_id, None)

    def _load(self, keys: list[Any], buffers: list[Any]) -> Bitmap:
        """Into the callers' buffers, after every byte was verified."""
        block_bytes = self._client.layout.block_bytes
        into = [_bytes_of(one) for one in buffers]
        counts = np.asarray([objects.blocks_for(len(one), block_bytes) for one in into])
        ends = np.cumsum(counts)
        blocks = self._client.get(objects.all_keys(keys, counts))
        sizes = np.repeat([len(one) for one in into], counts).astype(np.uint64)
        good = blocks.found & (objects.sizes_in(blocks.headers) == sizes)
        loaded = []
        for row, (count, end) in enumerate(zip(counts.tolist(), ends.tolist(), strict=True)):
            if good[end - count : end].all():
                into[row][:] = blocks.data[end - count : end].reshape(-1)[: len(into[row])]
                loaded.append(row)
        return _bitmap(len(keys), loaded)

    # --- the rest ---------------------------------------------------------------------------------------------------

    def delete(self, keys: list[Any]) -> None:
        """Whole objects that this process stored; of others the first block, without which the rest is never found (how
        large they are it does not know)."""
        if not keys:
            return
        sizes = [self._sizes.get(key, 0) for key in keys]
        counts = np.asarray([objects.blocks_for(size, self._client.layout.block_bytes) for size in sizes])
        try:
            found = self._client.remove(objects.all_keys(keys, counts))
        except StoreError as error:
            _log.warning("%d objects were not deleted: %s", len(keys), error)
            return
        first = found[np.cumsum(counts) - counts].tolist()
        for key in keys:
            self._sizes.pop(key, None)
        gone = [row for row, was in enumerate(first) if was]
        self._notify_keys_deleted([keys[row] for row in gone], [sizes[row] for row in gone])

    def report_status(self) -> dict[str, Any]:
        links = self._client.client.shards.links
        up = [link.up for link in links]
        return {
            "is_healthy": all(up),
            "type": type(self).__name__,
            "shards": len(links),
            "shards_up": sum(up),
            "locked_key_count": len(self._locks),
        }

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()
        for told in self._told.values():
            told.close()

    def _submit(self, kind: str, act: Callable[..., Any], failed: Any, *args: Any) -> int:
        """A task's number; its result, or `failed`, is there when its event is told."""
        number = next(self._numbers)

        def work() -> None:
            try:
                result = act(*args)
            except StoreError as error:
                _log.warning("%s of %d objects failed: %s", kind, len(args[0]), error)
                result = failed
            except Exception:
                _log.exception("%s of %d objects failed", kind, len(args[0]))
                result = failed
            with self._done:
                self._results(kind)[number] = result
            self._told[kind].notify()

        self._pool.submit(work)
        return number

    def _results(self, kind: str) -> dict[int, Any]:
        return {"store": self._stored, "lookup": self._looked_up, "load": self._loaded}[kind]


def _checked(params: dict[str, Any]) -> tuple[str, Layout, int]:
    unknown = set(params) - {"targets", "layout", "lock_ms", "deadline_ms"}
    if unknown:
        raise BadRequest(f"adapter_params: no parameter {', '.join(sorted(unknown))}")
    if not params.get("targets"):
        raise BadRequest("adapter_params: targets is missing (addresses of all shards, or a cluster file)")
    targets = target.cluster_file_or_addresses(str(params["targets"]))
    layout = Layout.from_json(json.dumps(params.get("layout") or target.describe(targets)["layout"]))
    return targets, layout, int(params.get("deadline_ms", DEADLINE_MS))


def _bytes_of(one: Any) -> objects.Bytes:
    """The bytes of a memory object, a view."""
    return np.frombuffer(one.byte_array, np.uint8)[: one.get_size()]


def _bitmap(size: int, rows: list[int]) -> Bitmap:
    made = Bitmap(size)
    for row in rows:
        made.set(row)
    return made
