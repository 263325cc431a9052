"""One cause, one member: held, refuted, undecided, and how strongly."""

from __future__ import annotations

import pytest

from playbooks.decide import fill
from playbooks.verdict import Verdict
from tests.playbooks.stub import GRID, NAN, OTHER, POD, START_MS, after, ask, decide, during, pattern


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else (ms - START_MS) / 1000


@pytest.mark.parametrize("basis", ["physical", "vendor", "paper", "measured"])
def test_one_threshold_with_an_origin_makes_it_likely(basis: str) -> None:
    tests = [ask("a", basis), ask("b", "policy")]
    assert decide(tests, pattern("a", "b"), {"a": {POD: 2.0}, "b": {POD: 2.0}}).verdict is Verdict.LIKELY


def test_policy_alone_is_a_suspicion() -> None:
    tests = [ask("a", "policy"), ask("b", "policy")]
    held = {"a": {POD: 2.0}, "b": {POD: 2.0}}
    assert decide(tests, pattern("a", "b"), held).verdict is Verdict.SUSPECTED


def test_two_kinds_that_agree_confirm() -> None:
    tests = [ask("a"), ask("b", "policy", kind="trace")]
    held = {"a": {POD: 2.0}, "b": {POD: 2.0}}
    assert decide(tests, pattern("a", supports=("b",)), held).verdict is Verdict.CONFIRMED
    silent = {"a": {POD: 2.0}, "b": {POD: 0.0}}
    assert decide(tests, pattern("a", supports=("b",)), silent).verdict is Verdict.LIKELY


@pytest.mark.parametrize(("at_most", "verdict"), [("likely", Verdict.LIKELY), ("suspected", Verdict.SUSPECTED)])
def test_a_pattern_may_cap_its_verdict(at_most: str, verdict: Verdict) -> None:
    tests = [ask("a"), ask("b", kind="host")]
    held = {"a": {POD: 2.0}, "b": {POD: 2.0}}
    assert decide(tests, pattern("a", "b", at_most=at_most), held).verdict is verdict


def test_a_cap_never_lifts_a_suspicion() -> None:
    assert decide([ask("a", "policy")], pattern("a", at_most="likely"), {"a": {POD: 2.0}}).verdict is Verdict.SUSPECTED


def test_evidence_says_what_was_asked_and_what_came_back() -> None:
    supported = [ask("a"), ask("b", "policy"), ask("c", "policy")]
    found = decide(supported, pattern("a", supports=("b", "c")), {"a": {POD: 2.5}, "b": {POD: 7.0}, "c": {POD: 0.0}})
    assert [(e.test, e.value, e.op, e.threshold, e.basis) for e in found.evidence] == [
        ("a", 2.5, ">=", 1.0, "physical"),
        ("b", 7.0, ">=", 1.0, "policy"),
    ]
    assert found.evidence[0].says == "a is 2.5"
    assert found.evidence[0].window_s == 60


def test_a_required_test_that_is_false_decides_although_another_is_dark() -> None:
    ruled = decide([ask("a"), ask("b")], pattern("a", "b"), {"a": {POD: 0.0}})
    assert ruled.verdict is Verdict.NOT_APPLICABLE
    assert [r.by for r in ruled.refuted_by] == ["a"]
    assert "a is 0.0" in ruled.refuted_by[0].says


def test_a_required_test_without_data_makes_it_unknown_and_says_how_to_see() -> None:
    dark = ask("kv:b", enable="start it with --b", needs="a peer under load")
    ruled = decide([ask("a"), dark], pattern("a", "kv:b"), {"a": {POD: 2.0}})
    assert ruled.verdict is Verdict.UNKNOWN
    assert ruled.missing == ("kv:b", "a peer under load")
    assert ruled.enable == "start it with --b"
    assert not ruled.evidence


def test_unknown_always_names_something_missing() -> None:
    ruled = decide([ask("a")], pattern("a"), {"a": {POD: NAN}})
    assert ruled.verdict is Verdict.UNKNOWN
    assert ruled.missing == ("samples of a in this window",)


def test_another_member_is_not_evidence() -> None:
    assert decide([ask("a")], pattern("a"), {"a": {OTHER: 2.0}}).verdict is Verdict.UNKNOWN


def test_a_refutation_that_holds_means_the_look_alike() -> None:
    tests = [ask("a"), ask("r")]
    ruled = decide(tests, pattern("a", refutes={"r": "traffic-surge"}), {"a": {POD: 2.0}, "r": {POD: 3.0}})
    assert ruled.verdict is Verdict.REFUTED
    assert [(r.cause, r.by) for r in ruled.refuted_by] == [("traffic-surge", "r")]


def test_a_refutation_that_was_asked_and_does_not_hold_is_recorded() -> None:
    tests = [ask("a"), ask("r"), ask("dark")]
    one = pattern("a", refutes={"r": "traffic-surge", "dark": "wrong-rail"})
    ruled = decide(tests, one, {"a": {POD: 2.0}, "r": {POD: 0.0}})
    assert ruled.verdict is Verdict.LIKELY
    assert [(r.cause, r.by) for r in ruled.ruled_out] == [("traffic-surge", "r")], (
        "what cannot be asked rules nothing out"
    )


def test_a_refutation_must_hold_and_not_flicker() -> None:
    tests = [ask("a"), ask("r")]
    one = pattern("a", refutes={"r": "traffic-surge"})
    assert decide(tests, one, {"a": {POD: 2.0}, "r": {POD: during(295, 300)}}).verdict is Verdict.LIKELY


def test_it_must_have_held_for_as_long_as_the_pattern_says() -> None:
    series = {"a": {POD: after(270)}}
    assert decide([ask("a")], pattern("a"), series).verdict is Verdict.NOT_APPLICABLE
    assert decide([ask("a")], pattern("a", hold_ms=30_000), series).verdict is Verdict.LIKELY


@pytest.mark.parametrize("gap", [(None, None), (200, 205)])
def test_the_onset_is_the_first_step_of_the_episode(gap: tuple[float | None, float | None]) -> None:
    first, last = gap

    def curve(t: float) -> float:
        noise = first is not None and last is not None and first <= t <= last
        return 0.0 if noise or t < 150 else 1.0

    ruled = decide([ask("a")], pattern("a"), {"a": {POD: curve}})
    assert _seconds(ruled.onset_ms) == 150
    assert ruled.ended_ms is None


def test_the_onset_is_when_the_last_of_the_tests_began_to_hold() -> None:
    ruled = decide([ask("a"), ask("b")], pattern("a", "b"), {"a": {POD: after(100)}, "b": {POD: after(180)}})
    assert _seconds(ruled.onset_ms) == 180


def test_what_held_all_along_does_not_date_a_shift() -> None:
    """A mean over a window crosses its line within that window: half of it, lacking better."""
    tests = [ask("a"), ask("s", relative_to="baseline", threshold=1.5)]
    ruled = decide(tests, pattern("a", "s"), {"a": {POD: 2.0}, "s": {POD: after(200, 2.0, 1.0)}})
    assert _seconds(ruled.onset_ms) == 170
    begun = decide(tests, pattern("a", "s"), {"a": {POD: after(190)}, "s": {POD: after(200, 2.0, 1.0)}})
    assert _seconds(begun.onset_ms) == 190, "what began in between dates it better"


def test_no_onset_where_it_held_before_the_window() -> None:
    assert decide([ask("a")], pattern("a"), {"a": {POD: 2.0}}).onset_ms is None


def test_what_is_over_is_no_finding() -> None:
    ruled = decide([ask("a")], pattern("a"), {"a": {POD: during(100, 200)}})
    assert ruled.verdict is Verdict.NOT_APPLICABLE


def test_unless_the_pattern_counts_past_episodes() -> None:
    ruled = decide([ask("a")], pattern("a", past=True), {"a": {POD: during(100, 200)}})
    assert ruled.verdict is Verdict.LIKELY
    assert _seconds(ruled.onset_ms) == 100
    assert _seconds(ruled.ended_ms) == 200
    short = decide([ask("a")], pattern("a", past=True), {"a": {POD: during(100, 130)}})
    assert short.verdict is Verdict.NOT_APPLICABLE


def test_a_past_episode_is_refuted_by_what_was_true_then() -> None:
    tests = [ask("a"), ask("r")]
    one = pattern("a", past=True, refutes={"r": "traffic-surge"})
    assert decide(tests, one, {"a": {POD: during(100, 200)}, "r": {POD: during(90, 210)}}).verdict is Verdict.REFUTED
    assert decide(tests, one, {"a": {POD: during(100, 200)}, "r": {POD: after(230)}}).verdict is Verdict.LIKELY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{value:.1%} of {threshold:.0f}", "51.2% of 3"),
        ("{value}", "0.512"),
        ("{value:nonsense}", "0.512"),
        ("{other} {value.real} {0}", "{other} {value.real} {0}"),
    ],
)
def test_sentences_take_a_value_and_a_threshold_and_look_up_nothing_else(text: str, said: str) -> None:
    assert fill(text, 0.512, 3.0) == said


def test_the_grid_of_these_tests_has_a_step_a_scrape() -> None:
    assert GRID.step_ms == GRID.interval_ms
