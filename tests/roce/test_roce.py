"""KV between two hosts over RoCE verbs: what a client gets, over which lane, and what it is told when the wire fails.

Asked for by ``make test-roce`` (KVSCOPE_TEST_ROCE=1): two guests under QEMU's emulation, a quarter of an hour on a
quiet machine. ``KVSCOPE_ROCE_FOLDER`` is where the image lies (default: the user's cache), ``KVSCOPE_ROCE_RUNS`` names
the runs (default: all), ``KVSCOPE_ROCE_RESULTS`` the file that the table is written to, ``KVSCOPE_ROCE_KEEP`` a folder
for what the guests write.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roce.guests import ROOT, Guests
from tests.roce.image import build, default_folder, missing_tools
from tests.roce.runs import RUNS, Result, Run, Stage
from tests.roce.table import write

MISSING = missing_tools()
pytestmark = [
    pytest.mark.skipif(not os.environ.get("KVSCOPE_TEST_ROCE"), reason="asked for by make test-roce"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs the Debian packages {' '.join(MISSING)}"),
]
WANTED = os.environ.get("KVSCOPE_ROCE_RUNS", "").split(",") if os.environ.get("KVSCOPE_ROCE_RUNS") else []
CHOSEN = [run for run in RUNS if not WANTED or run.name in WANTED]
DEADLINE_S = 8.0
SLACK_S = 4.0
"""One emulated processor serves the loop, NIXL's threads and the kernel's soft interrupts."""
SOME_READS = 1000
"""Packets of four reads: 16 blocks of 16 KiB each, 1 KiB a packet."""


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    image = build(Path(os.environ.get("KVSCOPE_ROCE_FOLDER") or default_folder()))
    kept = os.environ.get("KVSCOPE_ROCE_KEEP")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("roce")
    with Guests(image, folder) as guests:
        yield Stage(guests)


@pytest.fixture(scope="session")
def results(stage: Stage) -> Iterator[dict[str, Result]]:
    """Every run that was played; the table is written at the end."""
    found: dict[str, Result] = {}
    yield found
    if found:
        name = f"roce-{time.strftime('%Y-%m-%d')}.md"
        path = os.environ.get("KVSCOPE_ROCE_RESULTS") or ROOT / "benchmarks" / "results" / name
        write([found[run.name] for run in RUNS if run.name in found], Path(path))


@pytest.mark.parametrize("run", CHOSEN, ids=lambda run: run.name)
def test_no_wrong_byte_and_an_answer_in_time(run: Run, stage: Stage, results: dict[str, Result]) -> None:
    result = results[run.name] = stage.play(run)
    client = result.client
    assert client["wrong"] == 0
    for operation in ("get", "read", "put"):
        assert client[operation]["waited_s"] <= DEADLINE_S + SLACK_S, f"{operation} held its caller beyond its deadline"
    _CHECKS.get(run.name, _undisturbed)(result)
    if run.lane == "rc":
        assert any(lane.startswith("rc_") for lane in result.lanes), result.lanes
        assert result.counter("a", "sent_pkts") > SOME_READS
        assert result.counter("b", "rcvd_pkts") > SOME_READS
    else:
        assert any(lane.startswith("tcp") for lane in result.lanes), result.lanes
        assert not any(lane.startswith("rc_") for lane in result.lanes), result.lanes


def _undisturbed(result: Result) -> None:
    for operation in ("get", "read", "put"):
        assert result.client[operation]["ok"] > 0
    _mostly(result)


def _mostly(result: Result) -> None:
    """Where emulation gets too little of a busy machine, an operation may need more than its deadline, now and then."""
    said = result.client["get"]
    assert sum(said["errors"].values()) <= said["ok"] / 4, said


def _requests_lost(result: Result) -> None:
    assert result.client["get"]["ok"] > 0
    assert result.counter("b", "completer_retry_err") > 0
    assert result.counter("a", "out_of_seq_request") > 0


def _answers_lost(result: Result) -> None:
    assert result.client["get"]["ok"] > 0
    assert result.counter("b", "completer_retry_err") > 0
    assert result.counter("a", "duplicate_request") > result.counter("a", "out_of_seq_request")


def _link_down(result: Result) -> None:
    assert result.counter("a", "link_downed") >= 1
    assert result.client["get"]["ok_after"] > 0, "it goes on once the link is back"
    told = {kind for operation in ("get", "read", "put") for kind in result.client[operation]["errors"]}
    assert told <= {"DeadlineExceeded", "LeaseExpired", "ShardUnavailable"}, result.client["says"]


def _told_in_time(result: Result) -> None:
    """One after the other they ask: whichever was under way, or came first, is told by its deadline."""
    told = [result.client[operation].get("first_error") for operation in ("get", "read", "put")]
    kind, after = min((error for error in told if error), key=lambda error: error[1])
    assert kind in ("DeadlineExceeded", "LeaseExpired", "ShardUnavailable")
    assert after <= DEADLINE_S + SLACK_S
    assert result.client["get"]["first_error"][0] in ("DeadlineExceeded", "ShardUnavailable")


def _frozen(result: Result) -> None:
    _told_in_time(result)
    assert result.client["get"]["ok_after"] > 0, "it goes on once the shard does"


def _killed(result: Result) -> None:
    _told_in_time(result)
    assert result.client["get"]["first_error"][1] <= DEADLINE_S + SLACK_S
    assert result.client["get"]["ok_after"] == 0


def _over_tcp(result: Result) -> None:
    _undisturbed(result)
    bytes_sent = result.counter("a", "tx_bytes")
    assert bytes_sent > 1_000_000
    assert result.counter("a", "sent_pkts") < SOME_READS


_CHECKS = {
    "loss-requests": _requests_lost,
    "loss-answers": _answers_lost,
    "link-down": _link_down,
    "link-lost": _link_down,
    "frozen": _frozen,
    "killed": _killed,
    "tcp": _over_tcp,
}
