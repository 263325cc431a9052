"""Everything an endpoint can do, as a state in words; and what a scrape writes."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probes.columns import is_absent, is_stale
from probes.config import load_config
from probes.exposition import Limits
from probes.labels import Labels
from probes.sampler import Sampler
from probes.series import SeriesStore
from probes.sources.base import SourceStatus
from probes.sources.http import HttpSource
from probes.target import parse_target
from tests.endpoints import BEHAVIOURS, OPENMETRICS, PAGE, Endpoint, Exchange

FAULTS = [
    ("refuse", "refused", "connection refused"),
    ("closes", "refused", "closed the connection without an answer"),
    ("hang", "timeout", "connected, but no answer within 0.3 s"),
    ("slow-headers", "timeout", "connected, but no answer within 0.3 s"),
    ("slow-drip", "timeout", "slow drip: "),
    ("500", "http-error", "HTTP 500 Internal Server Error"),
    ("503", "http-error", "HTTP 503 Service Unavailable"),
    ("404", "http-error", "HTTP 404 Not Found"),
    ("elsewhere", "http-error", "redirects to another host"),
    ("redirect-loop", "http-error", "more than 3 redirects"),
    ("401", "no-permission", "HTTP 401 Unauthorized"),
    ("403", "no-permission", "HTTP 403 Forbidden"),
    ("html", "not-exposition", "HTML page titled 'Sign in'"),
    ("json", "not-exposition", "JSON"),
    ("garbage", "not-exposition", "binary data"),
    ("text", "not-exposition", "line 1"),
    ("not-http", "not-exposition", "does not speak HTTP"),
    ("truncated", "truncated", "cut off after"),
    ("cut-line", "truncated", "ends within a line"),
    ("unframed-cut", "truncated", "ends within a line"),
    ("chunked-cut", "truncated", "cut off after"),
    ("gzip-cut", "truncated", "gzip data of the answer is cut off"),
    ("huge", "truncated", "larger than the limit"),
    ("empty", "empty", "the page is empty"),
    ("only-comments", "empty", "no samples"),
    ("nan", "empty", "all 3 samples are NaN"),
]
GOOD = ["ok", "moved", "chunked", "gzip", "untyped", "inf"]


class Scrape:
    """A source with its store, scraped at made-up times one second apart."""

    def __init__(self, target: str, timeout_s: float = 0.3, limit: int = 1 << 20, alone: bool = False) -> None:
        self.store = SeriesStore()
        self.source = HttpSource(parse_target(target), self.store, timeout_s=timeout_s, limits=Limits(bytes=limit))
        self.now_ms = 0
        self.alone = alone

    async def once(self) -> SourceStatus:
        self.now_ms += 1000
        if self.alone:
            return await asyncio.to_thread(self.source.collect_alone, self.now_ms)
        return await self.source.collect(self.now_ms)

    def column(self, at: int = -1) -> dict[str, float]:
        """The column at ``at`` by metric name, without what is absent."""
        frame = self.store.frames[0]
        values = frame.values[:, at]
        held = ~is_absent(values)
        return {labels.name: float(v) for labels, v, here in zip(frame.labels, values, held, strict=True) if here}


@pytest.mark.parametrize(("behaviour", "state", "words"), FAULTS, ids=[fault[0] for fault in FAULTS])
@pytest.mark.parametrize("before", ["never seen", "seen before", "seen before, without a loop"])
async def test_fault_is_a_state_in_words(behaviour: str, state: str, words: str, before: str) -> None:
    with Endpoint() as endpoint:
        scrape = Scrape(endpoint.target, alone="without a loop" in before)
        if before != "never seen":
            assert (await scrape.once()).state == "fresh"
        endpoint.behave(behaviour)
        status = await scrape.once()
        assert (status.state, words in (status.error or "")) == (state, True), status
        assert "\n" not in (status.error or "")
        assert status.last_ok_ms == (None if before == "never seen" else 1000)
        assert scrape.column()["up"] == (1.0 if state == "empty" else 0.0)
        if before != "never seen" and behaviour != "nan":
            assert is_stale(np.array([_last(scrape, "vllm:num_requests_running")])).all()
        endpoint.behave("ok")
        back = await scrape.once()
        assert (back.state, back.error, back.samples) == ("fresh", None, 3)
        assert scrape.column()["up"] == 1.0
        await scrape.source.close()


def _last(scrape: Scrape, name: str) -> float:
    frame = scrape.store.frames[0]
    return float(frame.values[[labels.name for labels in frame.labels].index(name), -1])


@pytest.mark.parametrize("behaviour", GOOD)
@pytest.mark.parametrize("alone", [False, True], ids=["looped", "alone"])
async def test_good_answers(behaviour: str, alone: bool) -> None:
    with Endpoint(behaviour=behaviour) as endpoint:
        scrape = Scrape(endpoint.target, alone=alone)
        status = await scrape.once()
        assert (status.state, status.error, status.samples) == ("fresh", None, 3)
        assert status.bytes > 0
        running = scrape.column()["vllm:num_requests_running"]
        assert running == (float("inf") if behaviour == "inf" else 3.0)
        await scrape.source.close()


async def test_scrape_writes_its_own_series_and_the_target_labels() -> None:
    with Endpoint() as endpoint:
        scrape = Scrape(endpoint.target)
        await scrape.once()
        assert "kvscope_scrape_samples_changed" not in scrape.column(), "nothing to compare the first page with"
        endpoint.serve(PAGE.replace("12345.0", "12399.0"))
        await scrape.once()
        await scrape.once()
        assert [scrape.column(at)["kvscope_scrape_samples_changed"] for at in (-2, -1)] == [1.0, 0.0]
        column = scrape.column()
        assert (column["up"], column["scrape_samples_scraped"]) == (1.0, 3.0)
        assert 0 < column["scrape_duration_seconds"] < 5
        for labels in scrape.store.frames[0].labels:
            assert (labels.get("job"), labels.get("instance")) == ("kvscope", endpoint.target)
        await scrape.source.close()


async def test_clashing_labels_become_exported() -> None:
    with Endpoint(b'm{job="a",instance="b"} 1\nup{job="a"} 5\n') as endpoint:
        scrape = Scrape(endpoint.target)
        await scrape.once()
        names = {labels for labels in scrape.store.frames[0].labels if labels.name == "m"}
        assert names == {
            Labels.of(
                {"exported_job": "a", "exported_instance": "b", "job": "kvscope", "instance": endpoint.target}, name="m"
            )
        }
        assert scrape.column()["up"] in (1.0, 5.0)
        await scrape.source.close()


async def test_info_labels_become_gauges() -> None:
    page = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None",engine="0"} %d\n'
    with Endpoint(page % 1) as endpoint:
        scrape = Scrape(endpoint.target)
        await scrape.once()
        assert scrape.column()["vllm:cache_config_info:block_size"] == 16.0
        assert "vllm:cache_config_info:num_gpu_blocks" not in scrape.column()
        endpoint.serve(page % 0)
        await scrape.once()
        assert np.isnan(scrape.column()["vllm:cache_config_info:block_size"]), "an info metric of 0 says nothing"
        await scrape.source.close()


async def test_a_series_that_leaves_the_page_is_stale_and_a_reset_is_kept_as_it_is() -> None:
    with Endpoint(b"a_total 10\nb 1\n") as endpoint:
        scrape = Scrape(endpoint.target)
        await scrape.once()
        endpoint.serve("a_total 2\n")
        await scrape.once()
        assert scrape.column()["a_total"] == 2.0
        assert is_stale(np.array([_last(scrape, "b")])).all()
        await scrape.source.close()


async def test_old_explicit_timestamps_are_left_out_and_said() -> None:
    with Endpoint(b"a 1 1000\nb 2\n") as endpoint:
        scrape = Scrape(endpoint.target)
        scrape.now_ms = 10_000_000
        status = await scrape.once()
        assert "a" not in scrape.column()
        assert "more than 5 minutes old" in status.detail
        await scrape.source.close()


async def test_a_page_of_nothing_but_old_samples_is_no_data() -> None:
    page = b"".join(b"vllm:num_requests_running%s 3 1000\n" % labels for labels in (b"", b'{engine="1"}'))
    with Endpoint(page) as endpoint:
        scrape = Scrape(endpoint.target)
        scrape.now_ms = 1_000_000_000
        status = await scrape.once()
        assert (status.state, status.samples, status.last_ok_ms) == ("empty", 2, None)
        assert (status.error or "").startswith("none of its 2 samples is of now: 2 samples left out: their own")
        endpoint.serve(page + b"a 1\n")
        assert (await scrape.once()).state == "fresh"
        await scrape.source.close()


async def test_openmetrics_is_asked_for_and_read() -> None:
    with Endpoint() as endpoint:
        endpoint.serve(PAGE + "# EOF\n", OPENMETRICS)
        scrape = Scrape(endpoint.target)
        assert (await scrape.once()).state == "fresh"
        accept = next(line for line in endpoint.requests[0].split(b"\r\n") if line.lower().startswith(b"accept:"))
        assert accept.index(b"openmetrics") < accept.index(b"text/plain")
        endpoint.serve(PAGE, OPENMETRICS)
        assert (await scrape.once()).state == "truncated"
        await scrape.source.close()


async def test_connection_is_kept_and_a_closed_one_replaced() -> None:
    with Endpoint() as endpoint:
        scrape = Scrape(endpoint.target)
        for _ in range(3):
            assert (await scrape.once()).state == "fresh"
        assert endpoint.connections == 1
        endpoint.behave("die")
        endpoint.behave("ok")
        assert (await scrape.once()).state == "fresh"
        assert endpoint.connections == 2
        await scrape.source.close()


async def test_credentials_are_used_and_never_shown(tmp_path: Path) -> None:
    with Endpoint(behaviour="needs-password", authorization="Basic dXNlcjpzM2NyZXQ=") as endpoint:
        scrape = Scrape(f"http://user:s3cret@{endpoint.target}/metrics")
        status = await scrape.once()
        assert status.state == "fresh"
        assert "s3cret" not in repr(status)
        assert "user" not in scrape.source.target
        assert "s3cret" not in repr(parse_target(f"http://user:s3cret@{endpoint.target}/metrics"))
        endpoint.authorization = "Bearer other"
        assert (await scrape.once()).state == "no-permission"
        await scrape.source.close()


async def test_credentials_do_not_follow_a_redirect_elsewhere() -> None:
    with Endpoint() as other, Endpoint(behaviour="elsewhere") as endpoint:
        scrape = Scrape(f"http://user:s3cret@{endpoint.target}/metrics")
        await scrape.once()
        assert other.requests == []
        await scrape.source.close()


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ("eyJ-S3CRET\n# rotated 2026-11\n", "holds more than one line"),
        ("eyJ-S3CRET\x0bmore\n", "holds more than one line"),
        (" \n", "is empty"),
        ("", "is empty"),
        ("eyJ-S3CRET\x07\n", "holds a character that no header can carry"),
        (b"eyJ-S3CRET\xff", "is not UTF-8 text"),
    ],
)
@pytest.mark.parametrize("kind", ["bearer_token_file: token", "basic_auth: {username: u, password_file: token}"])
async def test_a_broken_credentials_file_is_told_without_its_content(
    tmp_path: Path, held: str | bytes, words: str, kind: str
) -> None:
    (tmp_path / "token").write_bytes(held if isinstance(held, bytes) else held.encode())
    with Endpoint() as endpoint:
        config = tmp_path / "config.yml"
        config.write_text(f"targets: [{{url: '{endpoint.target}', {kind}}}]\n")
        scrape = Scrape(endpoint.target)
        scrape.source = HttpSource(load_config(config).targets[0], scrape.store)
        status = await scrape.once()
        assert (status.state, endpoint.requests) == ("no-permission", [])
        assert status.error == f"the credentials file {tmp_path / 'token'} {words}" + (
            "; it must hold the secret alone" if "line" in words else ""
        )
        assert "S3CRET" not in repr(status)


@pytest.mark.parametrize("alone", [False, True], ids=["looped", "alone"])
async def test_unknown_host_is_named(alone: bool) -> None:
    scrape = Scrape("http://no-such-host.invalid:8000/metrics", timeout_s=5, alone=alone)
    status = await scrape.once()
    assert status.state == "refused"
    assert "no-such-host.invalid cannot be resolved" in (status.error or "")


@pytest.mark.parametrize("alone", [False, True], ids=["looped", "alone"])
async def test_a_name_is_looked_up_within_the_deadline(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint() as endpoint:
        port = endpoint.target.rpartition(":")[2]
        there = Scrape(f"http://localhost:{port}/metrics", timeout_s=5, alone=alone)
        assert (await there.once()).state == "fresh"
        await there.source.close()
    free, asked = threading.Event(), socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **more: (free.wait(10), asked(*words, **more))[1])
    status = await Scrape("http://slow.invalid:8000/metrics", alone=alone).once()
    free.set()
    assert (status.state, status.error) == ("timeout", "the name was not resolved within 0.3 s")


async def test_cycle_does_not_wait_for_a_hanging_source_nor_ask_it_twice() -> None:
    with Endpoint() as good, Endpoint(behaviour="hang") as bad:
        store = SeriesStore()
        sources = [HttpSource(parse_target(one.target), store, timeout_s=30) for one in (good, bad)]
        sampler = Sampler(store, sources, interval_ms=100)
        for at in range(3):
            cycle = await sampler.cycle(1000 * (at + 1))
            assert [status.state for status in cycle.statuses] == ["fresh", "timeout"]
            assert "no answer yet" in (cycle.statuses[1].error or "")
        assert len(bad.requests) == 1
        assert len(good.requests) == 3
        await asyncio.wait_for(sampler.close(), timeout=5)


@pytest.mark.parametrize("alone", [False, True], ids=["looped", "alone"])
async def test_tls_with_a_certificate_of_ones_own(tmp_path: Path, alone: bool) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    config = tmp_path / "config.yml"
    config.write_text(f"targets: [{{url: 'https://127.0.0.1:{port}/metrics', ca_file: cert.pem}}]\n")
    plain = Scrape(f"https://127.0.0.1:{port}/metrics", timeout_s=5, alone=alone)
    status = await plain.once()
    assert (status.state, "certificate is not trusted" in (status.error or "")) == ("refused", True)
    trusting = Scrape(f"https://127.0.0.1:{port}/metrics", timeout_s=5, alone=alone)
    trusting.source = HttpSource(load_config(config).targets[0], trusting.store, timeout_s=5)
    assert (await trusting.once()).state == "fresh"
    await trusting.source.close()
    with Endpoint() as endpoint:
        wrong = Scrape(f"https://{endpoint.target}/metrics", timeout_s=5, alone=alone)
        assert "does not speak TLS" in ((await wrong.once()).error or "")
    server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    body = PAGE.encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
    await writer.drain()
    writer.close()


def test_endpoint_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with Endpoint(behaviour="hang"):
        pass
    assert threading.active_count() == before


async def said(behaviour: Callable[[Exchange], None], name: str) -> SourceStatus:
    BEHAVIOURS[name] = behaviour
    try:
        with Endpoint() as endpoint:
            endpoint.behave(name)
            scrape = Scrape(endpoint.target)
            return await scrape.once()
    finally:
        del BEHAVIOURS[name]


async def test_what_a_server_says_cannot_steer_a_terminal() -> None:
    reason = "500 \x1b[31mRED\x07 " + "y" * 2000
    status = await said(lambda x: x.answer(b"no", status=reason), "steering")
    assert (status.error or "").startswith("HTTP 500 \\x1b[31mRED\\x07 yyy")
    assert len(status.error or "") <= 220
    page = b"# TYPE a\x1b]0;pwned\x07 gouge\na 1\n"
    status = await said(lambda x: x.answer(page), "steering")
    assert (status.error or "").isprintable()


async def test_a_redirect_that_cannot_be_read() -> None:
    status = await said(lambda x: x.answer(b"", status="302 Found", extra="Location: //[\r\n"), "bad-redirect")
    assert (status.state, status.error) == ("http-error", "bad redirect: to //[")


async def test_a_redirect_elsewhere_shows_no_secret() -> None:
    there = "http://u:s3cret@192.0.2.1/?t=s3cret&u=s3cret"
    status = await said(lambda x: x.answer(b"", status="302 Found", extra=f"Location: {there}\r\n"), "secret-redirect")
    assert status.error == "redirects to another host (http://192.0.2.1/?t=…&u=…), which is not followed"
