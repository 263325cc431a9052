"""Reading traces: the format, and one clear line for what is not in it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from kvstore.replay.trace import LONGEST_LINE, TraceError, excerpt, read_trace

GOOD = {"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [4, 9]}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_request_and_what_its_windows_hold(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.jsonl", GOOD, "", {**GOOD, "input_length": 1, "hash_ids": [4]}))
    assert len(trace) == 2
    first = trace[0]
    assert (first.timestamp_ms, first.input_tokens, first.output_tokens) == (3000, 600, 7)
    assert first.windows.tolist() == [4, 9]
    assert first.valid().tolist() == [512, 88]
    assert trace[1].valid().tolist() == [1]


def test_the_excerpt_ships_with_its_notice() -> None:
    trace = read_trace(excerpt())
    assert len(trace) == 600
    assert sum(len(request.windows) for request in trace) == 16_495
    assert "Apache License, Version 2.0" in (excerpt().parent / "NOTICE").read_text()
    assert len(read_trace(excerpt(), limit=7)) == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2: not JSON"),
        ("[1]", r":2: a request must be a JSON object, not \[1\]"),
        ({**GOOD, "hash_ids": None}, ":2: 'hash_ids' must be a list of integers, at least one, not missing"),
        ({**GOOD, "input_length": 0, "hash_ids": []}, r":2: 'hash_ids' must be .* at least one, not \[\]"),
        ({**GOOD, "hash_ids": [1, "x"]}, ":2: a hash id must be a non-negative integer, not 'x'"),
        ({**GOOD, "hash_ids": [1, -2]}, "not -2"),
        ({**GOOD, "hash_ids": [1, True]}, "not True"),
        ({**GOOD, "hash_ids": [1, 2.0]}, r"not 2\.0"),
        ({**GOOD, "hash_ids": [1, 2**70]}, "non-negative integer"),
        ({**GOOD, "timestamp": "now"}, ":2: 'timestamp' must be a non-negative integer, not 'now'"),
        ({**GOOD, "output_length": -1}, "'output_length' must be"),
        ({k: v for k, v in GOOD.items() if k != "input_length"}, "'input_length' .* missing or null"),
        ({**GOOD, "input_length": 5000}, ":2: 5000 input tokens are 10 windows of 512, but there are 2 hash ids"),
        ({**GOOD, "hash_ids": [9, 4]}, ":2: hash id 9 stands at place 0 here and at place 1 in line 1"),
        ({**GOOD, "hash_ids": [7, 7]}, "hash id 7 stands at place 1 here and at place 0 in line 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(write(tmp_path / "t.jsonl", GOOD, line))
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nowhere.jsonl")
    with pytest.raises(TraceError, match="directory"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="no request"):
        read_trace(write(tmp_path / "empty.jsonl"))
    (tmp_path / "not.gz").write_bytes(b"plain")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "not.gz")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode() * 1)[:-9])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "cut.gz")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(TraceError, match=":1: not JSON"):
        read_trace(tmp_path / "bytes.jsonl")


def test_what_never_ends_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for endless in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(TraceError, match="no regular file"):
            read_trace(endless)
    good = json.dumps(GOOD)
    longest = good + " " * (LONGEST_LINE - len(good) - 1) + "\n"
    assert len(read_trace(write(tmp_path / "long.jsonl", longest[:-1]))) == 1
    (tmp_path / "longer.jsonl.gz").write_bytes(gzip.compress((good + "\n " + longest).encode()))
    with pytest.raises(TraceError, match=r"longer\.jsonl\.gz:2: a line of more than 4 MiB is no request"):
        read_trace(tmp_path / "longer.jsonl.gz")
