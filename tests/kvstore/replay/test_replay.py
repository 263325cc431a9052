"""`kvstore replay` on real clusters: the counts that the oracles say, errors in one line."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kvstore.cluster import LocalCluster
from kvstore.errors import ShardUnavailable
from kvstore.layout import Layout
from kvstore.replay.cli import run
from kvstore.replay.content import layout
from kvstore.replay.oracle import infinite, strict_lru
from kvstore.replay.trace import excerpt, read_trace


def replay(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run([*words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_excerpt_on_two_shards_hits_exactly_what_was_seen_before(capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(capsys, "--shards", "2")
    expected = infinite(read_trace(excerpt()))
    assert (found["requests"], found["blocks"]) == (600, expected.blocks) == (600, 16_495)
    assert (found["block_hits"], found["prefix_hits"]) == (expected.block_hits, expected.prefix_hits) == (2_783, 2_783)
    assert found["block_hit_ratio"] == 2_783 / 16_495
    assert (found["store_blocks_got"], found["store_blocks_put"]) == (2_783, 16_495 - 2_783)
    assert found["bytes_moved"] == 16_495 * 1024
    assert (found["evictions"], found["lost"], found["wrong"], found["refused_puts"]) == (0, 0, 0, 0)
    assert 0 < found["get_p50_s"] <= found["get_p99_s"]


def test_a_small_pool_is_close_to_strict_lru(capsys: pytest.CaptureFixture[str]) -> None:
    """One request at a time: what is left of the difference is sampling, and the order in which a request counts."""
    room = 1_500
    words = ("--limit", "400", "--shards", "1", "--blocks", str(room), "--lanes", "1", "--lease-ms", "0")
    found = replay(capsys, *words)
    strict = strict_lru(read_trace(excerpt(), limit=400), [room])
    assert infinite(read_trace(excerpt(), limit=400)).block_hits > 1.1 * strict.block_hits
    assert found["block_hits"] == pytest.approx(strict.block_hits, rel=0.12)
    assert found["evictions"] == found["store_blocks_put"] - room
    assert found["oracles"][f"strict LRU of {room} windows"]["block_hit_ratio"] == strict.block_hit_ratio


def test_windows_as_runs_of_blocks_with_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(capsys, "--limit", "60", "--shards", "2", "--block-tokens", "128", "--sessions")
    assert found["block_hits"] == infinite(read_trace(excerpt(), limit=60)).block_hits
    assert found["store_blocks_put"] > 3 * (found["blocks"] - found["block_hits"])


def test_a_second_replay_on_a_running_store_hits_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(2, layout(256, 4096), 4_000, placement="head-group-window") as cluster:
        words = ("--connect", cluster.targets, "--limit", "40")
        first, second = replay(capsys, *words), replay(capsys, "--connect", str(cluster.file), "--limit", "40")
    assert first["block_hits"] < first["blocks"] == second["block_hits"]
    assert second["bytes_moved"] == second["store_blocks_got"] * 4096
    assert second["block_hit_ratio"] == 1


def test_at_the_traces_pace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"timestamp": at, "input_length": 512, "output_length": 1, "hash_ids": [7]} for at in (1000, 61_000)]
    trace = tmp_path / "slow.jsonl"
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    found = replay(capsys, str(trace), "--shards", "1", "--speed", "100")
    assert found["seconds"] >= 0.6
    assert found["block_hits"] == 1


def test_a_put_that_shards_refuse_is_one_here_and_one_on_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Every window is leased while the next requests come: there is room for few of them."""
    with LocalCluster(3, layout(512), 40, placement="head-group-window") as cluster:
        found = replay(capsys, "--connect", cluster.targets, "--limit", "60", "--lanes", "1")
        pages = [urllib.request.urlopen(url, timeout=5).read().decode() for url in cluster.metrics_urls]
    refusals = [sum(map(float, re.findall(r"^kv_put_refusals_total\{.* (\S+)$", page, re.MULTILINE))) for page in pages]
    assert 0 < found["refused_puts"] < 60
    assert max(refusals) <= found["refused_puts"] < sum(refusals)


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else() -> None:
    words = [sys.executable, "-m", "kvstore.cli", "replay", "--limit", "20", "--shards", "1"]
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=60)
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert shown.startswith("\r")
    assert shown.rstrip("\x1b[K\r\n ").rpartition("\r")[2].startswith("█" * 30 + " 100%  20/20 requests")
    assert "\r" not in done.stdout
    assert not subprocess.run(words, capture_output=True, text=True, timeout=60).stderr


def test_what_cannot_be_played_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"timestamp": 0}\n')
    for words, message in (
        ([str(broken)], f"{broken}:1: 'hash_ids' must be a list"),
        (["--connect", "127.0.0.1:9"], "cannot be reached"),
        (["--block-tokens", "100"], "--block-tokens must divide 512"),
        (["--placement", "round"], "no placement 'round'"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kvstore.cli", "replay", *words], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    for words in (["--speed", "0"], ["--connect", "x:1", "--blocks", "5"], ["--lanes", "0"]):
        with pytest.raises(SystemExit) as caught:
            run(words)
        assert caught.value.code == 2


def test_a_store_of_other_windows_is_refused_and_a_dead_one_named(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(1, Layout("m", block_tokens=16, window_tokens=256), 64) as cluster:
        with pytest.raises(Exception, match="windows of 256 tokens"):
            run(["--connect", cluster.targets])
        targets = cluster.targets
    with pytest.raises(ShardUnavailable, match="cannot be reached"):
        run(["--connect", targets])
