"""``dataclass`` at a tenth of its price: the standard one compiles six methods a class, half a millisecond each time.

A start makes a hundred of them, most of which never get an instance. Here a method is compiled when it is first
called; until then the signature of ``__init__`` says nothing.
To type checkers and to the functions of ``dataclasses`` (``fields``, ``replace``, ``asdict``) they are dataclasses.
Not for ``order``, ``kw_only`` and ``InitVar``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:
        """As ``dataclasses.dataclass`` with these arguments."""
        return _made(cls, frozen, slots, eq) if cls is not None else lambda found: _made(found, frozen, slots, eq)


_ABSENT = object()
_set = object.__setattr__


def _made(cls: Any, frozen: bool, slots: bool, eq: bool) -> Any:
    own = cls.__dict__
    if own.get("__doc__") is None:
        cls.__doc__ = cls.__name__  # else it is made of the signature, which takes as long as all this
    written = {name for name in ("__repr__", "__eq__") if name in own}
    hashed = own.get("__hash__") is not None
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    _defer(cls, "__init__", lambda: _init(cls, frozen))
    if "__repr__" not in written:
        cls.__repr__ = _repr
    if frozen:
        cls.__setattr__, cls.__delattr__ = _no_set, _no_delete
        if slots:
            cls.__getstate__, cls.__setstate__ = _getstate, _setstate
    if eq and "__eq__" not in written:
        _defer(cls, "__eq__", lambda: _eq(cls))
    if eq and not hashed:
        cls.__hash__ = None
        if frozen:
            _defer(cls, "__hash__", lambda: _hash(cls))
    return cls


def _defer(cls: Any, name: str, make: Callable[[], Callable[..., Any]]) -> None:
    """Stand in for a method until it is first called."""

    def stand_in(self: Any, *args: Any, **named: Any) -> Any:
        made = make()
        made.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, made)
        return made(self, *args, **named)

    setattr(cls, name, stand_in)


def _compiled(name: str, parameters: Sequence[str], body: Sequence[str], known: dict[str, Any]) -> Callable[..., Any]:
    exec(f"def {name}({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"]), known)
    made: Callable[..., Any] = known[name]
    return made


def _init(cls: Any, frozen: bool) -> Callable[..., Any]:
    known: dict[str, Any] = {"_set": _set, "_ABSENT": _ABSENT}
    parameters, body = ["self"], []
    for item in dataclasses.fields(cls):
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
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    return _compiled("__init__", parameters, body, known)


def _eq(cls: Any) -> Callable[..., Any]:
    body = [
        "if other.__class__ is self.__class__:",
        f"    return {_tuple(cls, 'self')} == {_tuple(cls, 'other')}",
        "return NotImplemented",
    ]
    return _compiled("__eq__", ["self", "other"], body, {})


def _hash(cls: Any) -> Callable[..., Any]:
    return _compiled("__hash__", ["self"], [f"return hash({_tuple(cls, 'self')})"], {})


def _tuple(cls: Any, one: str) -> str:
    return "(" + "".join(f"{one}.{item.name}, " for item in dataclasses.fields(cls) if item.compare) + ")"


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
