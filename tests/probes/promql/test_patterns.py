"""Patterns that would be tried for ages are refused; those that people write are not."""

from __future__ import annotations

import numpy as np
import pytest

from probes.labels import Labels
from probes.promql.engine import Engine
from probes.promql.errors import PromQLError
from probes.promql.parse import parse
from probes.promql.patterns import LONGEST_PATTERN, fault
from probes.series import SeriesStore

EXPLODING = [
    "(kv|vllm|[a-z:_]*)*x",
    "((a*)*)*b",
    "(a+)+",
    "(a|a)*x",
    "(a|aa)*x",
    "(a?a?)*x",
    "(.*a){20}x",
    "(a?){30}a{30}",
    "a?" * 30 + "a" * 30,
    "(a?)" * 30 + "a" * 30,
    "(|a)" * 30 + "x",
    "aa?" * 30 + "x",
    ".*.*.*.*x",
    "(?i:ab|Ac)*x",
    "x" * (LONGEST_PATTERN + 1),
]
USUAL = [
    "",
    ".*",
    ".+",
    "(.*)",
    "a|b",
    "^a$",
    ".*foo.*bar.*",
    ".*.*",
    "kv:.+|vllm:.+",
    "(foo|bar)+",
    r"(\d{1,3}\.){3}\d{1,3}",
    r"(.+):(\d+)",
    r"([^:]+):(\d+)",
    "(?i)abc.*",
    "5..",
    "pod-[0-9]+|x.*",
    "vllm:(e2e|ttft|tpot)_.*_(sum|count)?",
    r"[a-z]+-[0-9]+-[a-z0-9]+",
    "ä+|[^é]*",
]


@pytest.mark.parametrize("pattern", EXPLODING)
def test_a_pattern_that_explodes_is_refused(pattern: str) -> None:
    assert fault(pattern)


@pytest.mark.parametrize("pattern", USUAL)
def test_a_usual_pattern_is_not(pattern: str) -> None:
    assert fault(pattern) is None


def test_the_error_names_pattern_label_and_place() -> None:
    with pytest.raises(PromQLError, match=r"pattern '\(a\*\)\*' of label 'job' repeats a part") as caught:
        parse('up{job=~"(a*)*"}')
    assert caught.value.column == 4


def test_label_replace_refuses_it_too() -> None:
    store = SeriesStore()
    store.frame("x").load(np.array([0], dtype=np.int64), [Labels.of({"a": "b" * 50}, name="m")], np.zeros((1, 1)))
    with pytest.raises(PromQLError, match="in label_replace"):
        Engine(store).instant(parse('label_replace(m,"x","$1","a","((b*)*)*c")'), 0)
