"""One call site, three instruments: what is off is a shared no-op, what is on follows one trace through processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes import instrument as instruments
from probes.instrument import NO_SPAN, Instrument, InstrumentError, Operation, configure
from probes.instrument.context import parse, render, signed, unsigned

pytest.importorskip("opentelemetry.sdk", reason="install kvscope[trace]")
ROOT = Path(__file__).resolve().parents[2]
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-1] + "0"


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    configure("off")


@pytest.fixture
def spans(tmp_path: Path) -> Any:
    """Switches spans on; called again it sends what waits and gives the spans by name."""
    file = tmp_path / "spans.jsonl"
    configure("otel", file=str(file), service="kvstore", instance="shard-3")

    def read() -> list[dict[str, Any]]:
        instruments.shutdown()
        return [json.loads(line) for line in file.read_text().splitlines()]

    return read


def test_off_is_one_shared_no_op() -> None:
    configure("off", counters=False)
    site = Instrument("t")
    meter = Operation("put", [1])
    span = site.span("kv.put", kind="server", parent=PARENT, blocks=3, meter=meter)
    assert span is NO_SPAN
    assert site.span is Instrument("other").span, "the choice is the function itself"
    with span as entered:
        assert (entered.traceparent, entered.trace_id) == ("", None)
        entered.set({"kv.runs": 1})
        entered.link(PARENT)
    assert meter.seconds.count == 0
    assert instruments.begun() == (0, 0)


def test_counters_alone_need_no_tracing() -> None:
    configure("off")
    site, meter = Instrument("t"), Operation("put", [1])
    with site.span("kv.put", meter=meter):
        assert meter.inflight == 1
    with pytest.raises(OSError, match="disk"), site.span("kv.put", meter=meter):
        raise OSError("disk")
    with site.span("kv.put", meter=meter) as span:
        span.result("refused")
    assert meter.results == {"ok": 1, "refused": 1, "error": 1}
    assert meter.seconds.count == 3
    assert meter.inflight == 0
    assert site.span("kv.put") is NO_SPAN, "a site without a meter has nothing to count"


def test_nothing_heavy_is_loaded_while_off() -> None:
    code = (
        "import sys, probes.instrument as i\n"
        "with i.Instrument('t').span('kv.put', blocks=2): pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'opentelemetry', 'nvtx', 'grpc'}))\n"
        "print(sorted(m for m in sys.modules if m.startswith('probes') and 'instrument' not in m))\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVSTORE_")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "['probes']"], done.stderr


def test_the_environment_decides_at_the_first_call(tmp_path: Path) -> None:
    code = (
        "from probes.instrument import Instrument, shutdown\n"
        "site = Instrument('t')\n"
        "with site.span('kv.get', kind='client', blocks=4) as span: print(span.traceparent)\n"
        "shutdown()\n"
    )
    file = tmp_path / "spans.jsonl"
    environment = {**os.environ, "KVSTORE_TRACE": "otel", "KVSTORE_TRACE_FILE": str(file)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    span = json.loads(file.read_text())
    said = parse(done.stdout.strip())
    assert said is not None
    assert (f"{said.trace_id:032x}", f"{said.span_id:016x}") == (span["traceId"], span["spanId"])
    assert said.flags & 1
    assert span["attributes"] == {"kv.blocks": 4}


def test_a_wrong_word_in_the_environment_never_ends_an_operation() -> None:
    code = (
        "from probes.instrument import Instrument\nwith Instrument('t').span('kv.get') as s: print(repr(s.traceparent))"
    )
    environment = {**os.environ, "KVSTORE_TRACE": "otle"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "''"
    assert "unknown 'otle'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_word_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InstrumentError, match=r"KVSTORE_TRACE: unknown 'jaeger'"):
        configure("otel,jaeger")
    with pytest.raises(InstrumentError, match=r"KVSTORE_TRACE_FILE: .*nowhere"):
        configure("otel", file=str(tmp_path / "nowhere" / "f"))


def test_a_trace_runs_from_client_to_shard_to_log(spans: Any) -> None:
    client, shard, log = (Instrument(f"kvstore.{name}") for name in ("client", "shard", "log"))
    puts = []
    for _ in range(3):
        with client.span("kv.put", kind="client", blocks=8) as calling:
            assert len(calling.traceparent) == 55
            with shard.span("kv.put", kind="server", parent=calling.traceparent, blocks=8) as serving:
                puts.append(serving.traceparent)
    with log.span("kv.log.flush", parent=puts[0], links=puts):
        pass
    found = spans()
    by_id = {span["spanId"]: span for span in found}
    flush = next(span for span in found if span["name"] == "kv.log.flush")
    servers = [span for span in found if span["kind"] == "server"]
    assert len(found) == 7
    assert len({span["traceId"] for span in found}) == 3
    for server in servers:
        caller = by_id[server["parentSpanId"]]
        assert (caller["kind"], caller["traceId"], caller["parentSpanId"]) == ("client", server["traceId"], "")
        assert caller["startTimeUnixNano"] <= server["startTimeUnixNano"] <= server["endTimeUnixNano"]
    assert [(link["traceId"], link["spanId"]) for link in flush["links"]] == [
        (s["traceId"], s["spanId"]) for s in servers
    ]
    assert flush["traceId"] == servers[0]["traceId"]
    assert flush["resource"]["service.instance.id"] == "shard-3"
    assert {span["scope"] for span in found} == {"kvstore.client", "kvstore.shard", "kvstore.log"}


GUEST = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from probes.instrument import Instrument, configure, current_traceparent, shutdown
kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
configure("otel")
with provider.get_tracer("app").start_as_current_span("request") as request:
    with Instrument("kvstore.client").span("kv.get", kind="client"):
        inside = current_traceparent()
shutdown()
get = next(span for span in kept.get_finished_spans() if span.name == "kv.get")
print(len(kept.get_finished_spans()), get.parent.span_id == request.get_span_context().span_id)
print(get.context.trace_id == request.get_span_context().trace_id, f"{get.context.span_id:016x}" in inside)
"""


def test_within_a_traced_application_spans_go_where_its_own_go() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KVSTORE_", "OTEL_"))}
    done = subprocess.run([sys.executable, "-c", GUEST], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "True", "True", "True"], done.stderr


def test_a_full_queue_loses_spans_and_says_so(
    spans: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("probes.instrument.otel.QUEUE_SPANS", 3)
    for _ in range(50):
        with Instrument("t").span("kv.get"):
            pass
    assert 3 <= len(spans()) < 50
    assert len([record for record in caplog.records if "lost" in record.message]) == 1


def test_an_outer_span_is_the_parent_of_an_inner_one(spans: Any) -> None:
    site = Instrument("kvstore.client")
    with site.span("request"), site.span("kv.get", kind="client"):
        pass
    inner, outer = spans()
    assert inner["parentSpanId"] == outer["spanId"]


def test_tasks_that_interleave_keep_their_own_trace(spans: Any) -> None:
    site = Instrument("kvstore.shard")

    async def serve(number: int) -> None:
        async with site.span("outer", kind="server", attributes={"n": number}):
            await asyncio.sleep(0.001 * (3 - number))
            with site.span("inner", attributes={"n": number}):
                pass

    async def both() -> None:
        await asyncio.gather(*(serve(number) for number in range(3)))

    asyncio.run(both())
    found = spans()
    outer = {span["attributes"]["n"]: span for span in found if span["name"] == "outer"}
    inner = {span["attributes"]["n"]: span for span in found if span["name"] == "inner"}
    assert len({span["traceId"] for span in outer.values()}) == 3
    assert {n: span["parentSpanId"] for n, span in inner.items()} == {n: span["spanId"] for n, span in outer.items()}


@pytest.mark.parametrize(
    "parent", ["", "rubbish", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", PARENT + "-more", "ff" + PARENT[2:]]
)
def test_an_invalid_parent_starts_a_new_trace(parent: str, spans: Any) -> None:
    with Instrument("t").span("kv.put", kind="server", parent=parent):
        pass
    (span,) = spans()
    assert span["parentSpanId"] == ""
    assert span["traceId"] != PARENT[3:35]


def test_what_the_caller_does_not_sample_is_not_kept_but_carried_on(spans: Any) -> None:
    meter = Operation("put", [1])
    with Instrument("t").span("kv.put", kind="server", parent=UNSAMPLED, meter=meter) as span:
        assert span.traceparent.startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")
        assert span.traceparent.endswith("-00")
        assert span.trace_id is None, "an exemplar must not name a trace that nobody keeps"
    assert spans() == []
    assert meter.seconds.count == 1
    assert meter.seconds.snapshot().exemplars == (None, None)


def test_the_trace_of_a_slow_operation_is_its_buckets_exemplar(spans: Any) -> None:
    meter = Operation("put", [10.0])
    with Instrument("t").span("kv.put", meter=meter):
        pass
    (span,) = spans()
    kept = meter.seconds.snapshot().exemplars[0]
    assert kept is not None
    assert kept.trace_id == span["traceId"]


def test_how_it_ended_is_in_the_span(spans: Any) -> None:
    class RefusedError(Exception):
        reason = "no_space"

    def result_of(failure: BaseException) -> str:
        return "refused" if isinstance(failure, RefusedError) else "error"

    site, meter = Instrument("t"), Operation("put", [1], result_of)
    for failure in (RefusedError("full"), RuntimeError("broken")):
        with pytest.raises(type(failure)), site.span("kv.put", meter=meter):
            raise failure
    refused, broken = spans()
    assert refused["attributes"] == {"kv.result": "refused", "error.type": "no_space"}
    assert refused["status"] == "unset"
    assert broken["attributes"] == {"kv.result": "error", "error.type": "RuntimeError"}
    assert broken["status"] == "error"
    assert meter.results == {"ok": 0, "refused": 1, "error": 1}


def test_every_span_is_counted(spans: Any) -> None:
    site = Instrument("t")
    for _ in range(600):
        with site.span("kv.get"):
            pass
    assert instruments.begun().spans == 600
    assert len(spans()) == 600


def test_ids_survive_their_way_through_a_signed_payload() -> None:
    for word in (1, 2**63 - 1, 2**63, 2**64 - 1):
        assert -(2**63) <= signed(word) < 2**63
        assert unsigned(signed(word)) == word


def test_parse_reads_what_render_writes() -> None:
    found = parse(PARENT)
    assert found is not None
    assert render(*found) == PARENT
    later = parse("01" + PARENT[2:] + "-extra")
    assert later is not None, "a later version may say more behind a dash"
    assert parse(PARENT.upper()) is None
