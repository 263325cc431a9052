"""Label sets are interned: equal means the same object, in every thread, and churn leaves nothing behind."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from probes import labels as module
from probes.labels import Labels


def test_order_and_empty_values_do_not_matter() -> None:
    one = Labels.of([("b", "2"), ("a", "1"), ("c", "")], name="x")
    assert one is Labels.of({"__name__": "x", "a": "1", "b": "2"})
    assert str(one) == 'x{a="1",b="2"}'


def test_a_value_is_escaped_when_shown() -> None:
    assert str(Labels.of({"a": 'say "no"\n\\'})) == '{a="say \\"no\\"\\n\\\\"}'


def test_threads_get_the_same_object() -> None:
    workers = 8
    gate = Barrier(workers)

    def make(_: int) -> list[Labels]:
        gate.wait()
        return [Labels.of({"thread": "same", "n": str(n)}) for n in range(2000)]

    with ThreadPoolExecutor(workers) as pool:
        first, *others = pool.map(make, range(workers))
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


def test_a_pickled_set_comes_back_as_the_same_object() -> None:
    one = Labels.of({"a": "1"}, name="x")
    assert pickle.loads(pickle.dumps(one)) is one


def test_churn_leaves_nothing_behind() -> None:
    gc.collect()
    before = len(module._interned)
    for n in range(10_000):
        Labels.of({"pod": f"pod-{n}"})
    gc.collect()
    assert len(module._interned) <= before + 10


def test_subsets() -> None:
    one = Labels.of({"instance": "a:1", "engine": "0"}, name="kv:x")
    assert one.only(["instance"]) is Labels.of({"instance": "a:1"})
    assert one.unnamed() is Labels.of({"instance": "a:1", "engine": "0"})
    assert one.replace(engine="") is Labels.of({"instance": "a:1"}, name="kv:x")
    assert one.covers({"engine": "0"})
    assert not one.covers({"engine": "1"})


def test_a_set_under_a_name_is_the_set_made_at_once() -> None:
    for labels in ({}, {"instance": "a:1"}, {"Zone": "z", "instance": "a:1"}, {"_a": "1", "__z": "2"}):
        named = Labels.of(labels).named("x")
        assert named is Labels.of(labels, name="x")
        assert (named.name, named.unnamed(), named.get("instance")) == (
            "x",
            Labels.of(labels),
            labels.get("instance", ""),
        )


def test_a_set_lives_as_long_as_somebody_has_it() -> None:
    kept = Labels.of({"kept": "1"}).named("x")
    gc.collect()
    assert Labels.of({"kept": "1"}, name="x") is kept
    assert Labels.of({"kept": "1"}) is kept.unnamed()
