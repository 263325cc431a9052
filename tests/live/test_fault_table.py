"""What an endpoint can do to a scrape, and what the screen, ``once`` and ``diagnose`` then say.

Each fault is provoked on a real socket. The test asserts every cell and keeps docs/faults.md:

    KVSCOPE_WRITE_DOCS=1 .venv/bin/python -m pytest tests/live/test_fault_table.py
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.endpoints import Endpoint
from tests.live.living_page import LivingPage
from tui.cli import main

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
POOL = "kv:pool_usage_ratio"
TIMEOUT = "1s"
LOOK_S = 1.5  # how long a screen is looked at, and a diagnosis collects
LONG_S = 3.0  # … where something happens meanwhile
FIRST = 4  # scrapes before it happens
Act = Callable[[Endpoint, LivingPage], None]


@dataclass(frozen=True)
class Fault:
    """A fault, how to provoke it, and what must be said: exit codes, the source's state, a word of the error, what the
    pool's reading is, the verdict, and words that the diagnosis must hold."""

    name: str
    behaves: str
    state: str
    error: str
    once: int
    pool: str
    verdict: str
    diagnose: int
    holds: tuple[str, ...] = ()
    script: tuple[tuple[float, Act], ...] = field(default=(), compare=False)  # (seconds after the first scrapes, act)
    without: tuple[str, ...] = ()

    @property
    def on_screen(self) -> tuple[str, ...]:
        """The screen does not wait for a source's deadline: meanwhile it says that there is no answer."""
        error = "no answer" if self.state == "timeout" else self.error
        return (self.state, error) if error else (self.state,)

    @property
    def look_s(self) -> float:
        return LONG_S if self.script else LOOK_S


def _die(endpoint: Endpoint, page: LivingPage) -> None:
    endpoint.behave("die")


def _return(endpoint: Endpoint, page: LivingPage) -> None:
    endpoint.behave("ok")


def _restart(endpoint: Endpoint, page: LivingPage) -> None:
    page.restart()


NOTHING = ("unknown", 4)
FAULTS = (
    Fault("none (for comparison)", "ok", "fresh", "", 0, "fresh", "healthy", 0),
    Fault("nobody listens", "refuse", "refused", "connection refused", 4, "none", *NOTHING),
    Fault("accepts, then says nothing", "hang", "timeout", "no answer within", 4, "none", *NOTHING),
    Fault("slow drip", "slow-drip", "timeout", "slow drip", 4, "none", *NOTHING),
    Fault("404", "404", "http-error", "HTTP 404 Not Found", 4, "none", *NOTHING),
    Fault("500", "500", "http-error", "HTTP 500 Internal Server Error", 4, "none", *NOTHING),
    Fault("401", "401", "no-permission", "HTTP 401 Unauthorized", 4, "none", *NOTHING),
    Fault("an HTML page", "html", "not-exposition", "HTML page titled 'Sign in'", 4, "none", *NOTHING),
    Fault("random bytes", "garbage", "not-exposition", "binary data", 4, "none", *NOTHING),
    Fault("body cut short", "truncated", "truncated", "cut off", 4, "none", *NOTHING),
    Fault("last line cut", "cut-line", "truncated", "", 4, "none", *NOTHING),
    Fault("empty page", "empty", "empty", "the page is empty", 4, "none", *NOTHING),
    Fault("every value NaN", "nan", "empty", "NaN: no data", 0, "gap", "unknown", 3),
    Fault("every value +Inf", "inf", "fresh", "", 0, "gap", "unknown", 3),
    Fault("no # TYPE lines", "untyped", "fresh", "", 0, "fresh", "healthy", 0),
    Fault(
        "dies while watched", "ok", "refused", "connection refused", 0, "gap", "unknown", 3, ("outage",),
        script=((0.0, _die),),
    ),
    Fault(
        "dies and returns", "ok", "fresh", "", 0, "fresh", "healthy", 0, ("outage",),
        script=((0.0, _die), (0.6, _return)),
    ),
    Fault(
        "restarts: counters fall to 0", "ok", "fresh", "", 0, "fresh", "healthy", 0, ("restart",),
        script=((0.0, _restart),),
    ),
    Fault(
        "the pool's use is not exported", "ok", "fresh", "", 0, "unsupported", "unknown", 3, ("capacity",),
        without=("vllm:kv_cache_usage_perc",),
    ),
    Fault(
        "preemptions are not exported", "ok", "fresh", "", 0, "fresh", "unknown", 3, ("preemption",),
        without=("vllm:num_preemptions",),
    ),
)  # fmt: skip


@contextlib.contextmanager
def provoked(fault: Fault) -> Iterator[Endpoint]:
    """The endpoint with its fault; the script begins after the first scrapes."""
    with Endpoint() as endpoint, LivingPage(endpoint, fault.without) as page:
        endpoint.behave(fault.behaves)
        stop = threading.Event()
        driver = threading.Thread(target=_drive, args=(fault, endpoint, page, stop), daemon=True)
        driver.start()
        try:
            yield endpoint
        finally:
            stop.set()
            driver.join(timeout=5)


def _drive(fault: Fault, endpoint: Endpoint, page: LivingPage, stop: threading.Event) -> None:
    while fault.script and len(endpoint.requests) < FIRST:
        if stop.wait(0.02):
            return
    start = time.monotonic()
    for at, act in fault.script:
        if stop.wait(max(0.0, start + at - time.monotonic())):
            return
        act(endpoint, page)


def command(fault: Fault, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of one command against a fresh endpoint with the fault."""
    out, err = io.StringIO(), io.StringIO()
    with provoked(fault) as endpoint, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([words[0], endpoint.target, "--json", "--timeout", TIMEOUT, "--interval", "100ms", *words[1:]])
    try:
        return code, json.loads(out.getvalue())
    except json.JSONDecodeError:
        raise AssertionError(f"exit {code}, no JSON: {out.getvalue()[:200]} {err.getvalue()[:400]}") from None


def screen(fault: Fault) -> str:
    """The Sources screen as text, once it says of the source what it must (or what it says after ten seconds)."""
    from probes.attach import attach
    from tui.app import KvtopApp
    from tui.monitor import Monitor
    from tui.options import Options

    async def look(target: str) -> str:
        options = Options(interval_ms=100, label=target)
        app = KvtopApp(
            lambda made: Monitor(lambda: attach([target], interval_ms=100, timeout_s=1.0), made.post_message, options),
            options,
        )
        async with app.run_test(size=(200, 60)) as pilot:
            await pilot.press("3")
            await asyncio.sleep(fault.look_s if fault.script else 0)
            text = ""
            for _ in range(100):
                await pilot.pause(0.1)
                strips = app.screen._compositor.render_strips()
                text = "\n".join("".join(segment.text for segment in strip) for strip in strips)
                if all(word in text for word in fault.on_screen):
                    break
            return text

    with provoked(fault) as endpoint:
        return asyncio.run(look(endpoint.target))


def pool_state(reading: dict[str, Any]) -> str:
    """How the pool's use stands, with its value; "none" when there is no such reading at all."""
    for entity in reading["entities"]:
        found = entity["values"].get(POOL)
        if found is not None:
            assert found["value"] != 0, "missing is never 0"
            assert (found["value"] is None) == (found["state"] not in ("fresh", "stale", "reset"))
            return str(found["state"])
    return "none"


def plain(text: str) -> str:
    """Without what differs from run to run: ports, byte counts, times."""
    text = re.sub(r"127\.0\.0\.1( port |:)\d+", r"HOST\1PORT", text)
    text = re.sub(r"\d+(\.\d+)? (k?B|bytes)\b", r"N \2", text)
    text = re.sub(r"\(received .*?\)", "", text)
    return re.sub(r"\d+(\.\d+)? s\b", "N s", text).strip()


def _why(diagnosis: dict[str, Any]) -> str:
    parts = [f"{one['cause']} {one['verdict']}" for one in diagnosis["findings"]]
    parts += [f"unexplained: {one['resource']}" for one in diagnosis["unexplained"]]
    if diagnosis["verdict"] == "unknown":
        undecided = [one["check"] for one in diagnosis["core"] if one["bad"] is None]
        parts.append("undecided: " + ", ".join(undecided))
    parts += sorted({one["kind"] for one in diagnosis["events"]})
    return "; ".join(dict.fromkeys(parts))


def row(fault: Fault) -> str:
    """Provoke, look three times, assert, and give the table's line."""
    watch = ["--for", f"{fault.look_s}"] if fault.script else []
    once_code, reading = command(fault, "once", *watch)
    source = reading["sources"][0]
    assert (once_code, source["state"]) == (fault.once, fault.state), source
    assert fault.error in (source["error"] or "")
    assert pool_state(reading) == fault.pool

    code, diagnosis = command(fault, "diagnose", "--for", f"{fault.look_s}")
    assert (diagnosis["verdict"], code) == (fault.verdict, fault.diagnose), diagnosis
    assert diagnosis["sources"][0]["state"] == fault.state
    why = _why(diagnosis)
    assert all(word in why for word in fault.holds), why

    shown = screen(fault)
    assert all(word in shown for word in fault.on_screen), shown

    said = fault.state + (f": {plain(source['error'])}" if source["error"] else "")
    cells = [fault.name, said, fault.pool, str(once_code), " – ".join(filter(None, (fault.verdict, why))), str(code)]
    return "| " + " | ".join(cells) + " |"


HEAD = """\
# Endpoint faults

Written by `tests/live/test_fault_table.py`, which provokes each of them on a real socket and asserts every cell.
*State* is what the Sources screen, `once` and `diagnose` say of the source; *pool* is how `once` gives the pool's use:
a number that is not there is never 0.

Exit code 4 says that no target gave a single sample: nobody answered, or the page was no page, empty or cut short (a
page that is cut anywhere is not used at all). With samples, whatever their values, `once` gives 0, and `diagnose` 3
when it cannot decide from them. A recording is held to the same: 4 when it is empty or cut before its first whole
line; one that is cut later is read up to there, and the cut is told.

| fault | state | pool | `once` exit | `diagnose` | exit |
|---|---|---|---|---|---|
"""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_named_and_no_value_is_invented(fault: Fault, request: pytest.FixtureRequest) -> None:
    line = row(fault)
    lines: dict[str, str] = request.session.stash.setdefault(LINES, {})
    lines[fault.name] = line
    if "KVSCOPE_WRITE_DOCS" not in os.environ:
        assert line in PAGE.read_text(encoding="utf-8"), "docs/faults.md is out of date (see this module's text)"


LINES = pytest.StashKey[dict[str, str]]()


def test_the_page_is_the_table(request: pytest.FixtureRequest) -> None:
    if "KVSCOPE_WRITE_DOCS" in os.environ:
        lines = request.session.stash.get(LINES, {})
        if len(lines) == len(FAULTS):
            PAGE.write_text(HEAD + "\n".join(lines[fault.name] for fault in FAULTS) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    assert [line.split(" | ")[0][2:] for line in text.removeprefix(HEAD).splitlines()] == [f.name for f in FAULTS]
