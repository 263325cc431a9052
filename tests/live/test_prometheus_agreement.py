"""Prometheus' own server and our engine, on the same data, must say the same (mode "2": Debian has 2.42)."""

from __future__ import annotations

import http.client
import json
import math
import random
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.columns import blank
from probes.labels import Labels
from probes.promql.answer import to_prometheus_json
from probes.promql.engine import Engine
from probes.promql.errors import PromQLError
from probes.promql.parse import parse
from probes.series import ABSENT, STALE, SeriesStore

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        not (shutil.which("prometheus") and shutil.which("promtool")), reason="prometheus or promtool is not installed"
    ),
]

START_S = 1_700_000_000
MINUTES = 40
EXPRESSIONS = [
    line
    for line in (Path(__file__).parent / "agreement.promql").read_text().splitlines()
    if line and not line.startswith("#")
]
INSTANTS_S = (START_S + 150, START_S + 900, START_S + 1507.25, START_S + 1805, START_S + 2390)
RANGES_S = ((START_S + 30, START_S + 2670, 240), (START_S + 600, START_S + 1203, 67))
TOLERANCE = 1e-12

Series = tuple[Labels, dict[int, float]]
"""A label set and its samples by time in ms."""


def _axis(step_s: float, *, begin_s: float = 0, end_s: float = MINUTES * 60) -> list[int]:
    count = int((end_s - begin_s) / step_s)
    return [round((START_S + begin_s + i * step_s) * 1000) for i in range(count + 1)]


def _counter(rng: random.Random, axis: list[int], mean: float, resets: int) -> dict[int, float]:
    drops = set(rng.sample(axis[1:], resets))
    total, out = rng.uniform(0, 1e4), {}
    for t in axis:
        total = rng.uniform(0, mean) if t in drops else total + rng.choice([0, 1, rng.expovariate(1 / mean)])
        out[t] = total
    return out


def _gauge(rng: random.Random, axis: list[int]) -> dict[int, float]:
    level = rng.uniform(10, 20)
    return {t: level + 8 * math.sin(t / 3e5 + level) + rng.gauss(0, 1) for t in axis}


def _holes(rng: random.Random, samples: dict[int, float]) -> dict[int, float]:
    """Without a few stretches of one to eight minutes, and without single samples here and there."""
    out = dict(samples)
    for _ in range(3):
        begin = rng.uniform(0, MINUTES * 60)
        end = begin + rng.uniform(60, 480)
        out = {t: v for t, v in out.items() if not begin <= t / 1000 - START_S <= end}
    return {t: v for t, v in out.items() if rng.random() > 0.1}


def _histogram(rng: random.Random, axis: list[int], instance: str) -> list[Series]:
    bounds = ["0.005", "0.01", "0.05", "0.1", "0.5", "1", "2.5", "10", "+Inf"]
    counts, total, out = [0.0] * len(bounds), 0.0, [dict[int, float]() for _ in range(len(bounds) + 2)]
    for t in axis:
        for _ in range(rng.randrange(6)):
            seen = rng.lognormvariate(-2, 1.5)
            total += seen
            counts = [c + (seen <= float(b)) for b, c in zip(bounds, counts, strict=True)]
        for i, value in enumerate([*counts, total, counts[-1]]):
            out[i][t] = value
    base = {"instance": instance, "job": "api"}
    rows = [(Labels.of({**base, "le": b}, "latency_seconds_bucket"), out[i]) for i, b in enumerate(bounds)]
    rows.append((Labels.of(base, "latency_seconds_sum"), out[-2]))
    rows.append((Labels.of(base, "latency_seconds_count"), out[-1]))
    return rows


def _odd_histograms(axis: list[int]) -> list[Series]:
    shapes: dict[str, dict[str, float]] = {
        "falling": {"1": 5, "2": 3, "4": 9, "+Inf": 8},
        "endless": {"1": 5, "2": 7},
        "lone": {"+Inf": 4},
        "empty": {"1": 0, "2": 0, "+Inf": 0},
        "below": {"-1": 3, "0": 5, "1": 6, "+Inf": 7},
        "same": {"1": 5, "1.0": 2, "2": 9, "+Inf": 10},
        "unread": {"x": 5, "1": 5, "+Inf": 6},
        "nan": {"1": math.nan, "2": 5, "+Inf": math.nan},
        "tail": {"1": 0, "2": 0, "+Inf": 10},
        "float": {"0.1": 0.1, "0.2": 0.30000000000000004, "0.4": 0.3, "+Inf": 0.7},
    }
    return [
        (Labels.of({"shape": shape, "le": le}, "odd_bucket"), {t: v * (1 + i % 3) for i, t in enumerate(axis)})
        for shape, buckets in shapes.items()
        for le, v in buckets.items()
    ]


def _rooms(rng: random.Random, axis: list[int]) -> list[Series]:
    rooms, out = ("a", "b", "c d", 'é"\\'), list[Series]()
    for i, room in enumerate(rooms):
        for shelf in ("1", "2"):
            out.append((Labels.of({"room": room, "shelf": shelf}, "temperature"), _gauge(rng, axis)))
        out.append((Labels.of({"room": room}, "steady"), dict.fromkeys(axis, float(3 * i + 1))))
        out.append((Labels.of({"room": room, "colour": f"c{i}"}, "room_info"), dict.fromkeys(axis, 1.0)))
    return out


def _weird(axis: list[int]) -> list[Series]:
    cycles = {
        "nan": [1, math.nan, 2, 3],
        "allnan": [math.nan],
        "inf": [5, math.inf, 7, 1, 0.5],
        "minus": [1, -math.inf, 4],
        "both": [math.inf, -math.inf, 1],
        "plain": [0.1, 0.2, 0.3],
        "zero": [0.0, -0.0],
        "up": [float(n) for n in range(200)],
    }
    return [
        (Labels.of({"kind": kind}, "weird"), {t: cycle[i % len(cycle)] for i, t in enumerate(axis)})
        for kind, cycle in cycles.items()
    ]


def build() -> list[list[Series]]:
    """The data: lists of series; those in one list share their scrape times."""
    rng = random.Random(7)
    regular = _axis(15)
    first = [
        (
            Labels.of({"instance": f"h{n}:80", "code": code, "job": "api", "pod": f"p{n}"}, "requests_total"),
            _counter(rng, regular, 30, resets),
        )
        for n in range(3)
        for resets, code in enumerate(("200", "404", "500", "503"))
    ]
    for n in range(3):
        first += _histogram(rng, regular, f"h{n}:80")
    first += _odd_histograms(regular) + _rooms(rng, regular) + _weird(regular)
    first += [
        (Labels.of({"n": str(n)}, "large"), {t: 1e9 * (n + 1) + rng.random() * 1e3 for t in regular}) for n in range(4)
    ]
    first += [(Labels.of({"n": "1"}, name), _gauge(rng, regular)) for name in ("twin_a", "twin_b")]
    first += [(Labels.of({"n": str(n)}, "gappy_total"), _holes(rng, _counter(rng, regular, 9, 2))) for n in range(4)]
    first += [(Labels.of({"n": str(n)}, "gappy"), _holes(rng, _gauge(rng, regular))) for n in range(4)]
    halfway = _axis(15, end_s=1200)
    first += [(Labels.of({"n": str(n)}, "ending"), _gauge(rng, halfway)) for n in range(2)]
    ragged = _axis(0.25)
    irregular = sorted(set(rng.sample(ragged, 110)))
    second = [(Labels.of({"n": str(n)}, "irregular_total"), _counter(rng, irregular, 5, 1)) for n in range(3)]
    second += [(Labels.of({"n": str(n)}, "irregular"), _gauge(rng, irregular)) for n in range(3)]
    slow = [(Labels.of({"n": "0"}, "slow_total"), _counter(rng, _axis(170), 50, 1))]
    young = _axis(20, begin_s=700)
    third = [
        (Labels.of({"n": str(n)}, "young_total"), {t: float(i * n) for i, t in enumerate(young)}) for n in range(3)
    ]
    return [first, second, slow, third]


def fill(store: SeriesStore, groups: list[list[Series]]) -> None:
    for number, group in enumerate(groups):
        times = np.array(sorted({t for _, samples in group for t in samples}), dtype=np.int64)
        matrix = blank((len(group), times.size))
        place = {t: i for i, t in enumerate(times.tolist())}
        for row, (_, samples) in enumerate(group):
            for t, value in samples.items():
                matrix[row, place[t]] = value
        store.frame(f"group {number}").load(times, [labels for labels, _ in group], matrix)


def openmetrics(groups: list[list[Series]]) -> str:
    def text(value: float) -> str:
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(value)

    lines = []
    for group in groups:
        for labels, samples in group:
            inside = ",".join(
                k + '="' + v.replace("\\", "\\\\").replace('"', '\\"') + '"' for k, v in labels if k != "__name__"
            )
            lines += [f"{labels.name}{{{inside}}} {text(v)} {t / 1000:.3f}" for t, v in samples.items()]
    return "\n".join([*lines, "# EOF", ""])


class Server:
    """Prometheus' HTTP API over one kept connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def ask(self, path: str, **query: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", path, urllib.parse.urlencode(query), headers)
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return answer

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def groups() -> list[list[Series]]:
    return build()


@pytest.fixture(scope="module")
def server(groups: list[list[Series]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    where = tmp_path_factory.mktemp("prometheus")
    (where / "data.om").write_text(openmetrics(groups), encoding="utf-8")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(where / "data.om"), str(where / "tsdb")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (where / "prometheus.yml").write_text("global: {}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={where / 'prometheus.yml'}",
            f"--storage.tsdb.path={where / 'tsdb'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=(where / "log").open("w"),
    )
    try:
        _wait_ready(process, port, where / "log")
        asked = Server(port)
        yield asked
        asked.close()
    finally:
        process.kill()
        process.wait(timeout=10)


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/-/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(f"prometheus did not become ready: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def engine(groups: list[list[Series]]) -> Engine:
    store = SeriesStore()
    fill(store, groups)
    return Engine(store, mode="2")


def test_enough_expressions() -> None:
    assert len(EXPRESSIONS) >= 150
    assert len(set(EXPRESSIONS)) == len(EXPRESSIONS)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_agrees(text: str, server: Server, engine: Engine) -> None:
    for at_s in INSTANTS_S:
        theirs = server.ask("/api/v1/query", query=text, time=f"{at_s:.3f}")
        at_ms = round(at_s * 1000)
        ours = _ours(text, lambda expr, at=at_ms: to_prometheus_json(engine.instant(expr, at), "instant", at))
        _compare(text, f"at {at_s}", theirs, ours)
    for start, end, step in RANGES_S:
        theirs = server.ask("/api/v1/query_range", query=text, start=start, end=end, step=step)
        span = (start * 1000, end * 1000, step * 1000)
        ours = _ours(text, lambda expr, s=span: to_prometheus_json(engine.range(expr, *s), "range"))
        _compare(text, f"over {start}..{end} by {step}", theirs, ours)


def _ours(text: str, run: Any) -> dict[str, Any] | str:
    try:
        found: dict[str, Any] = run(parse(text))
        return found
    except (PromQLError, ValueError) as error:
        return str(error)


def _compare(text: str, when: str, theirs: dict[str, Any], ours: dict[str, Any] | str) -> None:
    if theirs["status"] == "error" or isinstance(ours, str):
        assert theirs["status"] == "error", f"{when}: we refuse: {ours}"
        assert isinstance(ours, str), f"{when}: prometheus refuses, we do not: {theirs['error']}"
        return
    data = theirs["data"]
    assert ours["resultType"] == data["resultType"]
    (names, mine), (expected, real) = _rows(ours), _rows(data)
    assert names == expected, when
    for key, some, others in zip(names, mine, real, strict=True):
        assert [p[0] for p in some] == [p[0] for p in others], f"{when}: times of {key}"
        for (moment, a), (_, b) in zip(some, others, strict=True):
            assert _same(a, b), f"{when}: {key} at {moment}: we say {a}, prometheus {b}"
    if text.startswith(("sort", "topk(", "bottomk(")) and data["resultType"] == "vector":
        pairs = zip(ours["result"], data["result"], strict=True)
        assert all(_same(a["value"][1], b["value"][1]) for a, b in pairs), f"{when}: not in the same order"


def _rows(data: dict[str, Any]) -> tuple[list[str], list[list[list[Any]]]]:
    """Label sets in order, and a list of (time, value) for each."""
    if data["resultType"] in ("scalar", "string"):
        return [""], [[data["result"]]]
    rows = [(json.dumps(r["metric"], sort_keys=True), r.get("values") or [r["value"]]) for r in data["result"]]
    rows.sort(key=lambda row: row[0])
    return [row[0] for row in rows], [row[1] for row in rows]


def _same(mine: str, real: str) -> bool:
    try:
        a, b = float(mine), float(real)
    except ValueError:
        return mine == real
    return (math.isnan(a) and math.isnan(b)) or a == b or abs(a - b) <= TOLERANCE * max(abs(a), abs(b))


STALENESS = {
    "gone": "1 2 3 stale _ _ _ _ 4 5",
    "late": "_ _ _ 7 8x3 _x3",
    "flaps": "1 stale 2 stale 3 stale 4 stale 5 6",
}


@pytest.mark.parametrize(
    "text",
    [
        "gone",
        "late",
        "flaps",
        "count_over_time(gone[2m])",
        "count_over_time(flaps[3m])",
        "rate(flaps[4m])",
        "changes(flaps[5m])",
        "last_over_time(gone[3m])",
        "absent(gone)",
        "max_over_time(flaps[5m:30s])",
        "gone or flaps",
        "sum(flaps) + sum(late)",
        "resets(gone[10m])",
    ],
)
def test_staleness_agrees_with_promtool(text: str, tmp_path: Path) -> None:
    """Recordings hold no markers; promtool's rule tests do. Our answers are written as its expectations."""
    store = SeriesStore()
    for name, cells in STALENESS.items():
        frame = store.frame(name)
        frame.load(*_staleness_column(name, cells))
    engine = Engine(store, mode="2")
    tests = []
    for at_s in range(0, 900, 30):
        value = engine.instant(parse(text), at_s * 1000)
        rows = to_prometheus_json(value, "instant")["result"]
        samples = [{"labels": str(Labels.of(r["metric"])), "value": float(r["value"][1])} for r in rows]
        tests.append({"expr": text, "eval_time": f"{at_s}s", "exp_samples": samples})
    given = [{"series": name, "values": cells} for name, cells in STALENESS.items()]
    plan = {
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": tests}],
    }
    (tmp_path / "staleness.yml").write_text(json.dumps(plan))
    told = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "staleness.yml")], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stdout + told.stderr


def _staleness_column(name: str, cells: str) -> tuple[Any, list[Labels], Any]:
    """promtool's notation, one minute a cell: ``_`` is no sample, ``ax3`` is a, and a three times more."""
    values: list[float] = []
    for cell in cells.split():
        what, _, times = cell.partition("x")
        value = {"_": float(ABSENT), "stale": float(STALE)}.get(what)
        count = int(times) + (what != "_") if times else 1
        values += [float(what) if value is None else value] * count
    made = blank((1, len(values)))
    for i, value in enumerate(values):
        made[0, i] = value
    return np.arange(len(values), dtype=np.int64) * 60_000, [Labels.of(name=name)], made
