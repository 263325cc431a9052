"""A real Prometheus scrapes shards' pages and gives their exemplars back: a slow bucket leads to its trace."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.client import SyncClient
from kvstore.cluster import LocalCluster
from kvstore.messages import Durability
from kvstore.page import StoreCollector, serve_metrics
from probes.instrument import configure
from tests.kvstore.page_source import LAYOUT, TRACE, used

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]
SHARDS = ("0", "1")
CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
storage: {{exemplars: {{max_exemplars: 1000}}}}
scrape_configs: [{{job_name: kvstore, static_configs: [{{targets: {targets}}}]}}]
"""


class Pages:
    """The pages of several shards on a loop of their own, as each shard serves its own."""

    def __init__(self) -> None:
        self.sources = {shard: used(shard=shard) for shard in SHARDS}
        self.ports: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._servers = [
            asyncio.run_coroutine_threadsafe(serve_metrics(StoreCollector(source)), self._loop).result(10)
            for source in self.sources.values()
        ]
        self.ports = [server.address[1] for server in self._servers]

    def close(self) -> None:
        for server in self._servers:
            asyncio.run_coroutine_threadsafe(server.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Prometheus:
    """A server of its own, with exemplar storage."""

    def __init__(self, where: Path, targets: list[int]) -> None:
        (where / "prometheus.yml").write_text(
            CONFIG.format(targets=json.dumps([f"127.0.0.1:{port}" for port in targets]))
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = where / "log"
        command = [
            "prometheus",
            "--enable-feature=exemplar-storage",
            f"--config.file={where / 'prometheus.yml'}",
            f"--storage.tsdb.path={where / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._log.open("w"))

    def ask(self, path: str, **query: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert answer["status"] == "success", answer
        return answer["data"]

    def until(self, true: Callable[[], Any], what: str) -> Any:
        """Ask until something is there; half a minute at most."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                found = true()
            except (OSError, json.JSONDecodeError):
                found = None
            if found:
                return found
            time.sleep(0.2)
        pytest.fail(f"no {what}: {self._log.read_text()[-2000:]}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    serving = Pages()
    yield serving
    serving.close()


@pytest.fixture(scope="module")
def prometheus(pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), pages.ports)
    try:
        server.until(lambda: len(server.ask("query", query="kv_store_info")["result"]) == len(SHARDS), "scrape")
        yield server
    finally:
        server.close()


def test_every_shard_is_scraped_whole(pages: Pages, prometheus: Prometheus) -> None:
    targets = prometheus.ask("targets")["activeTargets"]
    assert [(target["health"], target["lastError"]) for target in targets] == [("up", "")] * len(SHARDS)
    for row in prometheus.ask("query", query="scrape_samples_scraped")["result"]:
        assert float(row["value"][1]) > 500
    blocks = prometheus.ask("query", query='sum by (shard) (kv_pool_blocks{state!="free"})')["result"]
    assert {row["metric"]["shard"]: row["value"][1] for row in blocks} == dict.fromkeys(SHARDS, "200")


def test_types_are_those_of_the_contract(prometheus: Prometheus) -> None:
    metadata = prometheus.ask("metadata")
    expected = {
        "kv_pool_blocks": "gauge",
        "kv_operations": "counter",
        "kv_operation_seconds": "histogram",
        "kv_session_idle_seconds": "summary",
    }
    assert {name: metadata[name][0]["type"] for name in expected} == expected


def test_a_bucket_leads_to_its_trace(pages: Pages, prometheus: Prometheus) -> None:
    late = "a3ce929d0e0e47364bf92f3577b34da6"
    put = pages.sources["1"].meters.operations["put"]
    put.inflight += 1
    put.done(0.8, "ok", late)

    def exemplars() -> dict[tuple[str, str], str]:
        now = time.time()
        question = 'kv_operation_seconds_bucket{op="put"}'
        rows = prometheus.ask("query_exemplars", query=question, start=now - 300, end=now + 60)
        return {
            (row["seriesLabels"]["shard"], row["seriesLabels"]["le"]): found["labels"]["trace_id"]
            for row in rows
            for found in row["exemplars"]
        }

    found = prometheus.until(lambda: (kept := exemplars()) and late in kept.values() and kept, "exemplar")
    assert found == {("0", "0.005"): TRACE, ("1", "0.005"): TRACE, ("1", "1.0"): late}


@pytest.fixture(scope="module")
def traced_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Path]]:
    """Three shards that trace, after some work by a client that traces too."""
    pytest.importorskip("opentelemetry.sdk", reason="install kvscope[trace]")
    file = tmp_path_factory.mktemp("trace") / "spans.jsonl"
    own = {n: {"KVSTORE_TRACE": "otel", "KVSTORE_TRACE_FILE": str(file)} for n in range(3)}
    with LocalCluster(3, LAYOUT, 256, durability="log+sync", environment=own) as cluster:
        configure("otel", file=str(file))
        try:
            with SyncClient(cluster.targets, LAYOUT) as client:
                rng = np.random.default_rng(4)
                keys = rng.integers(1, 2**63, (60, 4)).astype(np.uint64)
                data = rng.integers(0, 255, (60, LAYOUT.block_bytes), np.uint8)
                client.put(keys, data, durability=Durability.LOG_SYNC)
                for _ in range(4):
                    assert client.get(client.lookup(keys, lease_ms=1000)).found.all()
        finally:
            configure("off")
        yield cluster, file


def page_of(url: str, accept: str = "text/plain") -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_page_of_every_shard(traced_cluster: tuple[LocalCluster, Path]) -> None:
    for number, url in enumerate(traced_cluster[0].metrics_urls):
        text = page_of(url)
        command = ["promtool", "check", "metrics"]
        checked = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
        samples = [line for line in text.splitlines() if not line.startswith("#")]
        assert all(f'shard="{number}"' in line for line in samples)
        (puts,) = [
            line for line in samples if line.startswith("kv_operations_total") and 'op="put",result="ok"' in line
        ]
        assert puts.endswith(" 1.0")


def test_a_trace_of_the_cluster_runs_from_client_to_flush(traced_cluster: tuple[LocalCluster, Path]) -> None:
    cluster, file = traced_cluster
    wanted = {("client", "kv.put"): 1, ("client", "kv.lookup"): 4, ("client", "kv.get"): 4}
    wanted |= {("server", "kv.put"): 3, ("server", "kv.lookup"): 12, ("internal", "kv.log.flush"): 3}
    deadline = time.monotonic() + 20
    spans: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        spans = [json.loads(line) for line in file.read_text().splitlines()]
        if sum((span["kind"], span["name"]) in wanted for span in spans) >= sum(wanted.values()):
            break
        time.sleep(0.1)
    counted = Counter((span["kind"], span["name"]) for span in spans)
    assert {key: counted[key] for key in wanted} == wanted
    (put,) = [span for span in spans if span["name"] == "kv.put" and span["kind"] == "client"]
    family = [span for span in spans if span["traceId"] == put["traceId"]]
    assert len(family) == 7, "one client, three shards, three flushes"
    served = {span["spanId"]: span for span in family if span["kind"] == "server"}
    assert {span["parentSpanId"] for span in served.values()} == {put["spanId"]}
    assert {span["resource"]["service.instance.id"] for span in served.values()} == {"shard-0", "shard-1", "shard-2"}
    flushes = [span for span in family if span["name"] == "kv.log.flush"]
    assert {span["links"][0]["spanId"] for span in flushes} == set(served)
    shown = "".join(page_of(url, "application/openmetrics-text; version=1.0.0") for url in cluster.metrics_urls)
    assert shown.count(f'# {{trace_id="{put["traceId"]}"}}') >= 9, "operation, log stage and flush of each shard"
