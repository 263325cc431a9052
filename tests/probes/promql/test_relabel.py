"""``label_replace`` and ``label_join`` asked again and again: the same labels once made, new series all the same."""

from __future__ import annotations

import numpy as np
import pytest

from probes.labels import Labels
from probes.promql import relabel
from probes.promql.errors import PromQLError
from probes.promql.value import Vector
from probes.series import SeriesStore
from probes.view import View

AT_MS = 1_700_000_000_000
ASKED = 'label_replace(up, "host", "$1", "instance", "(.*):.*")'
JOINED = 'label_join(up, "place", "/", "job", "instance")'


def store_of(*instances: str) -> SeriesStore:
    store = SeriesStore()
    add(store, AT_MS, *instances)
    return store


def add(store: SeriesStore, at_ms: int, *instances: str) -> None:
    frame = store.frame("x")
    rows = [frame.row(Labels.of({"instance": one, "job": "j"}, name="up")) for one in instances]
    frame.append(at_ms, np.array(rows), np.arange(len(rows), dtype=np.float64))


def values(view: View, text: str, label: str, at_ms: int = AT_MS) -> dict[str, float]:
    found = view.instant(text, at_ms)
    assert isinstance(found, Vector)
    return {one.get(label): float(v) for one, v in zip(found.labels, found.values[:, 0], strict=True)}


def test_the_labels_are_rewritten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View(store_of("a:1", "b:2"))
    first = values(view, ASKED, "host"), values(view, JOINED, "place")
    assert first == ({"a": 0, "b": 1}, {"j/a:1": 0, "j/b:2": 1})

    def refuse(*_: object) -> None:
        raise AssertionError("rewritten again")

    monkeypatch.setattr(relabel, "_rewrite", refuse)
    assert (values(view, ASKED, "host"), values(view, JOINED, "place")) == first


def test_every_change_of_labels_is_its_own() -> None:
    view = View(store_of("a:1", "b:2"))
    assert values(view, ASKED, "host") == {"a": 0, "b": 1}
    assert values(view, ASKED.replace('"$1"', '"x$1"'), "host") == {"xa": 0, "xb": 1}
    assert values(view, ASKED.replace("(.*):.*", "(a):.*"), "host") == {"a": 0, "": 1}
    assert values(view, ASKED.replace('"host"', '"other"'), "other") == {"a": 0, "b": 1}
    assert values(view, JOINED.replace('"/"', '"-"'), "place") == {"j-a:1": 0, "j-b:2": 1}


def test_series_that_come_later_are_rewritten_too() -> None:
    store = store_of("a:1")
    view = View(store)
    assert values(view, ASKED, "host") == {"a": 0}
    add(store, AT_MS + 1000, "a:1", "c:3")
    assert values(view, ASKED, "host", AT_MS + 1000) == {"a": 0, "c": 1}


def test_two_series_made_one_are_refused_each_time() -> None:
    view = View(store_of("a:1", "b:2"))
    for _ in range(2):
        with pytest.raises(PromQLError, match="same labelset"):
            view.instant('label_replace(up, "instance", "x", "", "")', AT_MS)
