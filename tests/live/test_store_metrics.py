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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.page import StoreCollector, serve_metrics
from tests.kvstore.page_source import TRACE, used

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
