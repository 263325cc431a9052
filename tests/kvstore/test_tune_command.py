"""`kvstore tune` as it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvstore.cli import main

EIGHT = ["tune", "--gpu", "A100-80G", "--model", "llama-3-8b"]


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(EIGHT) == 0
    printed = capsys.readouterr().out
    assert "conversation_excerpt.jsonl.gz: 600 requests" in printed
    rows = [line.split() for line in printed.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["8", "16", "32", "64", "128"]
    assert [row[1] for row in rows] == ["32", "64", "128", "256", "512"]
    assert printed.splitlines()[-1].startswith("take 16: ")


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EIGHT, "--json", "--sizes", "32,16"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "kvscope.tune/1"
    assert found["recommended"] == 16
    assert [size["block_tokens"] for size in found["sizes"]] == [16, 32]
    assert found["kv_token_bytes"] == 131072
    assert all(bound["basis"] for bound in found["bounds"])


def test_a_slower_memory_that_was_measured_and_fp8(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--measured", "1700", "--memory", "85.9", "--dtype", "float8_e4m3", "--tensor-parallel", "2", "--json"]
    assert main([*EIGHT, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpu"]["bytes_per_s"] == 1.7e12
    assert found["gpu"]["source"] == "as measured"
    assert found["kv_token_bytes"] == 131072 / 2 / 2
    assert found["pool_bytes"] == pytest.approx(0.9 * 85.9e9 - 8_030_261_248)


def test_lengths_instead_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--measured", "2000", "--memory", "80", "--layers", "4", "--kv-heads", "2", "--head-dim", "64"]
    assert main(["tune", *words, "--weights", "1", "--lengths", "900,1", "--outputs", "200,0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["assumptions"]["moved"] == "prompt"
    assert found["lengths"]["shared_tokens"] is None
    assert {size["prefix_loss"] for size in found["sizes"]} == {None}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune"], "--gpu NAME is missing"),
        (["tune", "--gpu", "T1000", "--model", "llama-3-8b"], "no GPU 'T1000'"),
        (["tune", "--measured", "900", "--model", "llama-3-8b"], "--measured GB_PER_S and --memory GB"),
        (["tune", "--gpu", "H100"], "--model NAME is missing"),
        (["tune", "--gpu", "H100", "--layers", "32"], "instead of a name, --kv-heads, --head-dim, --weights"),
        (["tune", "--gpu", "L4", "--model", "llama-3-70b", "--tensor-parallel", "1"], "leave no room for KV"),
        ([*EIGHT, "--tensor-parallel", "0"], "--tensor-parallel 0"),
        ([*EIGHT, "--dtype", "int3"], "'dtype' must be one of"),
        ([*EIGHT, "--used", "1.5"], "--used 1.5"),
        ([*EIGHT, "--copy-us", "nan"], "--copy-us nan"),
        ([*EIGHT, "--weights", "inf"], "--weights inf"),
        ([*EIGHT, "--memory", "0"], "--memory 0"),
        ([*EIGHT, "--sizes", "16,24"], "--sizes '16,24'"),
        ([*EIGHT, "--json", "--markdown"], "--json or --markdown, not both"),
        ([*EIGHT, "--sizes", "x"], "--sizes 'x'"),
        ([*EIGHT, "--lengths", "10"], "MEAN,SIGMA is expected"),
        ([*EIGHT, "--lengths", "nan,1"], "MEAN,SIGMA is expected"),
        ([*EIGHT, "--outputs", "10,1"], "--outputs goes with --lengths"),
        ([*EIGHT, "--lengths", "100,1", "--moved", "prefix"], "says nothing of prefixes"),
        ([*EIGHT, "--lengths", "100,1", "--outputs", "1,0"], "no decode step"),
        ([*EIGHT, "--lengths", "100,1", "trace.jsonl"], "not both"),
        ([*EIGHT, "/nowhere/trace.jsonl"], "cannot be read"),
        ([*EIGHT, "/dev/zero"], "no regular file"),
        ([*EIGHT, "/nowhere/\x1b[31m"], "/nowhere/\\x1b[31m: cannot be read"),
    ],
)
def test_failures_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert not printed.out
    (line,) = printed.err.strip().splitlines()
    assert line.startswith("kvstore tune: ")
    assert said in line


def test_a_card_that_never_ends_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endless, long = tmp_path / "endless.json", tmp_path / "long.json"
    endless.symlink_to("/dev/zero")
    long.write_text(" " * (1 << 20) + "{}")
    for path, said in ((endless, "no regular file"), (long, "more than 1 MiB")):
        assert main(["tune", "--gpu", str(path), "--model", "llama-3-8b"]) == 2
        assert said in capsys.readouterr().err


def test_a_broken_trace_is_told_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": [1]}\n{"timestamp": 0}\n')
    assert main([*EIGHT, str(path)]) == 2
    assert "bad.jsonl:2: 'hash_ids' must be a list" in capsys.readouterr().err
