"""A real Prometheus that loaded our rule files over a recording answers as the inlined expressions do."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from probes.labels import Pairs
from probes.promql.parse import parse
from probes.promql.value import Vector
from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.sources.recording import RecordingSource
from probes.view import View

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "probes" / "engines").glob("*.rules.yml"))
CASES = ROOT / ".." / "shared" / "cases"
STEP_S = 5
ASKED = [
    "rate({}[1m])", "increase({}[1m])", "delta({}[1m])", "max_over_time({}[1m])", "changes({}[1m])",
    "quantile_over_time(0.5, {}[1m])",
]  # fmt: skip

pytestmark = pytest.mark.live


def recording() -> Path:
    """One whose engine offloads, with GPU and host series: the widest of them."""
    for about in sorted(CASES.glob("*.json")):
        if json.loads(about.read_text())["engine"] == "vllm+offload":
            return about.with_suffix(".om")
    pytest.skip("the recordings of ../shared/cases are not here")


class Server:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str | float) -> Any:
        text = urllib.parse.urlencode(query)
        with urllib.request.urlopen(f"{self.url}{path}?{text}", timeout=10) as answer:
            return json.load(answer)["data"]

    def vector(self, expr: str, at_s: float) -> dict[Pairs, float]:
        found = self.get("/api/v1/query", query=expr, time=at_s)["result"]
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found}


@contextmanager
def prometheus(data: Path, directory: Path) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = directory / "prometheus.yml"
    config.write_text("global: {scrape_interval: 1h}\n")
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}", "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield ready(Server(port), process)
    finally:
        process.terminate()
        process.wait(timeout=20)


def ready(server: Server, process: subprocess.Popen[bytes]) -> Server:
    for _ in range(150):
        if process.poll() is not None:
            pytest.fail(f"prometheus ended with {process.returncode}")
        try:
            server.get("/api/v1/query", query="1", time=0)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
        else:
            return server
    pytest.fail("prometheus did not get ready")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def test_a_prometheus_with_our_rules_agrees_with_kvtop(tmp_path: Path) -> None:
    for part in ("prometheus", "promtool"):
        if shutil.which(part) is None:
            pytest.skip(f"{part} is not installed")
    source = recording()
    store = SeriesStore()
    RecordingSource("case", source, store)
    span = store.span()
    assert span is not None
    start, end = span[0] // 1000, span[1] // 1000
    plain, rules = tmp_path / "plain", RuleSet.load()
    run("promtool", "tsdb", "create-blocks-from", "openmetrics", str(derived(source, store, tmp_path)), str(plain))
    with prometheus(plain, tmp_path) as server:
        run(
            "promtool", "tsdb", "create-blocks-from", "rules", f"--start={start}", f"--end={end}",
            f"--eval-interval={STEP_S}s", f"--url={server.url}", f"--output-dir={plain}", *map(str, FILES),
        )  # fmt: skip
    # kvscope_scrape_samples_changed is ours: no Prometheus has it.
    names = [s for entry in rules.vocabulary for s in entry.series if s != "kv:scrape_samples_changed"]
    view = View(store, rules, mode="2")
    with prometheus(plain, tmp_path) as server:
        assert compare_recorded(server, view, names, end) > 300
        assert compare_functions(server, view, rules, names, end) > 150


def compare_recorded(server: Server, view: View, names: list[str], end_s: int) -> int:
    """Recorded series against inlined selectors, at the moment at which Prometheus evaluated the rule.

    A group is evaluated at its own slot of the interval, so that moment lies between two scrapes.
    """
    compared = 0
    for name in names:
        for at_s in (end_s - 150, end_s - 2):
            recorded = server.vector(name, at_s)
            moments = set(server.vector(f"timestamp({name})", at_s).values())
            assert len(moments) <= 1, name
            for moment in moments:
                agree(recorded, local(view, name, moment), name)
            compared += len(recorded)
    return compared


def compare_functions(server: Server, view: View, rules: RuleSet, names: list[str], end_s: int) -> int:
    """What the server makes of the inlined text, against what kvtop answers to the canonical one."""
    compared = 0
    for number, name in enumerate(names):
        asked = ASKED[number % len(ASKED)].format(name)
        theirs = server.vector(str(rules.expand(parse(asked))), end_s - 7)
        agree(theirs, local(view, asked, end_s - 7), asked)
        compared += len(theirs)
    return compared


def agree(theirs: dict[Pairs, float], mine: dict[Pairs, float], asked: str) -> None:
    assert theirs.keys() == mine.keys(), asked
    for labels, value in theirs.items():
        assert mine[labels] == pytest.approx(value, rel=1e-12, abs=0, nan_ok=True), f"{asked} {labels}"


def derived(source: Path, store: SeriesStore, directory: Path) -> Path:
    """The recording with the gauges that the ingest makes of info labels, which a Prometheus lacks."""
    lines = []
    for selection in sorted(n for n in store.names() if ":cache_config_info:" in n):
        lines.append(f"# TYPE {selection} gauge")
        for labels in (one for one in store.series() if one.name == selection):
            for second in range(*(t // 1000 for t in store.span() or ()), STEP_S):
                latest = store.latest(labels, second * 1000)
                if latest is not None:
                    lines.append(f"{labels} {latest[1]} {second}")
    text = source.read_text().removesuffix("# EOF\n")
    path = directory / "with_info.om"
    path.write_text(text + "\n".join(lines) + "\n# EOF\n")
    return path


def local(view: View, expr: str, at_s: float) -> dict[Pairs, float]:
    value = view.instant(expr, round(at_s * 1000))
    assert isinstance(value, Vector)
    return {
        labels.pairs: float(number)
        for labels, number, present in zip(value.labels, value.values[:, 0], value.present[:, 0], strict=True)
        if present
    }
