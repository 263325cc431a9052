"""Utilisation, saturation and errors, asked before any hypothesis; the five questions of "healthy"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from playbooks.bench import Bench
from playbooks.engine import find_members
from playbooks.objective import objective
from playbooks.sweep import CORE, Swept, checks, sweep
from probes.rules import RuleSet
from tests.playbooks.pages import Pages, engine_labels, grows
from tests.playbooks.stub import NAN, after, during

LABELS = engine_labels()


def _swept(pages: Pages, folder: Path, rules: RuleSet, *slo: str) -> Swept:
    with pages.view(folder, rules) as (view, grid):
        bench = Bench(view, grid, rules)
        return sweep(bench, find_members(bench), (objective(text).check for text in slo))


def _core(swept: Swept) -> dict[str, bool | None]:
    return {check.name: check.bad for check in swept.core}


def test_a_healthy_engine_is_decided_but_for_latency(tmp_path: Path, rules: RuleSet) -> None:
    swept = _swept(Pages().engine(), tmp_path, rules)
    assert swept.bad == ()
    assert _core(swept) == {
        "capacity": False, "queue": False, "preemption": False, "latency": None, "freshness": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ({"usage": 0.97}, "capacity"),
        ({"waiting": 3.0}, "queue"),
        ({"preemptions": grows(1.0)}, "preemption"),
    ],
)
def test_each_question_can_be_bad(change: dict[str, Any], bad: str, tmp_path: Path, rules: RuleSet) -> None:
    swept = _swept(Pages().engine(**change), tmp_path, rules)
    assert [name for name, answer in _core(swept).items() if answer] == [bad]
    assert [one.symptom for one in swept.bad] == [bad]
    assert next(c.says for c in swept.core if c.bad).startswith("pod-1:8000: ")


@pytest.mark.parametrize(
    "change",
    [
        {"usage": 0.94},
        {"usage": lambda t: 0.97 if t >= 290 else 0.4},  # a peak is no state
        {"waiting": lambda t: 3.0 * (t % 20 < 10)},  # a queue that empties
        {"preemptions": after(200, 2.0)},  # two are none
    ],
)
def test_what_passes_is_not_bad(change: dict[str, Any], tmp_path: Path, rules: RuleSet) -> None:
    assert _swept(Pages().engine(**change), tmp_path, rules).bad == ()


def test_scrapes_that_fail_are_bad_freshness(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine().target("pod-1:8000", up=lambda t: 0.0 if t > 200 else 1.0)
    assert _core(_swept(pages, tmp_path, rules))["freshness"] is True


@pytest.mark.parametrize(
    ("family", "question"),
    [
        ("vllm:kv_cache_usage_perc", "capacity"),
        ("vllm:num_requests_waiting", "queue"),
        ("vllm:num_preemptions_total", "preemption"),
        ("up", "freshness"),
    ],
)
def test_without_its_family_a_question_is_undecided(family: str, question: str, tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine()
    del pages.series[family]
    assert [name for name, bad in _core(_swept(pages, tmp_path, rules)).items() if bad is None] == sorted(
        {question, "latency"}, key=CORE.index
    )


def test_one_blind_engine_keeps_the_fleet_undecided(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine().engine("pod-2:8000", usage=NAN)
    assert _core(_swept(pages, tmp_path, rules))["capacity"] is None
    worse = Pages().engine(usage=0.97).engine("pod-2:8000", usage=NAN)
    assert _core(_swept(worse, tmp_path, rules))["capacity"] is True


def test_nothing_seen_decides_nothing(tmp_path: Path, rules: RuleSet) -> None:
    assert set(_core(_swept(Pages().put("some_gauge", 'instance="x:1"', 1.0), tmp_path, rules)).values()) == {None}


def test_a_resource_outside_the_core_is_swept_too(tmp_path: Path, rules: RuleSet) -> None:
    pages = Pages().engine()
    pages.put("vllm:request_success_total", LABELS + ',finished_reason="error"', grows(1.0))
    (bad,) = _swept(pages, tmp_path, rules).bad
    assert bad.symptom == "request-errors"
    assert bad.value == pytest.approx(1 / 3)
    assert bad.says == "33% of the requests ended in an error"


def _free(pages: Pages, curve: object) -> Pages:
    gpu = 'instance="node-a:9400",job="dcgm",gpu="0"'
    pages.put("DCGM_FI_DEV_FB_FREE", gpu, curve)  # type: ignore[arg-type]
    return pages.put("DCGM_FI_DEV_GPU_UTIL", gpu, 50.0)


def test_a_sticky_check_counts_although_it_is_over(tmp_path: Path, rules: RuleSet) -> None:
    dip = _free(Pages().engine(), lambda t: 1000.0 if during(120, 200)(t) else 8000.0)
    assert [one.symptom for one in _swept(dip, tmp_path, rules).bad] == ["gpu-memory"]
    assert _swept(_free(Pages().engine(), 8000.0), tmp_path, rules).bad == ()


def _histogram(pages: Pages, name: str, seconds: object, per_second: float) -> Pages:
    """A latency histogram whose observations all fall at ``seconds(t)``."""
    bounds = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
    counts = [[0.0] * (len(bounds) + 1)]
    for _t in range(0, pages.seconds, pages.interval_s):
        value = seconds(_t)  # type: ignore[operator]
        row = list(counts[-1])
        for i, bound in enumerate((*bounds, float("inf"))):
            row[i] += per_second * pages.interval_s * (value <= bound)
        counts.append(row)
    for i, bound in enumerate((*bounds, float("inf"))):
        le = "+Inf" if bound == float("inf") else repr(bound)
        pages.put(f"{name}_bucket", f'{LABELS},le="{le}"', lambda t, i=i: counts[int(t) // pages.interval_s][i])  # type: ignore[misc]
    last = len(bounds)
    pages.put(f"{name}_count", LABELS, lambda t: counts[int(t) // pages.interval_s][last])
    return pages.put(f"{name}_sum", LABELS, lambda t: 0.3 * counts[int(t) // pages.interval_s][last])


def test_latency_is_bad_when_it_doubles_for_the_same_prompts(tmp_path: Path, rules: RuleSet) -> None:
    name = "vllm:time_to_first_token_seconds"
    same = _histogram(Pages().engine(), name, lambda t: 0.15, 2.0)
    assert _core(_swept(same, tmp_path, rules))["latency"] is False
    slow = _histogram(Pages().engine(), name, lambda t: 0.15 if t < 150 else 1.2, 2.0)
    swept = _swept(slow, tmp_path, rules)
    assert _core(swept)["latency"] is True
    assert [one.check.test.name for one in swept.bad] == ["latency"]


def test_slower_tokens_of_a_larger_batch_are_expected(tmp_path: Path, rules: RuleSet) -> None:
    name = "vllm:inter_token_latency_seconds"
    same_batch = _histogram(Pages().engine(), name, lambda t: 0.15 if t < 150 else 1.2, 50.0)
    assert [one.check.test.name for one in _swept(same_batch, tmp_path, rules).bad] == ["inter-token"]
    larger = _histogram(
        Pages().engine(running=after(145, 40.0, before=10.0)), name, lambda t: 0.15 if t < 150 else 1.2, 50.0
    )
    assert _swept(larger, tmp_path, rules).bad == ()


def test_an_objective_replaces_the_comparisons_of_latency(tmp_path: Path, rules: RuleSet) -> None:
    name = "vllm:time_to_first_token_seconds"
    slow = _histogram(Pages().engine(), name, lambda t: 0.15 if t < 150 else 1.2, 2.0)
    quantile = "histogram_quantile(0.5, sum by (le) (rate(kv:ttft_seconds_bucket[$window])))"
    assert _swept(slow, tmp_path, rules, f"{quantile} < 2").bad == ()
    broken = _swept(slow, tmp_path, rules, f"{quantile} < 0.5")
    assert [one.check.test.name for one in broken.bad] == ["objective"]


def test_every_packaged_check_names_its_origin_and_its_symptom_once() -> None:
    names = [check.test.name for check in checks()]
    assert len(names) == len(set(names))
    assert {check.core for check in checks() if check.core} == set(CORE)
    assert all(check.test.source and check.test.says for check in checks())


def _tail(pages: Pages, slow_share: float, per_second: float = 20.0) -> Pages:
    """Nearly all first tokens come within 0.1 s; from second 150 on a share of them takes 6 s."""
    bounds = ("0.1", "0.2", "0.4", "0.8", "1.6", "3.2", "6.4", "+Inf")
    for i, le in enumerate(bounds):

        def below(t: float, i: int = i) -> float:
            slow = slow_share * per_second * max(0.0, t - 150)
            return per_second * t - (slow if i < 6 else 0.0)

        pages.put("vllm:time_to_first_token_seconds_bucket", f'{LABELS},le="{le}"', below)
    pages.put("vllm:time_to_first_token_seconds_count", LABELS, grows(per_second, 0.0))
    return pages.put("vllm:time_to_first_token_seconds_sum", LABELS, grows(per_second * 0.1, 0.0))


def test_a_tail_that_grew_is_bad_latency_though_the_median_stands(tmp_path: Path, rules: RuleSet) -> None:
    swept = _swept(_tail(Pages().engine(), 0.04), tmp_path, rules)
    assert [one.check.test.name for one in swept.bad] == ["latency-tail"]
    assert _core(swept)["latency"] is True
    assert _core(_swept(_tail(Pages().engine(), 0.0), tmp_path, rules))["latency"] is False


def test_few_requests_have_no_slowest_hundredth(tmp_path: Path, rules: RuleSet) -> None:
    assert _swept(_tail(Pages().engine(), 0.04, per_second=2.0), tmp_path, rules).bad == ()


def test_what_has_just_begun_is_neither_bad_nor_in_order(tmp_path: Path, rules: RuleSet) -> None:
    begun = {"usage": after(262, 0.99, before=0.4), "waiting": after(262, 12.0)}
    swept = _swept(Pages().engine(**begun), tmp_path, rules)
    assert swept.bad == ()
    assert _core(swept)["capacity"] is None
    assert "half a minute so far" in next(c.says for c in swept.core if c.name == "capacity")
    # A full pool for which nobody waits is a busy engine.
    assert _core(_swept(Pages().engine(usage=begun["usage"]), tmp_path, rules))["capacity"] is False


def test_preemptions_that_have_just_begun_leave_the_question_open(tmp_path: Path, rules: RuleSet) -> None:
    begun = Pages().engine(preemptions=lambda t: max(0.0, t - 275) * 2.0)
    assert _core(_swept(begun, tmp_path, rules))["preemption"] in (None, True)
    rare = Pages().engine(preemptions=lambda t: 1.0 * (t > 280), finished=grows(5.0))
    assert _core(_swept(rare, tmp_path, rules))["preemption"] is False


def test_processes_that_take_turns_at_an_address_are_no_healthy_source(tmp_path: Path, rules: RuleSet) -> None:
    turns = Pages().engine().target("pod-1:8000", started_s=lambda t: 1_789_000_000.0 + 3600 * (t // 10 % 2))
    swept = _swept(turns, tmp_path, rules)
    assert "flapping" in [one.check.test.name for one in swept.bad]
    falls = (
        Pages().engine(preemptions=lambda t: (t // 10 % 2) * 500.0 + t).target("pod-1:8000", started_s=lambda t: NAN)
    )
    assert "flapping" in [one.check.test.name for one in _swept(falls, tmp_path, rules).bad]
    once = Pages().engine().target("pod-1:8000", started_s=lambda t: 1_789_000_000.0 + 3600 * (t > 150))
    assert "flapping" not in [one.check.test.name for one in _swept(once, tmp_path, rules).bad]


def test_what_has_just_begun_on_one_engine_does_not_speak_for_what_is_bad_on_another(
    tmp_path: Path, rules: RuleSet
) -> None:
    begun = {"usage": after(262, 0.99, before=0.4), "waiting": after(262, 12.0)}
    pages = Pages().engine("pod-1:8000", **begun).engine("pod-2:8000", usage=0.97)
    (capacity,) = [check for check in _swept(pages, tmp_path, rules).core if check.name == "capacity"]
    assert capacity.bad is True
    assert capacity.says.startswith("pod-2:8000: ")
