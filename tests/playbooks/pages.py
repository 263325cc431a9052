"""Tiny recordings written by hand: a few engines whose numbers are curves, as OpenMetrics with timestamps."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playbooks.engine import Case, diagnose
from playbooks.grid import Grid
from playbooks.objective import Objective
from playbooks.playbook import Playbook
from playbooks.rehearse import diagnose_text
from playbooks.verdict import Diagnosis, SourceLine
from probes.attach import attach
from probes.rules import RuleSet
from probes.view import View

START_S = 1_790_000_000
Curve = Callable[[float], float]
"""Value at a number of seconds from the start; NaN: no sample."""

_KINDS = {"total": "counter", "bucket": "histogram", "count": "histogram", "sum": "histogram"}


def flat(value: float) -> Curve:
    return lambda t: value


def grows(per_second: float, first: float = 1000.0) -> Curve:
    return lambda t: first + per_second * t


@dataclass
class Pages:
    """What a scraper wrote down: ``put`` series, then ``text``. The gauges of a healthy engine come with ``engine``."""

    seconds: int = 300
    interval_s: int = 5
    series: dict[str, list[tuple[str, Curve]]] = field(default_factory=dict)

    def put(self, name: str, labels: str, curve: Curve | float) -> Pages:
        """Add or replace one series; ``labels`` as they stand between braces."""
        rows = [row for row in self.series.get(name, []) if row[0] != labels]
        made = curve if callable(curve) else flat(curve)
        self.series[name] = [*rows, (labels, made)]
        return self

    def target(self, instance: str, up: Curve | float = 1.0, started_s: Curve | float = START_S - 86_400) -> Pages:
        labels = f'instance="{instance}",job="vllm"'
        self.put("up", labels, up)
        return self.put("process_start_time_seconds", labels, started_s)

    def engine(self, instance: str = "pod-1:8000", rank: str = "0", **curves: Curve | float) -> Pages:
        """A healthy vLLM engine; ``curves`` replace usage, running, waiting, preemptions and finished."""
        self.target(instance)
        labels = engine_labels(instance, rank)
        given: dict[str, Curve | float] = {
            "usage": 0.4, "running": lambda t: 8 + (t // 5) % 3, "waiting": 0.0, "preemptions": 0.0,
            "finished": grows(2.0), **curves,
        }  # fmt: skip
        self.put("vllm:kv_cache_usage_perc", labels, given["usage"])
        self.put("vllm:num_requests_running", labels, given["running"])
        self.put("vllm:num_requests_waiting", labels, given["waiting"])
        self.put("vllm:num_preemptions_total", labels, given["preemptions"])
        self.put("vllm:request_success_total", labels + ',finished_reason="stop"', given["finished"])
        self.put("vllm:generation_tokens_total", labels, grows(400.0))
        return self.put("vllm:prompt_tokens_total", labels, grows(1000.0))

    def text(self) -> str:
        lines: list[str] = []
        families: dict[str, list[str]] = {}
        for name in self.series:
            base, _, suffix = name.rpartition("_")
            families.setdefault(base if suffix in _KINDS else name, []).append(name)
        for family, names in families.items():
            lines.append(f"# TYPE {family} {_KINDS.get(names[0].rpartition('_')[2], 'gauge')}")
            for t in range(0, self.seconds + 1, self.interval_s):
                for name in names:
                    for labels, curve in self.series[name]:
                        value = curve(float(t))
                        if not math.isnan(value):
                            lines.append(f"{name}{{{labels}}} {value!r} {START_S + t}")
        return "\n".join([*lines, "# EOF\n"])

    def diagnose(
        self,
        playbooks: Sequence[Playbook],
        rules: RuleSet,
        folder: Path | None = None,
        *,
        objectives: tuple[Objective, ...] = (),
        sources: tuple[SourceLine, ...] = (),
    ) -> Diagnosis:
        """Over the whole span; ``folder`` is needed with objectives or sources."""
        if folder is None:
            return diagnose_text(self.text(), playbooks, rules)
        with self.view(folder, rules) as (view, grid):
            return diagnose(view, Case(grid, sources, objectives), playbooks, rules)

    @contextmanager
    def view(self, folder: Path, rules: RuleSet) -> Iterator[tuple[View, Grid]]:
        path = folder / "pages.om"
        path.write_text(self.text(), encoding="utf-8")
        attachment = attach([str(path)], rules=rules)
        span = attachment.span()
        assert span is not None
        try:
            yield attachment.view, Grid(*span, attachment.interval_ms)
        finally:
            asyncio.run(attachment.close())


def engine_labels(instance: str = "pod-1:8000", rank: str = "0") -> str:
    return f'engine="{rank}",instance="{instance}",job="vllm",model_name="m"'
