"""Three-valued logic over time: what holds, since when, and whether it still does."""

from __future__ import annotations

import pytest

from playbooks.bench import Answer
from playbooks.episode import Episode, conjunction, episodes, first_of_last_run, hold_steps, trailing
from tests.playbooks.stub import answers


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("y", "y", "y"), ("y", "n", "n"), ("y", "?", "?"),
        ("n", "y", "n"), ("n", "n", "n"), ("n", "?", "n"),
        ("?", "y", "?"), ("?", "n", "n"), ("?", "?", "?"),
    ],
)  # fmt: skip
def test_false_beats_unknown_beats_true(one: str, other: str, both: str) -> None:
    assert conjunction([answers(one), answers(other)]).tolist() == answers(both).tolist()


def test_a_conjunction_is_taken_step_by_step() -> None:
    assert conjunction([answers("yy??"), answers("yn?n"), answers("yyyy")]).tolist() == answers("yn?n").tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yyyy", Answer.TRUE),
        ("nyyy", Answer.TRUE),  # three of four, and it still holds
        ("yynn", Answer.FALSE),
        ("yyyyyyyyyynnn", Answer.FALSE),  # mostly so, but no longer
        ("yyyyyyyyyynny", Answer.TRUE),  # a passing gap
        ("nnnn", Answer.FALSE),
        ("????", Answer.UNKNOWN),
        ("yy??", Answer.UNKNOWN),  # not enough to say so, and nothing against it
        ("nn??", Answer.FALSE),
        ("yyy?", Answer.TRUE),
    ],
)
def test_the_trailing_answer(text: str, said: Answer) -> None:
    assert trailing(answers(text), len(text)) is said


def test_only_the_last_steps_count() -> None:
    assert trailing(answers("nnnnnnyyy"), 3) is Answer.TRUE
    assert trailing(answers("nnnnnnyyy"), 9) is Answer.FALSE
    assert trailing(answers("yyyyyy???"), 3) is Answer.UNKNOWN


def test_one_sample_cannot_turn_a_verdict() -> None:
    assert trailing(answers("nnnnnnnnnnnny"), 13) is Answer.FALSE
    assert trailing(answers("yyyyyyyyyyyyn"), 13) is Answer.TRUE


@pytest.mark.parametrize(
    ("hold_ms", "step_ms", "steps", "need"),
    [(60_000, 5_000, 49, 13), (60_000, 5_000, 4, 4), (1_000, 5_000, 49, 1), (60_000, 90_000, 10, 1)],
)
def test_how_many_steps_a_hold_takes(hold_ms: int, step_ms: int, steps: int, need: int) -> None:
    assert hold_steps(hold_ms, step_ms, steps) == need


@pytest.mark.parametrize(
    ("text", "need", "found"),
    [
        ("nnyyynnn", 3, [Episode(2, 4, False)]),
        ("nnyyynnn", 4, []),
        ("nnyyynn", 3, [Episode(2, 4, True)]),  # two steps of noise at the end do not end it
        ("nyynyyn", 5, [Episode(1, 5, True)]),  # one step of noise is bridged
        ("nyynnyyn", 2, [Episode(1, 2, False), Episode(5, 6, True)]),  # two are not
        ("nny?yyy", 4, [Episode(2, 6, True)]),  # a missed scrape is bridged, too
        ("yyyy", 2, [Episode(0, 3, True)]),
        ("nnnn", 1, []),
        ("????", 1, []),
        ("nynynyn", 5, [Episode(1, 5, True)]),
    ],
)
def test_stretches_in_which_it_held(text: str, need: int, found: list[Episode]) -> None:
    assert episodes(answers(text), need) == found


def test_an_episode_counts_its_steps() -> None:
    assert Episode(2, 4, False).steps == 3


@pytest.mark.parametrize(
    ("text", "before", "first"),
    [
        ("nnnyyyy", 6, 3),
        ("nyynnyy", 6, 1),
        ("yynnnyy", 6, 5),
        ("yyyyyyy", 6, 0),
        ("nny??yy", 6, 2),
        ("yynnnyynn", 6, 5),
    ],
)
def test_the_run_under_way_began_there(text: str, before: int, first: int) -> None:
    assert first_of_last_run(answers(text), before) == first
