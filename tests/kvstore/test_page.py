"""A shard's page: what it says of a real pool, whether Prometheus's own tools take it, and how it is served."""

from __future__ import annotations

import asyncio
import http.client
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.bitmap import NaiveBitmap
from kvstore.meters import MAX_SESSION_CLASSES, OTHER_CLASS
from kvstore.page import Cell, MetricsServer, SessionFigures, StoreCollector, block_map, blocks_by_run, serve_metrics
from kvstore.page.http import MAX_CONNECTIONS
from kvstore.pool import State
from probes.exposition import PageParser
from probes.labels import Labels
from tests.kvstore.page_source import LAYOUT, TRACE, Source, used

ROOT = Path(__file__).resolve().parents[2]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def page(source: Source, accept: str = "") -> str:
    collector = StoreCollector(source)
    return collector.render(collector.snapshot(), accept).body.decode()


def samples(text: str) -> dict[str, float]:
    """Values by name and labels, without the labels that every sample has."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            key, value = line.split(" # ")[0].rsplit(" ", 1)
            found[re.sub(r'(shard|model_name)="[^"]*",?', "", key).replace(",}", "}").replace("{}", "")] = float(value)
    return found


# --- reductions ---------------------------------------------------------------------------------------------------


def slow_map(states: np.ndarray, fill: np.ndarray) -> list[int]:
    """The definition, block by block."""
    codes = {State.FREE: 0, State.CACHED: 1, State.USED: 2, State.LEASED: 3, State.RESERVED: 5}
    per_cell = -(-len(states) // 256)
    cells = []
    for begin in range(0, len(states), per_cell):
        votes = [0] * 6
        for state, share in zip(states[begin : begin + per_cell], fill[begin : begin + per_cell], strict=True):
            votes[4 if share < 0.5 else codes[State(state)]] += 1
        cells.append(max(range(6), key=lambda code: (votes[code], code)))
    return cells


@pytest.mark.parametrize("count", [1, 7, 255, 256, 257, 511, 512, 1000, 5000])
def test_the_block_map_is_what_most_blocks_of_a_cell_are(count: int) -> None:
    rng = np.random.default_rng(count)
    states = rng.integers(0, len(State), count).astype(np.uint8)
    fill = np.where(states >= State.CACHED, rng.random(count), np.nan)
    found = block_map(states, fill)
    assert found.cells.tolist() == slow_map(states, fill)
    assert len(found.cells) <= 256
    assert (len(found.cells) - 1) * found.cell_blocks < count <= len(found.cells) * found.cell_blocks


def test_an_empty_pool_has_no_cells() -> None:
    assert len(block_map(np.zeros(0, np.uint8), np.zeros(0)).cells) == 0


def test_free_blocks_by_run() -> None:
    lengths = np.array([1, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 1000, 65536])
    expected = {"1": 2, "2-3": 5, "4-7": 11, "8-15": 23, "16-31": 47, "32+": 66568}
    assert blocks_by_run(lengths) == expected
    assert blocks_by_run(np.zeros(0, np.int64)) == dict.fromkeys(expected, 0)


# --- what the page says ---------------------------------------------------------------------------------------------


def test_the_pool_on_the_page_is_the_pool() -> None:
    found = samples(page(used()))
    states = {state.name.lower(): found[f'kv_pool_blocks{{state="{state.name.lower()}"}}'] for state in State}
    assert states == {"free": 400, "reserved": 20, "cached": 30, "used": 100, "leased": 50}
    assert found["kv_pool_capacity_blocks"] == 600
    assert found["kv_pool_usage_ratio"] == pytest.approx(170 / 600)
    assert found["kv_pool_bytes"] == 600 * LAYOUT.block_bytes
    assert found['kv_pool_token_slots{state="valid"}'] == 150 * 16 + 30 * 3
    assert found['kv_pool_token_slots{state="tail_waste"}'] == 30 * 13
    assert (found["kv_pool_free_runs"], found["kv_pool_largest_free_run_blocks"]) == (1, 400)
    assert found['kv_pool_free_blocks_by_run{run="32+"}'] == 400
    cells = [found[f'kv_block_map{{cell="{cell:03d}"}}'] for cell in range(200)]
    assert 'kv_block_map{cell="200"}' not in found
    assert found["kv_block_map_cell_blocks"] == 3
    assert [cells[0], cells[40], cells[55], cells[65], cells[199]] == [
        Cell.USED,
        Cell.LEASED,
        Cell.TAIL_WASTE,
        Cell.RESERVED,
        Cell.FREE,
    ]


def test_counters_on_the_page_are_the_meters() -> None:
    found = samples(page(used()))
    assert found['kv_operations_total{op="put",result="ok"}'] == 1
    assert found['kv_operation_seconds_count{op="put"}'] == 1
    assert found['kv_operation_seconds_bucket{le="0.0025",op="put"}'] == 0
    assert found['kv_operation_seconds_bucket{le="0.005",op="put"}'] == 1
    assert found['kv_operation_seconds_bucket{le="+Inf",op="put"}'] == 1
    assert found['kv_lookup_blocks_total{result="hit"}'] == 70
    assert found['kv_sync_seconds_total{site="bitmap.count"}'] == 0.25
    assert found['kv_sessions_opened_total{session_class="chat"}'] == 4
    assert found['kv_session_idle_seconds{quantile="1.0",session_class="chat"}'] == 90
    assert found['kv_peer_heartbeat_age_seconds{peer="1"}'] == 0.4


def test_what_is_not_there_is_not_zero() -> None:
    source = Source(durability="none")
    found = samples(page(source))
    assert not [name for name in found if name.startswith("kv_wal")]
    assert 'kv_peer_heartbeat_age_seconds{peer="2"}' not in found, "never heard of it"
    assert found['kv_peer_up{peer="2"}'] == 0


def test_uploads_to_a_device_are_told_once_there_was_one() -> None:
    source = Source()
    assert "kv_device_upload" not in page(source)
    source.meters.uploaded("block_table.update", 64, 0.001)
    source.meters.uploaded("block_table.update", 16, 0.002)
    found = samples(page(source))
    assert found['kv_device_uploads_total{site="block_table.update"}'] == 2
    assert found['kv_device_upload_bytes_total{site="block_table.update"}'] == 80
    assert found['kv_device_upload_seconds_total{site="block_table.update"}'] == pytest.approx(0.003)


def test_a_rehearsed_fault_shows_in_figures_and_is_named_nowhere() -> None:
    source = Source(bitmap=NaiveBitmap(600, drain_s=0.0))
    source.put(50)
    text = page(source)
    assert samples(text)['kv_device_reads_total{site="bitmap.allocate"}'] > 50
    assert not re.search("naive|fault|inject|scenario|rehears|lab", text.replace("label", ""), re.IGNORECASE)


def test_every_sample_has_its_shard() -> None:
    lines = [line for line in page(used(shard="7")).splitlines() if not line.startswith("#")]
    assert len(lines) > 500
    assert all('shard="7"' in line for line in lines)
    pool = [line for line in lines if line.startswith(("kv_pool", "kv_lookup", "kv_session"))]
    assert all(f'model_name="{LAYOUT.model_id}"' in line for line in pool)


def test_the_page_is_the_one_that_the_contract_lists() -> None:
    contract = (ROOT / "docs" / "store.md").read_text(encoding="utf-8").split("### What `/metrics` says")[1]
    rows = [line for line in contract.split("###")[0].splitlines() if line.startswith("| `kv_")]
    listed = {name for row in rows for name in re.findall(r"`(kv_\w+)`", row.split("|")[1])}
    late = ("`--nixl` only", "(once ")
    elsewhere = {name for row in rows if any(text in row for text in late) for name in re.findall(r"`(kv_\w+)`", row)}
    text = page(used())
    shown = {
        re.sub("_(bucket|sum|count)$", "", re.split(r"[{ ]", line)[0]) for line in text.splitlines() if line[0] != "#"
    }
    assert len(listed) > 60
    assert listed - shown == elsewhere, "listed, but not on the page"
    assert {name for name in shown if name.startswith("kv_")} - listed == set(), "on the page, but not listed"
    assert "process_resident_memory_bytes" in shown


def test_kvscope_reads_its_own_page_in_both_formats() -> None:
    source = used()
    readings = []
    for accept in ("", OPENMETRICS):
        rows: dict[Labels, int] = {}
        parser = PageParser(lambda labels, rows=rows: rows.setdefault(labels, len(rows)))
        read = parser.parse(page(source, accept).encode(), openmetrics=bool(accept))
        assert read.duplicates == 0
        names = {row: labels for labels, row in rows.items()}
        found = {names[row]: value for row, value in zip(read.rows.tolist(), read.values.tolist(), strict=True)}
        readings.append({labels: value for labels, value in found.items() if labels.name.startswith("kv_")})
    assert readings[0] == readings[1]
    assert len(readings[0]) > 500
    assert any(labels.name == "kv_store_info" and labels.get("window_tokens") == "512" for labels in readings[0])


def test_classes_beyond_the_bound_share_one_label() -> None:
    source = used()
    for n in range(MAX_SESSION_CLASSES + 5):
        source.meters.session(f"c{n}")
    figures = [SessionFigures(f"c{n}", 1, 0, 2, 60.0, np.array([float(n)])) for n in range(MAX_SESSION_CLASSES + 5)]
    source.session_figures = lambda: figures  # type: ignore[method-assign]
    found = samples(page(source))
    assert found[f'kv_sessions{{session_class="{OTHER_CLASS}",state="active"}}'] == 6
    assert found[f'kv_session_blocks{{session_class="{OTHER_CLASS}"}}'] == 12
    assert len([name for name in found if name.startswith("kv_session_blocks")]) == MAX_SESSION_CLASSES + 1


# --- Prometheus's own view ------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("source", [used(), Source(durability="none")], ids=["used", "new"])
def test_promtool_takes_the_page(source: Source) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page(source), capture_output=True, text=True, timeout=30
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_exemplars_are_on_the_openmetrics_page_only() -> None:
    source = used()
    shown = [line for line in page(source, OPENMETRICS).splitlines() if " # {" in line]
    assert len(shown) == 3
    assert all(f'# {{trace_id="{TRACE}"}}' in line and "_bucket{" in line for line in shown)
    assert TRACE not in page(source)


# --- the endpoint ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    serving = await serve_metrics(StoreCollector(used()))
    yield serving
    await serving.close()


def ask(address: tuple[str, int], method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


async def asked(server: MetricsServer, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return await asyncio.to_thread(ask, server.address, method, path, **headers)


async def test_it_listens_on_loopback_unless_told(server: MetricsServer) -> None:
    assert server.address[0] == "127.0.0.1"


async def test_the_format_is_the_one_asked_for(server: MetricsServer) -> None:
    status, headers, body = await asked(server, "GET", "/metrics")
    assert (status, headers["content-type"][:26]) == (200, "text/plain; version=0.0.4;")
    assert int(headers["content-length"]) == len(body)
    _, headers, body = await asked(server, "GET", "/metrics?x=1", Accept=f"{OPENMETRICS},text/plain;q=0.5")
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")


async def test_head_has_the_headers_only(server: MetricsServer) -> None:
    status, headers, body = await asked(server, "HEAD", "/metrics")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 10_000


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/metricsx", 404), ("POST", "/metrics", 405)]
)
async def test_nothing_else_is_there(server: MetricsServer, method: str, path: str, status: int) -> None:
    found, headers, _ = await asked(server, method, path)
    assert found == status
    assert (headers.get("allow") == "GET, HEAD") == (status == 405)


async def test_one_connection_serves_scrape_after_scrape(server: MetricsServer) -> None:
    def twice() -> list[int]:
        connection = http.client.HTTPConnection(*server.address, timeout=10)
        found, local = [], []
        for _ in range(3):
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
            local.append(connection.sock and connection.sock.getsockname())
        connection.close()
        assert len(set(local)) == 1
        return found

    assert await asyncio.to_thread(twice) == [200, 200, 200]


@pytest.mark.parametrize("said", [b"\x16\x03\x01\x02\x00\x01", b"GET /metrics please", b"x" * 40_000])
async def test_what_is_not_http_is_turned_away_and_the_next_is_served(server: MetricsServer, said: bytes) -> None:
    def shout() -> bytes:
        with socket.create_connection(server.address, timeout=10) as talk:
            talk.sendall(said + b"\r\n\r\n")
            try:
                return talk.recv(4096)
            except ConnectionResetError:
                return b""

    answer = await asyncio.to_thread(shout)
    assert answer == b"" or re.match(rb"HTTP/1\.1 [45]\d\d ", answer)
    assert (await asked(server, "GET", "/metrics"))[0] == 200


async def test_silent_connections_are_bounded_and_keep_no_scraper_out(server: MetricsServer) -> None:
    ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    kept = await asyncio.open_connection(*server.address)
    kept[1].write(ask)
    assert (await kept[0].read(12)) == b"HTTP/1.1 200"
    held = []
    for turn in range(MAX_CONNECTIONS + 8):
        held.append(await asyncio.open_connection(*server.address))
        held[-1][1].write(b"GET /met" if turn % 2 else b"")
    assert (await asked(server, "GET", "/metrics"))[0] == 200
    async with asyncio.timeout(20):
        assert await held[0][0].read() == b"", "the one that has been silent for longest is dropped"
    kept[1].write(ask)
    async with asyncio.timeout(20):
        while b"HTTP/1.1 200" not in await kept[0].readline():
            pass  # what is left of the first answer
    assert len(server._open) <= MAX_CONNECTIONS
    for _, writer in (kept, *held):
        writer.close()


async def test_a_scrape_that_fails_does_not_end_the_server(caplog: pytest.LogCaptureFixture) -> None:
    source = used()
    real: Any = source.pool_figures
    serving = await serve_metrics(StoreCollector(source))
    source.pool_figures = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    status, _, body = await asked(serving, "GET", "/metrics")
    source.pool_figures = real  # type: ignore[method-assign]
    assert status == 500
    assert b"Traceback" not in body
    assert "a scrape failed" in caplog.text
    assert (await asked(serving, "GET", "/metrics"))[0] == 200
    await serving.close()


async def test_a_taken_port_is_said(server: MetricsServer) -> None:
    with pytest.raises(OSError, match="in use"):
        await serve_metrics(StoreCollector(used()), port=server.address[1])
