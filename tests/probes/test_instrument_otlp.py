"""Spans on their way to a collector: OTLP over HTTP, received and decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from probes import instrument as instruments
from probes.instrument import Instrument, configure

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="install kvscope[trace]")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector(ThreadingHTTPServer):
    """Keeps what is posted to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receive)
        self.got: list[tuple[str, bytes]] = []


class Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    configure("off")
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_a_collector_gets_every_span(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    configure("otel", file="", service="kvstore", instance="shard-1")
    site = Instrument("kvstore.shard")
    with site.span("kv.put", kind="server", parent=PARENT, blocks=7):
        pass
    with site.span("kv.log.flush", links=[PARENT, PARENT]):
        pass
    instruments.shutdown()
    assert {path for path, _ in collector.got} == {"/v1/traces"}
    spans, names = [], {}
    for _, body in collector.got:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names |= {one.key: one.value.string_value for one in resource.resource.attributes}
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    put, flush = sorted(spans, key=lambda span: span.start_time_unix_nano)
    assert (put.trace_id.hex(), put.parent_span_id.hex()) == (PARENT[3:35], PARENT[36:52])
    assert put.attributes[0].value.int_value == 7
    assert [link.span_id.hex() for link in flush.links] == [PARENT[36:52]] * 2
    assert (names["service.name"], names["service.instance.id"]) == ("kvstore", "shard-1")


def test_a_collector_that_is_not_there_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.instrument.otel.CLOSE_S", 0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        configure("otel", file="")
        with Instrument("t").span("kv.put"):
            pass
        configure("off")
    still = [thread.name for thread in threading.enumerate() if thread.name == "kvstore-trace"]
    assert still, "it waited until the exporter had given up"
