"""A Prometheus server as a source: its answers, its faults, and a real one."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest

from probes.attach import attach
from probes.labels import Labels
from probes.series import SeriesStore
from probes.sources.prometheus import PrometheusSource
from probes.target import parse_target
from tests.endpoints import BEHAVIOURS, Endpoint, Exchange


def answer(samples: dict[Labels, list[tuple[float, str]]]) -> str:
    result = [{"metric": labels.as_dict(), "values": values} for labels, values in samples.items()]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


UP = Labels.of({"job": "j", "instance": "i"}, name="up")
INFO = Labels.of({"job": "j", "instance": "i", "block_size": "16"}, name="vllm:cache_config_info")


def source(endpoint: Endpoint, store: SeriesStore) -> PrometheusSource:
    names = ["a_total", "vllm:cache_config_info:block_size"]
    return PrometheusSource(parse_target(f"prometheus+http://{endpoint.target}"), store, names, timeout_s=0.5)


async def test_history_is_filled_and_then_followed() -> None:
    with Endpoint() as endpoint:
        endpoint.serve(answer({UP: [(10.0, "1"), (25.5, "1")], INFO: [(10.0, "1"), (25.5, "1")]}))
        store = SeriesStore()
        found = source(endpoint, store)
        status = await found.collect(30_000)
        assert (status.state, status.error, status.last_ok_ms, found.step_ms) == ("fresh", None, 25_500, 15_500)
        frame = store.frames[0]
        assert frame.times.tolist() == [10_000, 25_500]
        assert "vllm:cache_config_info:block_size" in {labels.name for labels in frame.labels}
        assert await found.collect(31_000) is status, "not due yet"
        endpoint.serve(answer({UP: [(25.5, "1"), (41.0, "0")]}))
        await found.collect(45_000)
        assert frame.times.tolist() == [10_000, 25_500, 41_000]
        ups = frame.values[frame.labels.index(UP)]
        assert np.array_equal(ups, [1, 1, 0])
        query = parse_qs(endpoint.requests[0].split(b"\r\n\r\n", 1)[1].decode())["query"][0]
        assert query == '{__name__=~"up|a_total|vllm:cache_config_info"}[900s]'
        assert b"POST /api/v1/query " in endpoint.requests[0]
        await found.close()


async def test_a_scrape_between_two_queries_waits_for_the_next_round() -> None:
    other = Labels.of({"job": "j", "instance": "i"}, name="a_total")
    foreign = Labels.of({"job": "pushed", "instance": "i"}, name="a_total")
    with Endpoint() as endpoint:
        endpoint.serve(answer({UP: [(10.0, "1")], other: [(10.0, "1"), (25.0, "2")], foreign: [(26.0, "9")]}))
        store = SeriesStore()
        found = source(endpoint, store)
        await found.collect(30_000)
        assert store.latest(other) == (10_000, 1.0), "half a scrape is no scrape"
        assert store.latest(foreign) == (26_000, 9.0), "what has no up is taken as it comes"
        endpoint.serve(answer({UP: [(10.0, "1"), (25.0, "1")], other: [(10.0, "1"), (25.0, "2")]}))
        await found.collect(45_000)
        assert store.latest(other) == (25_000, 2.0)
        await found.close()


async def test_a_server_that_has_nothing_or_only_old_samples() -> None:
    with Endpoint() as endpoint:
        endpoint.serve(answer({}))
        found = source(endpoint, SeriesStore())
        status = await found.collect(1_000_000)
        assert (status.state, "15 minutes" in (status.error or "")) == ("empty", True)
        endpoint.serve(answer({UP: [(10.0, "1")]}))
        status = await found.collect(1_010_000)
        assert (status.state, "17 minutes old" in (status.error or "")) == ("stale", True)
        await found.close()


@pytest.mark.parametrize(
    ("behaviour", "state", "words"),
    [
        ("refuse", "refused", "connection refused"),
        ("hang", "timeout", "no answer"),
        ("slow-drip", "timeout", "slow drip"),
        ("500", "http-error", "HTTP 500"),
        ("404", "http-error", "HTTP 404"),
        ("401", "no-permission", "HTTP 401"),
        ("html", "not-exposition", "not that of a Prometheus"),
        ("ok", "not-exposition", "not that of a Prometheus"),
        ("json", "http-error", "refuses the query"),
        ("truncated", "truncated", "cut off"),
        ("bad-query", "http-error", "bad_data: parse error"),
    ],
)
async def test_faults(behaviour: str, state: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"}).encode()

    def refuse(exchange: Exchange) -> None:
        exchange.answer(refusal, "application/json", "400 Bad Request")

    monkeypatch.setitem(BEHAVIOURS, "bad-query", refuse)
    with Endpoint(behaviour=behaviour) as endpoint:
        found = source(endpoint, SeriesStore())
        status = await found.collect(30_000)
        assert (status.state, words in (status.error or "")) == (state, True), status
        endpoint.serve(answer({UP: [(31.0, "1")]}))
        assert (await found.collect(40_000)).state == "fresh"
        await found.close()


@pytest.mark.live
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not here")
async def test_a_real_prometheus(tmp_path: Path) -> None:
    port = _free_port()
    with Endpoint() as endpoint:
        config = tmp_path / "p.yml"
        job = f"{{job_name: vllm, static_configs: [{{targets: ['{endpoint.target}']}}]}}"
        config.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs: [{job}]\n")
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'db'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            attachment = attach([f"prometheus+http://127.0.0.1:{port}"])
            now = await _until_fresh(attachment)
            usage = attachment.view.instant("kv:pool_usage_ratio", now)
            assert usage.values.tolist() == [[0.25]]  # type: ignore[union-attr]
            scrapes = attachment.store.frames[0].times
            # A busy server scrapes unevenly: its step is what lies between the scrapes that it has.
            assert attachment.interval_ms == max(1000, int(np.median(np.diff(scrapes))))
            await attachment.close()
        finally:
            server.terminate()
            server.wait(timeout=20)


async def _until_fresh(attachment, tries: int = 60) -> int:  # type: ignore[no-untyped-def]
    """Cycle until the server has two scrapes; the time of the last cycle."""
    now = round(time.time() * 1000)
    for _ in range(tries):
        now += 6000  # each poll is due
        await attachment.cycle(now, patience_s=10)
        span = attachment.span()
        if span is not None and span[1] - span[0] >= 1000:
            return int(span[1])
        await asyncio.sleep(0.3)
    raise AssertionError(attachment.statuses)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
