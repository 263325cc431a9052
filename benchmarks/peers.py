"""Other stores beside ours, each in its own environment: `make bench-peers`.

LMCache's `bench l2` drives our adapter, its own client of Redis, its file store and its mock in one harness (verified).
Mooncake's store is measured through its own client, with its checksum and without, and ours through `SyncClient` by the
same steps.
What is not installed is skipped by name: `KVSCOPE_LMCACHE_VENV`, `KVSCOPE_MOONCAKE_VENV` name virtual environments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.mooncake_client import CASES
from kvstore.bench import machine
from kvstore.bench.peers import redis_server
from kvstore.client import SyncClient
from kvstore.cluster import LocalCluster
from kvstore.keys import block_keys
from kvstore.layout import Layout
from tests.live import lmcache_lab

LAYOUT = Layout("objects", head_dim=512, dtype="uint8", window_tokens=1024)
"""Blocks of 16 KiB, 64 (1 MiB) a window."""
_HERE = Path(__file__).resolve().parent


def lmcache(rounds: int) -> dict[str, dict[str, float]] | None:
    """Milliseconds of store, lookup and load of 1000 × 16 KiB by each adapter; None without LMCache."""
    if (
        not os.environ.get("KVSCOPE_LMCACHE_VENV")
        and not (lmcache_lab.CHECKOUT / ".lmcache-lab" / "installed").exists()
    ):
        return None
    found = {}
    with tempfile.TemporaryDirectory() as folder, LocalCluster(1, LAYOUT, 16_384) as cluster, redis_server() as redis:
        adapters = {"kvstore (verified)": lmcache_lab.adapter(cluster.targets)}
        if redis is not None:
            port = redis.connection_pool.connection_kwargs["port"]
            adapters["resp (Redis)"] = json.dumps({"type": "resp", "host": "127.0.0.1", "port": port, "num_workers": 2})
        adapters["fs_native"] = json.dumps({"type": "fs_native", "base_path": f"{folder}/fs", "num_workers": 2})
        adapters["mock"] = json.dumps({"type": "mock", "max_size_gb": 1, "mock_bandwidth_gb": 10})
        for name, spec in adapters.items():
            found[name] = _bench_l2(spec, rounds, Path(folder) / "out.json")
    return found


def _bench_l2(spec: str, rounds: int, out: Path) -> dict[str, float]:
    words = [str(lmcache_lab.python()), "-m", "lmcache.cli.main", "bench", "l2", "--l2-adapter", spec]
    program = lmcache_lab.python().with_name("lmcache")
    words = [str(program), *words[3:]]
    words += ["--num-keys", "1000", "--data-size-kb", "16", "--rounds", str(rounds), "--no-skip-verify"]
    words += ["--lookup-max-hit-rate", "1.0", "--format", "json", "--output", str(out)]
    done = subprocess.run(words, env=lmcache_lab.environment(), capture_output=True, text=True, timeout=600)
    if done.returncode or not out.exists():
        return {"failed": 1.0}
    told = json.loads(out.read_text())["metrics"]
    out.unlink()
    operations = [value for name, value in told.items() if name.startswith("op_")]
    return {one["operation"].lower(): one["duration_p50_ms"] for one in operations}


def mooncake(checksum: bool) -> dict[str, dict[str, float]] | None:
    """Medians by Mooncake's own client; None without it."""
    venv = os.environ.get("KVSCOPE_MOONCAKE_VENV")
    if not venv:
        return None
    with _mooncake_master(Path(venv), checksum) as (python, master, environment):
        client = [str(python), str(_HERE / "mooncake_client.py"), master]
        holder = subprocess.Popen(
            [*client, "hold"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            assert holder.stdout is not None
            while b"ready" not in (line := holder.stdout.readline()):
                if not line:
                    raise RuntimeError("Mooncake's storage client did not start")
            done = subprocess.run(
                [*client, "fetch"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=600
            )
            found: dict[str, dict[str, float]] = json.loads(done.stdout.decode().strip().splitlines()[-1])
            return found
        finally:
            holder.kill()
            holder.wait()


@contextlib.contextmanager
def _mooncake_master(venv: Path, checksum: bool) -> Iterator[tuple[Path, str, dict[str, str]]]:
    ports = [_free_port() for _ in range(2)]
    environment = {**os.environ, "MOONCAKE_STORE_CHECKSUM": "1" if checksum else "0", "MC_LOG_LEVEL": "ERROR"}
    words = [str(venv / "bin" / "mooncake_master"), f"--rpc_port={ports[0]}", "--rpc_address=127.0.0.1"]
    master = subprocess.Popen(
        [*words, f"--metrics_port={ports[1]}"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", ports[0]), 0.2):
                break
            time.sleep(0.1)
        yield venv / "bin" / "python", f"127.0.0.1:{ports[0]}", environment
    finally:
        master.kill()
        master.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ours(verify: bool, rounds: int = 30) -> dict[str, dict[str, float]]:
    """The same steps on one shard: put, then a lookup and a get of what was put (Mooncake's get looks up as well)."""
    rng = np.random.default_rng(0)
    found = {}
    with LocalCluster(1, LAYOUT, 65_536) as cluster, SyncClient(cluster.targets, LAYOUT, verify=verify) as client:
        for name, (count, size) in CASES.items():
            blocks = count * size // LAYOUT.block_bytes
            data = rng.integers(0, 256, (blocks, LAYOUT.block_bytes), np.uint8)
            out = client.buffer(blocks)
            put, get = [], []
            for number in range(rounds + 2):
                keys = block_keys([rng.bytes(24) for _ in range(blocks)], 0, 0)
                began = time.perf_counter()
                client.put(keys, data)
                between = time.perf_counter()
                got = client.get(keys, out)
                ended = time.perf_counter()
                assert got.found.all()
                assert (got.data == data).all()
                if number >= 2:
                    put.append(between - began)
                    get.append(ended - between)
            found[name] = {"put_s": float(np.median(put)), "get_s": float(np.median(get))}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="of LMCache's bench")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine.facts(), "lmcache": lmcache(options.rounds)}
    found["clients"] = {
        "kvstore, mapped, verified": ours(True),
        "kvstore, mapped": ours(False),
        "Mooncake, tcp, checksum": mooncake(True),
        "Mooncake, tcp": mooncake(False),
    }
    print(json.dumps(found) if options.json else "\n".join(_table(found)))
    return 0


def _table(found: dict[str, Any]) -> list[str]:
    lines = [machine.line(found["machine"]), ""]
    if found["lmcache"] is None:
        lines.append("LMCache: skipped, not installed (make test-lmcache makes its environment)")
    else:
        lines.append(f"{'LMCache bench l2, 1000 × 16 KiB':<34}{'store':>10}{'lookup':>10}{'load':>10}   (median, ms)")
        for name, row in found["lmcache"].items():
            cells = [
                f"{row[step]:>10.1f}" if step in row else f"{'failed':>10}" for step in ("store", "lookup", "load")
            ]
            lines.append(f"{name:<34}" + "".join(cells))
    lines += ["", f"{'put, then get, by the own client':<34}" + "".join(f"{case:>24}" for case in CASES)]
    for name, cases in found["clients"].items():
        if cases is None:
            lines.append(f"{name:<34}  skipped: KVSCOPE_MOONCAKE_VENV names no environment")
            continue
        cells = [f"{row['put_s'] * 1e3:>12.2f} / {row['get_s'] * 1e3:.2f} ms" for row in cases.values()]
        lines.append(f"{name:<34}" + "".join(f"{cell:>24}" for cell in cells))
    return lines


if __name__ == "__main__":
    sys.exit(main())
