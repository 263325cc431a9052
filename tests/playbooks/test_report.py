"""What is printed: JSON that keeps its promise, text that fits, Markdown that does not break."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from playbooks.playbook import Playbook
from playbooks.printable import page
from playbooks.report import as_json, as_markdown, as_text, headline, member_text, quantity
from playbooks.verdict import (
    Command,
    CoreCheck,
    Diagnosis,
    Event,
    Evidence,
    Finding,
    Overall,
    Quantity,
    Refutation,
    SourceLine,
    Undecided,
    Unexplained,
    Verdict,
)
from probes.rules import RuleSet
from tests.playbooks.pages import Pages, grows

NAN, INF = float("nan"), float("inf")
START = 1_790_000_000_000
LONG = "a sentence that goes on for quite a while and then some more, " * 3
MINIMUM = {
    "": {"schema", "verdict", "window", "findings", "unknown", "unexplained", "sources"},
    "findings": {"cause", "verdict", "member", "evidence", "refuted", "explains", "cost", "remedies", "confirm"},
    "evidence": {"expr", "value", "op", "threshold", "basis", "window_s"},
    "unknown": {"cause", "member", "missing", "enable"},
    "unexplained": {"resource", "member", "expr", "value"},
    "sources": {"target", "state", "age_s", "error"},
}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    text = (resources.files("playbooks") / "schema" / "diagnosis.schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def _evidence(**changes: Any) -> Evidence:
    fields: dict[str, Any] = {
        "test": "t", "expr": "avg_over_time(kv:pool_usage_ratio[1m])", "value": 0.97, "op": ">=", "threshold": 0.9,
        "basis": "vendor", "window_s": 60.0, "source": 'a page | with a pipe', "says": "the pool | is " + LONG,
    }  # fmt: skip
    return Evidence(**{**fields, **changes})


def _finding(**changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "cause": "kv-capacity-exhausted", "title": "T" * 90, "verdict": Verdict.LIKELY,
        "member": {"instance": "pod-1:8000"}, "evidence": (_evidence(), _evidence(value=NAN)),
        "refuted": (Refutation("pool-leak", "nothing_runs", LONG),),
        "explains": tuple(f"some-rather-long-cause-{i}" for i in range(9)),
        "cost": {"requests_held_back": Quantity(12.0, "requests"), "wait": Quantity(INF, "seconds")},
        "what_if": (LONG,), "remedies": (LONG,), "confirm": (Command("kvtop query " + "x" * 60, "read-only"),),
        "onset_ms": START + 100_000, "summary": LONG, "doc": "docs/runbooks/kv-capacity-exhausted.md",
    }  # fmt: skip
    return Finding(**{**fields, **changes})


def _full(**changes: Any) -> Diagnosis:
    fields: dict[str, Any] = {
        "verdict": Overall.FINDING, "start_ms": START, "end_ms": START + 300_000,
        "findings": (_finding(), _finding(ended_ms=START + 200_000)),
        "unknown": (Undecided("pool-leak", {}, tuple(f"vllm:some_signal_{i}" for i in range(12)), LONG),),
        "unexplained": (Unexplained("queue", {"instance": "Pod-2:8000"}, "x", NAN, LONG),),
        "events": (Event(START + 1000, "restart", {"instance": "pod-1:8000"}, LONG),),
        "core": (CoreCheck("capacity", True, "full"), CoreCheck("latency", None)),
        "refuted": (Refutation("engine-crash", "down", "it answers"),),
        "sources": (SourceLine("pod-1:8000", "refused", None, LONG), SourceLine("pod-2:8000", "fresh", NAN)),
    }  # fmt: skip
    return Diagnosis(**{**fields, **changes})


def _keys(rows: list[dict[str, Any]]) -> set[str]:
    return set.intersection(*(set(row) for row in rows))


def test_json_holds_the_promised_minimum(validator: Draft202012Validator) -> None:
    told = as_json(_full())
    validator.validate(told)
    assert told["schema"] == "kvscope.diagnosis/1"
    assert MINIMUM[""] <= set(told)
    for part in ("findings", "unknown", "unexplained", "sources"):
        assert MINIMUM[part] <= _keys(told[part])
    assert MINIMUM["evidence"] <= _keys(told["findings"][0]["evidence"])
    assert told["window"] == {"start": START / 1000, "end": START / 1000 + 300}
    assert told["findings"][0]["confirm"] == [{"command": "kvtop query " + "x" * 60, "class": "read-only"}]
    assert told["findings"][0]["cost"]["requests_held_back"] == {"value": 12.0, "unit": "requests"}


def test_json_never_holds_a_number_that_is_none() -> None:
    text = json.dumps(as_json(_full()), allow_nan=False)
    told = json.loads(text)
    assert told["findings"][0]["evidence"][1]["value"] is None
    assert told["findings"][0]["cost"]["wait"]["value"] is None
    assert told["unexplained"][0]["value"] is None
    assert told["sources"][1]["age_s"] is None


def test_the_schema_refuses_what_breaks_the_promise(validator: Draft202012Validator) -> None:
    for path, value in (
        (("verdict",), "fine"),
        (("findings", 0, "verdict"), "unknown"),
        (("findings", 0, "evidence"), []),
        (("findings", 0, "evidence", 0, "expr"), "rate(x[$window])"),
        (("unknown", 0, "missing"), []),
        (("sources", 0, "age_s"), "never"),
    ):
        told: Any = as_json(_full())
        at = told
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        assert not validator.is_valid(told), path
    for part in MINIMUM[""]:
        assert not validator.is_valid({k: v for k, v in as_json(_full()).items() if k != part}), part


@pytest.mark.parametrize(
    "pages",
    [
        Pages().engine(),
        Pages().engine(usage=0.99, waiting=grows(0.1)),
        Pages().engine(waiting=2.0),
        Pages().engine("pod-1:8000").engine("pod-1:8000", rank="1"),
        Pages().put("some_gauge", 'instance="x:1"', 1.0),
    ],
)
def test_real_diagnoses_fit_the_schema_and_the_terminal(
    pages: Pages, playbooks: list[Playbook], rules: RuleSet, validator: Draft202012Validator
) -> None:
    diagnosis = pages.diagnose(playbooks, rules)
    told = as_json(diagnosis)
    json.dumps(told, allow_nan=False)
    validator.validate(told)
    commands = {c.command for f in diagnosis.findings for c in f.confirm}
    assert [line for line in _too_wide(as_text(diagnosis)) if line.strip() not in commands] == []


def _too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 100]


def test_text_fits_a_hundred_columns() -> None:
    assert _too_wide(as_text(_full())) == []
    silent = _full(findings=(), verdict=Overall.UNKNOWN)
    assert _too_wide(as_text(silent)) == []


def test_a_command_is_never_broken() -> None:
    command = "curl -s http://$INSTANCE/metrics | grep -E 'one|two|three|four|five|six' | tr ',' '\\n' | sort | uniq -c"
    text = as_text(_full(findings=(_finding(confirm=(Command(command, "read-only"),)),)))
    assert f"     {command}" in text.splitlines()


def test_the_first_line_is_the_verdict() -> None:
    assert headline(_full()).startswith("likely kv-capacity-exhausted on pod-1:8000 since 14:15:00 (")
    assert headline(_full()).endswith("(and 1 more)")
    unexplained = as_text(_full(findings=(), verdict=Overall.UNKNOWN))
    assert unexplained.startswith("Cannot tell: a sentence")
    assert "on Pod-2:8000" in unexplained.replace("\n  ", " ").split("window")[0], "names keep their case"
    dark = headline(_full(findings=(), unexplained=(), verdict=Overall.UNKNOWN))
    assert dark == "cannot tell: no answer to latency; the signals are not there"


def test_healthy_claims_only_what_was_decided() -> None:
    names = ("capacity", "queue", "preemption", "latency", "freshness")
    all_good = Diagnosis(Overall.HEALTHY, START, START + 1, core=tuple(CoreCheck(n, False) for n in names))
    assert headline(all_good).endswith("are all in order")
    open_ = tuple(CoreCheck(n, None if n == "latency" else False) for n in names)
    told = headline(Diagnosis(Overall.HEALTHY, START, START + 1, core=open_))
    assert told == (
        "healthy: capacity, queue, preemption, freshness are in order; latency had nothing to be compared with"
    )


@pytest.mark.parametrize(
    ("onset_ms", "ended_ms", "words"),
    [
        (None, None, "since before the window"),
        (START, None, "since 14:13:20"),
        (START, START + 60_000, "from 14:13:20 to 14:14:20"),
        (None, START + 60_000, "until 14:14:20"),
    ],
)
def test_when_it_held(onset_ms: int | None, ended_ms: int | None, words: str) -> None:
    assert headline(_full(findings=(_finding(onset_ms=onset_ms, ended_ms=ended_ms),))).endswith(words)


def test_markdown_tables_survive_pipes() -> None:
    rows = [line for line in as_markdown(_full()).splitlines() if line.startswith("| the pool")]
    assert rows
    for row in rows:
        assert row.replace("\\|", "").count("|") == 5
        assert "a page \\| with a pipe" in row


def test_every_part_is_in_text_and_markdown() -> None:
    for told in (as_text(_full()), as_markdown(_full())):
        for part in ("No known cause explains", "Cannot be decided", "Events", "Sources", "vllm:some_signal_2"):
            assert part in told
    quiet = Diagnosis(Overall.HEALTHY, START, START + 300_000)
    assert "Events" not in as_text(quiet)
    assert "###" not in as_markdown(quiet)


def test_members_that_lack_the_same_share_a_line() -> None:
    dark = tuple(Undecided("pool-leak", {"instance": f"pod-{i}:8000"}, ("vllm:x",)) for i in range(3))
    lines = [line for line in as_text(_full(unknown=dark)).splitlines() if "missing" in line]
    assert lines == ["  pool-leak on pod-0:8000, pod-1:8000, pod-2:8000: missing vllm:x"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.583, "ratio", "58%"),
        (12.345, "seconds", "12.3 s"),
        (1234.5, "tokens_per_second", "1,234 tokens per second"),
        (0.5, "requests", "0.5 requests"),
    ],
)
def test_quantities(value: float, unit: str, text: str) -> None:
    assert quantity(Quantity(value, unit)) == text


def test_members_as_people_say_them() -> None:
    assert member_text({"instance": "pod-1:8000"}) == "pod-1:8000"
    assert member_text({"instance": "node-a:9400", "gpu": "1"}) == "gpu 1, node-a:9400"
    assert member_text({}) == "the fleet"


MIDNIGHT = 1_790_035_200_000  # 2026-09-22T00:00:00Z


def test_a_window_within_a_day_has_one_date() -> None:
    onset = {"findings": (_finding(onset_ms=START + 100_000),)}
    assert "window 2026-09-21 14:13:20 to 14:18:20 UTC" in as_text(_full(**onset))
    assert "Window 2026-09-21 14:13:20 to 14:18:20 UTC." in as_markdown(_full(**onset))
    assert headline(_full(**onset)).endswith("since 14:15:00")


@pytest.mark.parametrize("form", [as_text, as_markdown])
def test_a_window_over_midnight_has_both_dates_and_so_has_each_time(form: Callable[[Diagnosis], str]) -> None:
    told = form(
        _full(
            start_ms=MIDNIGHT - 600_000,
            end_ms=MIDNIGHT + 600_000,
            findings=(_finding(onset_ms=MIDNIGHT - 60_000, ended_ms=MIDNIGHT + 60_000),),
            events=(Event(MIDNIGHT + 1000, "restart", {}, "it restarted"),),
        )
    )
    assert "indow 2026-09-21 23:50:00 to 2026-09-22 00:10:00 UTC" in told
    assert "from 2026-09-21 23:59:00 to 2026-09-22 00:01:00" in " ".join(told.split())
    assert "2026-09-22 00:00:01" in told


def test_a_time_that_no_calendar_has_is_still_text() -> None:
    assert "window" in as_text(_full(start_ms=START, end_ms=10**18))


@pytest.mark.parametrize("form", [as_text, as_markdown, headline])
def test_foreign_words_cannot_steer_the_terminal_or_break_a_line(form: Callable[[Diagnosis], str]) -> None:
    evil = "\x1b[31m\x9b\u2028\n# " + "x" * 5000
    calm = _full(findings=(_finding(member={"instance": "a"}),), sources=(SourceLine("a", "refused", None, "b"),))
    told = form(
        _full(findings=(_finding(member={"instance": evil}),), sources=(SourceLine(evil, "refused", None, evil),))
    )
    assert told == page(told)
    assert "\\x1b" in told
    assert "x" * 600 not in told
    assert [line for line in told.splitlines() if line.startswith("# ")] == []
    if form is as_markdown:
        assert len(told.splitlines()) == len(form(calm).splitlines())


def test_huge_quantities_have_three_digits() -> None:
    for unit in ("ratio", "seconds", "tokens", "tokens_per_second"):
        assert quantity(Quantity(1e308, unit)).startswith("1e+308")
