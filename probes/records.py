"""``dataclass`` at a tenth of its price: the standard one compiles six methods a class, half a millisecond each time.

A start makes a hundred of them, most of which never get an instance. Here ``__init__`` is compiled when the first
instance is made (until then its signature says nothing), and the other methods are written once for all classes.
To type checkers and to the functions of ``dataclasses`` (``fields``, ``replace``, ``asdict``) they are dataclasses.
Not for ``order``, ``kw_only`` and ``InitVar``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:
        """As ``dataclasses.dataclass`` with these arguments."""
        return _made(cls, frozen, slots, eq) if cls is not None else lambda found: _made(found, frozen, slots, eq)


_ABSENT = object()
_set = object.__setattr__
_Fields = Sequence["dataclasses.Field[Any]"]


def _made(cls: Any, frozen: bool, slots: bool, eq: bool) -> Any:
    own = cls.__dict__
    if own.get("__doc__") is None:
        cls.__doc__ = cls.__name__  # else it is made of the signature, which takes as long as all this
    written = {name for name in ("__repr__", "__eq__") if name in own}
    hashed = own.get("__hash__") is not None
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(cls)
    cls.__init__ = _first_init(cls, fields, frozen)
    if "__repr__" not in written:
        cls.__repr__ = _repr
    values = _values_of([item.name for item in fields if item.compare])
    if eq and "__eq__" not in written:
        cls.__eq__ = _eq(values)
    if frozen:
        cls.__setattr__, cls.__delattr__ = _no_set, _no_delete
        if slots:
            cls.__getstate__, cls.__setstate__ = _getstate, _setstate
    if eq and not hashed:
        cls.__hash__ = _hash(values) if frozen else None
    return cls


def _first_init(cls: Any, fields: _Fields, frozen: bool) -> Callable[..., None]:
    """Compiles the real one, and makes way for it."""

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807 - it stands for the real one
        cls.__init__ = made = _compiled(cls, fields, frozen)
        made(self, *args, **named)

    return __init__


def _compiled(cls: Any, fields: _Fields, frozen: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": _set, "_ABSENT": _ABSENT}
    parameters, body = ["self"], []
    for item in fields:
        value = name = item.name
        if item.default is not dataclasses.MISSING:
            known[f"_of_{name}"] = item.default
            given = f"{name}=_of_{name}"
        elif item.default_factory is not dataclasses.MISSING:
            known[f"_of_{name}"] = item.default_factory
            given, value = f"{name}=_ABSENT", f"_of_{name}() if {name} is _ABSENT else {name}"
        else:
            given = name
        if item.init:
            parameters.append(given)
        elif given == name:
            continue  # set by __post_init__
        else:
            value = f"_of_{name}" + "()" * (item.default is dataclasses.MISSING)
        body.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n" + ("\n".join(body) or " pass"), known)
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda one: ()
    only = attrgetter(names[0])
    return lambda one: (only(one),)


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], bool]:
    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _repr(self: Any) -> str:
    shown = [f"{item.name}={getattr(self, item.name)!r}" for item in dataclasses.fields(self) if item.repr]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _no_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in dataclasses.fields(self)]


def _setstate(self: Any, state: Sequence[Any]) -> None:
    for item, value in zip(dataclasses.fields(self), state, strict=True):
        _set(self, item.name, value)
