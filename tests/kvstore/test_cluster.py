"""Shards as processes: started together, found by a file, ended on every way out."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kvstore.client import Client, SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, StoreError
from tests.kvstore.process_rig import LAYOUT, ROOT, blocks_for, some_keys


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def test_shards_are_found_by_their_file_and_know_each_other() -> None:
    with LocalCluster(3, LAYOUT, 64, placement="head-group") as cluster:
        document = json.loads(cluster.file.read_text())
        assert [shard["address"] for shard in document["shards"]] == cluster.addresses
        assert len(set(cluster.pids)) == 3
        keys = some_keys(4, 1)
        with SyncClient(cluster.file, LAYOUT) as client:
            client.put(keys, blocks_for(keys))
        assert all("kv_pool_capacity_blocks" in page(url) for url in cluster.metrics_urls)
        end = time.monotonic() + 20
        while 'kv_peer_up{peer="2",shard="0"} 1.0' not in page(cluster.metrics_urls[0]):
            assert time.monotonic() < end
            time.sleep(0.1)
        cluster.kill(2, signal.SIGSTOP)
        while 'kv_peer_up{peer="2",shard="0"} 0.0' not in page(cluster.metrics_urls[0]):
            assert time.monotonic() < end
            time.sleep(0.1)
        made, pids = cluster.file.parent, cluster.pids
    assert not any(alive(pid) for pid in pids)  # the stopped one too
    assert not made.exists()


async def test_in_async_code_and_after_an_exception_nothing_is_left() -> None:
    cluster = LocalCluster(2, LAYOUT, 16)

    async def fails() -> None:
        async with cluster, await Client.connect(cluster.targets, LAYOUT) as client:
            assert len(client.shards) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert not any(alive(pid) for pid in cluster.pids)


def test_options_go_to_all_or_to_one() -> None:
    own = {1: {"naive_bitmap": True, "drain_us": 5}}
    with LocalCluster(2, LAYOUT, 64, own=own, environment={0: {"KVSTORE_COUNTERS": "off"}}) as cluster:
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in cluster.pids]
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in cluster.pids]
    assert [b"--naive-bitmap" in command for command in commands] == [False, True]
    assert [b"KVSTORE_COUNTERS=off" in environment for environment in environments] == [True, False]


def test_a_shard_that_does_not_come_up_says_why_and_nothing_is_left() -> None:
    with pytest.raises(StoreError, match=r"shard 0: a pool of .* MiB are free"):
        LocalCluster(2, LAYOUT, 1 << 34).start()
    with LocalCluster(1, LAYOUT, 16) as cluster:
        port = int(cluster.addresses[0].rsplit(":", 1)[1])
        with pytest.raises(StoreError, match=f"shard 0: cannot listen on 127.0.0.1:{port}: it is in use"):
            LocalCluster(1, LAYOUT, 16, port=port).start()
        with pytest.raises(StoreError, match="metrics"):
            LocalCluster(1, LAYOUT, 16, metrics_port=int(cluster.metrics_urls[0].split(":")[2].split("/")[0])).start()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_a_store_until_it_is_told(end: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    argv = [
        sys.executable,
        "-m",
        "kvstore.cli",
        "cluster",
        "--shards",
        "2",
        "--blocks",
        "32",
        "--listen",
        "127.0.0.1:0",
    ]
    argv += ["--metrics-port", "0", "--cluster-file", str(file), "--layout", LAYOUT.as_json()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert [line.split()[:2] for line in lines[:2]] == [["shard", "0"], ["shard", "1"]]
        assert all("/metrics" in line for line in lines[:2])
        shards = json.loads(file.read_text())["shards"]
        with SyncClient(file, LAYOUT) as client:
            assert len(client.client.shards) == 2
        process.send_signal(end)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""
    assert not file.exists()
    assert not any(alive(shard["pid"]) for shard in shards)


def test_the_command_tells_of_a_shard_that_dies_and_starts_nothing_again(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "kvstore.cli",
        "cluster",
        "--shards",
        "1",
        "--blocks",
        "32",
        "--listen",
        "127.0.0.1:0",
    ]
    argv += ["--metrics-port", "0", "--cluster-file", str(tmp_path / "c.json")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        os.kill(json.loads((tmp_path / "c.json").read_text())["shards"][0]["pid"], signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "shard 0 has ended" in errors


def test_a_cluster_file_of_a_running_cluster_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    with LocalCluster(1, LAYOUT, 16, cluster_file=file):
        before = file.read_text()
        with pytest.raises(BadRequest, match="running cluster"), LocalCluster(1, LAYOUT, 16, cluster_file=file):
            pass
        assert file.read_text() == before
        # Somebody else's by the time that we end: theirs stays.
        file.write_text(before.replace('"instance": "', '"instance": "f'))
    assert file.exists()


def test_what_a_killed_cluster_left_behind_goes_with_the_next_start(tmp_path: Path) -> None:
    code = "import os, sys, tests.kvstore.process_rig as r; from kvstore.cluster import LocalCluster\n"
    code += "c = LocalCluster(1, r.LAYOUT, 16); c.start(); print(c.file, flush=True); os.kill(os.getpid(), 9)"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    died = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    left = Path(died.stdout.strip()).parent
    assert left.is_dir()
    code = "import tests.kvstore.process_rig as r; from kvstore.cluster import LocalCluster\n"
    code += "with LocalCluster(1, r.LAYOUT, 16): pass"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, timeout=60)
    assert not left.exists()


def test_a_directory_whose_maker_cannot_be_seen_but_lives_is_left_alone(tmp_path: Path) -> None:
    """As of a cluster in another container that shares this /tmp: its process number says nothing here."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    theirs = tmp_path / f"kvstore-{gone.pid}-abc"
    theirs.mkdir()
    held = os.open(theirs, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    code = "import tests.kvstore.process_rig as r; from kvstore.cluster import LocalCluster\n"
    code += "with LocalCluster(1, r.LAYOUT, 16): pass"
    run = [sys.executable, "-c", code]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run(run, cwd=ROOT, env=env, check=True, timeout=60)
    assert theirs.exists()
    os.close(held)
    subprocess.run(run, cwd=ROOT, env=env, check=True, timeout=60)
    assert not theirs.exists()
