"""Questions to one device: a number, or why there is none. Nothing that NVML answers is taken unseen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from probes.nvml.faults import NO_ANSWER, FieldState, field_state, said

_ANEW = 60
"""Readings after which a field that was unsupported is asked again: a mode may have been switched (policy)."""
_BLANKS = frozenset((0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF))
"""NVML_VALUE_NOT_AVAILABLE in 32 and 64 bits."""
_COUNT_MOST = 2.0**62
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t in the order of nvmlValueType_t."""


class Reply(NamedTuple):
    """An answer: ``state`` says why ``value`` is None."""

    value: Any
    state: FieldState | None


class Asker:
    """Asks NVML for one device; ``missing`` tells, after a reading, which fields have no number and why."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.missing: dict[str, FieldState] = {}
        self._unsupported: set[object] = set()
        self._readings = 0

    def begin(self) -> None:
        """A reading begins."""
        self.missing = {}
        if self._readings % _ANEW == 0:
            self._unsupported.clear()
        self._readings += 1

    def reply(self, function: str, *args: Any) -> Reply:
        """What a function of NVML answers for the device. Raises ``DeviceLostError`` and ``DriverGoneError``."""
        return self._guarded((function, *args), function, self.handle, *args)

    def plain(self, function: str, *args: Any) -> Reply:
        """As ``reply``, of a function that takes no device."""
        return self._guarded(None, function, *args)

    def ask(self, field: str, function: str, *args: Any) -> Any:
        """As ``reply``; without an answer None, and ``field`` is missing."""
        value, state = self.reply(function, *args)
        if state is not None:
            self.lack(field, state)
        return value

    def number(
        self, field: str, function: str, *args: Any, scale: float = 1.0, least: float = 0.0, most: float = _COUNT_MOST
    ) -> float | None:
        """A function's answer times ``scale``; the bounds are those of the answer itself."""
        value = self.ask(field, function, *args)
        return None if value is None else self.checked(field, value, scale, least, most)

    def checked(
        self, field: str, value: float, scale: float = 1.0, least: float = 0.0, most: float = _COUNT_MOST
    ) -> float | None:
        """A raw value times ``scale`` where it is one; else ``field`` is missing: a blank, or out of range."""
        state = fault(value, least, most)
        if state is not None:
            self.lack(field, state)
            return None
        return value if scale == 1 else value * scale

    def lack(self, field: str, state: FieldState) -> None:
        self.missing.setdefault(field, state)

    def fields(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Reply]:
        """(field id, scope) → answer, in one call for all of them."""
        replies = {key: Reply(None, "unsupported") for key in wanted}
        asked = [key for key in wanted if key not in self._unsupported]
        if not asked:
            return replies
        values, state = self._guarded(None, "nvmlDeviceGetFieldValues", self.handle, asked)
        if state is not None:
            return dict.fromkeys(wanted, Reply(None, state))
        for key, value in zip(asked, values, strict=True):
            code = int(value.nvmlReturn)
            if code:
                replies[key] = self._without(key, field_state(code, f"NVML error {code}"))
            elif value.valueType < len(_MEMBERS):
                replies[key] = Reply(getattr(value.value, _MEMBERS[value.valueType]), None)
            else:
                replies[key] = Reply(None, "failed")
        return replies

    def _guarded(self, key: object, function: str, *args: Any) -> Reply:
        """``key`` is what is not asked again once it is unsupported."""
        if key in self._unsupported:
            return Reply(None, "unsupported")
        called = getattr(self.nvml, function, None)
        if called is None:  # an older nvidia-ml-py
            return self._without(key, "unsupported")
        try:
            return Reply(called(*args), None)
        except self.nvml.NVMLError as error:
            return self._without(key, field_state(int(error.value), said(error)))
        except NO_ANSWER:
            return Reply(None, "failed")
        except self.nvml.NVMLLibraryMismatchError:
            return self._without(key, "unsupported")

    def _without(self, key: object, state: FieldState) -> Reply:
        if state == "unsupported" and key is not None:
            self._unsupported.add(key)
        return Reply(None, state)


def fault(value: float, least: float = 0.0, most: float = _COUNT_MOST) -> FieldState | None:
    """Why a raw value is no measurement; None when it is one."""
    if math.isnan(value) or value in _BLANKS:
        return "blank"
    return None if least <= value <= most else "out_of_range"
