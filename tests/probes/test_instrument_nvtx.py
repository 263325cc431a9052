"""NVTX ranges as a real, very small injected profiler sees them (`nvtx_spy.c`), and what is said when none can."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.instrument import Instrument, begun, configure
from probes.instrument.context import unsigned
from probes.instrument.ranges import INJECTION, Ranges

ROOT = Path(__file__).resolve().parents[2]
WORK = """
import asyncio, json, sys
from probes.instrument import Instrument, begun, configure
configure(sys.argv[1])
site = Instrument("kvstore.shard")
said = []
for n in range(1, 41):
    with site.span("kv.put", kind="server", blocks=n) as outer, site.span("kv.copy", blocks=n):
        said.append(outer.traceparent)

async def one(n):
    async with site.span("kv.get", kind="client", blocks=n):
        await asyncio.sleep(0.002 * (3 - n % 3))

async def many():
    await asyncio.gather(*(one(n) for n in range(12)))

asyncio.run(many())
import nvtx
made = nvtx.get_domain("kvstore").get_event_attributes
kept = made.cache_info().currsize if hasattr(made, "cache_info") else 0
print(json.dumps({"said": said, "begun": begun(), "kept": kept}))
"""


class Attributes:
    """What an event says."""

    def __init__(self, message: str, color: str, category: None = None, payload: int = 0) -> None:
        self.message = message
        self.payload = payload


class Domain:
    """A domain as newer releases of `nvtx` have it, which records."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def get_registered_string(self, text: str) -> str:
        return text

    def get_event_attributes(self, message: str, color: str) -> Attributes:
        return Attributes(message, color)

    def push_range(self, attributes: Attributes) -> None:
        self.calls.append(("push", attributes.message, attributes.payload))

    def pop_range(self) -> None:
        self.calls.append(("pop",))

    def mark(self, attributes: Attributes) -> None:
        self.calls.append(("mark", attributes.message, attributes.payload))

    def start_range(self, attributes: Attributes) -> int:
        return 0

    def end_range(self, handle: int) -> None:
        pass


class DummyDomain(Domain):
    """What newer releases of `nvtx` give when they take a profiler for absent."""


class Recorder:
    """Something that offers what the `nvtx` package does."""

    def __init__(self, domain: type[Domain] = Domain) -> None:
        self.domain = domain()

    def get_domain(self, name: str) -> Domain:
        return self.domain


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    configure("off")


@pytest.fixture(scope="module")
def spy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("nvtx", reason="install kvscope[trace]")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, so no profiler to inject")
    library = tmp_path_factory.mktemp("spy") / "nvtx_spy.so"
    source = Path(__file__).with_name("nvtx_spy.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True, timeout=60)
    return library


def observed(spy: Path, tmp_path: Path, trace: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the working process said of itself, and what the profiler saw of it."""
    seen = tmp_path / "seen.jsonl"
    environment = {**os.environ, INJECTION: str(spy), "NVTX_SPY_FILE": str(seen)}
    done = subprocess.run(
        [sys.executable, "-c", WORK, trace], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), [json.loads(line) for line in seen.read_text().splitlines()]


def test_a_profiler_sees_one_range_a_call_with_its_blocks(spy: Path, tmp_path: Path) -> None:
    said, seen = observed(spy, tmp_path, "nvtx")
    pushed = [event for event in seen if event["event"] == "push"]
    assert [event["payload"] for event in pushed if event["name"] == "kv.put"] == list(range(1, 41))
    assert sum(event["event"] == "pop" for event in seen) == 80
    assert {event["domain"] for event in pushed} == {"kvstore"}
    assert not [event for event in seen if event["event"] == "mark"], "no span, no id"
    assert said["begun"] == [0, 92]


def test_work_that_awaits_has_ranges_that_may_overlap(spy: Path, tmp_path: Path) -> None:
    _, seen = observed(spy, tmp_path, "nvtx")
    started = [event["payload"] for event in seen if event["event"] == "start"]
    assert sorted(started) == list(range(12))
    ended = [event["id"] for event in seen if event["event"] == "end"]
    assert sorted(ended) == list(range(1, 13))
    assert ended != sorted(ended), "the tasks ended in the order they began in: nothing overlapped"


def test_a_span_is_found_by_the_mark_behind_its_range(spy: Path, tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="install kvscope[trace]")
    said, seen = observed(spy, tmp_path, "otel,nvtx")
    found = []
    for at, event in enumerate(seen):
        if event["event"] == "push" and event["name"] == "kv.put":
            span, high, low = seen[at + 1 : at + 4]
            assert [mark["name"] for mark in (span, high, low)] == ["kv.span", "kv.trace_hi", "kv.trace_lo"]
            words = [unsigned(mark["payload"]) for mark in (high, low, span)]
            found.append("-".join(("{:016x}{:016x}".format(*words[:2]), f"{words[2]:016x}")))
    assert found == [traceparent[3:52] for traceparent in said["said"]]
    assert any(int(ids[33:], 16) >> 63 for ids in found), "no id needed its sign bit: draw more"
    assert said["begun"] == [92, 92]
    assert said["kept"] <= 8, "nvtx keeps something for every payload that it has seen"


def test_no_profiler_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INJECTION, raising=False)
    configure("nvtx", counters=False)
    with Instrument("t").span("kv.put", blocks=3):
        pass
    assert begun().ranges == 0


def test_a_domain_that_records_nothing_is_said_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(INJECTION, "/opt/profiler/libToolsInjection64.so")
    with caplog.at_level(logging.WARNING, "kvscope.instrument"):
        assert Ranges(Recorder(DummyDomain)).silent
    (record,) = caplog.records
    assert "records nothing" in record.message
    assert "nvtx==0.2.11" in record.message
    caplog.clear()
    assert not Ranges(Recorder()).silent
    monkeypatch.delenv(INJECTION)
    Ranges(Recorder(DummyDomain))
    assert not caplog.records


def test_a_range_closes_when_its_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "nvtx", recorder)
    monkeypatch.setenv(INJECTION, "/opt/profiler/libToolsInjection64.so")
    configure("nvtx")
    with pytest.raises(OSError, match="disk"), Instrument("t").span("kv.put", blocks=2):
        raise OSError("disk")
    assert recorder.domain.calls == [("push", "kv.put", 2), ("pop",)]
