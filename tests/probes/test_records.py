"""Our ``dataclass`` beside the standard one: whatever can be done with an instance gives the same."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from probes import records

Decorator = Callable[..., Any]


def frozen(decorate: Decorator) -> Any:
    @decorate(frozen=True, slots=True)
    class Point:
        """A point."""

        x: int
        y: float = 1.5
        tags: dict[str, int] = dataclasses.field(default_factory=dict)
        hidden: str = dataclasses.field(default="h", repr=False, compare=False)
        total: float = dataclasses.field(init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

        @property
        def double(self) -> int:
            return 2 * self.x

    return Point


def base_and_leaf(decorate: Decorator) -> tuple[Any, Any]:
    @decorate(frozen=True, slots=True)
    class Base:
        """Without fields."""

    @decorate(frozen=True, slots=True)
    class Leaf(Base):
        only: str

        def __repr__(self) -> str:
            return f"<{self.only}>"

    return Base, Leaf


def mutable(decorate: Decorator) -> Any:
    @decorate(slots=True)
    class Tally:
        count: int = 0
        seen: list[int] = dataclasses.field(default_factory=list)

    return Tally


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    a: int
    b: str = "b"


@records.dataclass(frozen=True, slots=True)
class Ours:
    a: int
    b: str = "b"


BOTH = pytest.mark.parametrize("decorate", [dataclasses.dataclass, records.dataclass], ids=["standard", "ours"])


@BOTH
def test_a_frozen_record(decorate: Decorator) -> None:
    point = frozen(decorate)
    one = point(1, tags={"a": 1})
    assert repr(one).endswith("Point(x=1, y=1.5, tags={'a': 1}, total=2.5)")
    assert one == point(x=1, y=1.5, tags={"a": 1}, hidden="other")
    assert one != point(2, tags={"a": 1})
    assert one != (1, 1.5, {"a": 1})
    assert (one.double, one.total, one.hidden) == (2, 2.5, "h")
    assert dataclasses.replace(one, x=3) == point(3, tags={"a": 1})
    assert [item.name for item in dataclasses.fields(one)] == ["x", "y", "tags", "hidden", "total"]
    assert dataclasses.asdict(one) == {"x": 1, "y": 1.5, "tags": {"a": 1}, "hidden": "h", "total": 2.5}
    assert point(1).tags is not point(1).tags
    assert not hasattr(one, "__dict__")
    assert list(inspect.signature(point).parameters) == ["x", "y", "tags", "hidden"]
    match one:
        case point(x, y):
            assert (x, y) == (1, 1.5)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del one.x
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'x'"):
        point()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'z'"):
        point(1, z=2)


@BOTH
def test_records_that_inherit(decorate: Decorator) -> None:
    base, leaf = base_and_leaf(decorate)
    assert base() == base()
    assert hash(base()) == hash(())
    assert (leaf("a") == leaf("a"), leaf("a") == leaf("b"), leaf("a") == base()) == (True, False, False)
    assert len({leaf("a"), leaf("a"), leaf("b")}) == 2
    assert hash(leaf("a")) == hash(("a",))
    assert repr(leaf("a")) == "<a>"
    assert isinstance(leaf("a"), base)


@BOTH
def test_a_record_that_changes(decorate: Decorator) -> None:
    tally = mutable(decorate)
    one, other = tally(), tally()
    one.count += 1
    one.seen.append(5)
    assert (one.count, one.seen, other.count, other.seen) == (1, [5], 0, [])
    assert one != other
    assert one == tally(1, [5])
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


@pytest.mark.parametrize("made", [Theirs, Ours])
def test_copies_and_pickles(made: Any) -> None:
    one = made(1)
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one
        assert hash(other) == hash(one) == hash((1, "b"))


def test_two_kinds_with_the_same_values_are_not_equal() -> None:
    assert Ours(1) != Theirs(1)
