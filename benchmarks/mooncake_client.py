"""One client of a Mooncake store, run by Mooncake's own interpreter: `mooncake_client.py MASTER hold|fetch`.

`hold` lends it a segment of memory until standard input ends; `fetch` puts and gets blocks and prints one JSON object:
medians in seconds.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

SEGMENT = 1 << 30
BLOCK = 16_384
CASES = {"16 KiB": (1, BLOCK), "1 MiB": (1, 1 << 20), "1000 × 16 KiB": (1000, BLOCK)}


def _store(master: str, segment: int) -> object:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 64 << 20, "tcp", "", master)
    if code:
        raise SystemExit(f"Mooncake's client could not be set up (code {code})")
    return store


def _fetch(master: str, rounds: int) -> dict[str, dict[str, float]]:
    store = _store(master, 0)
    mine = np.random.default_rng(0).integers(0, 256, 32 << 20, np.uint8)
    back = np.zeros_like(mine)
    for each in (mine, back):
        store.register_buffer(each.ctypes.data, each.nbytes)  # type: ignore[attr-defined]
    found = {}
    for name, (count, size) in CASES.items():
        sizes = [size] * count
        out, into = ([each.ctypes.data + i * size for i in range(count)] for each in (mine, back))
        put, get = [], []
        for number in range(rounds + 2):
            keys = [f"{name}/{number}/{i}" for i in range(count)]
            began = time.perf_counter()
            codes = store.batch_put_from(keys, out, sizes)  # type: ignore[attr-defined]
            between = time.perf_counter()
            read = store.batch_get_into(keys, into, sizes)  # type: ignore[attr-defined]
            ended = time.perf_counter()
            if any(codes) or read != sizes or (back[: count * size] != mine[: count * size]).any():
                raise SystemExit(f"Mooncake: {name}: {max(codes)}, {min(read)}")
            back[:] = 0
            if number >= 2:
                put.append(between - began)
                get.append(ended - between)
        found[name] = {"put_s": float(np.median(put)), "get_s": float(np.median(get))}
    store.close()  # type: ignore[attr-defined]
    return found


if __name__ == "__main__":
    if sys.argv[2] == "hold":
        held = _store(sys.argv[1], SEGMENT)
        print("ready", flush=True)
        sys.stdin.read()
        held.close()  # type: ignore[attr-defined]
    else:
        print(json.dumps(_fetch(sys.argv[1], 30)), flush=True)
