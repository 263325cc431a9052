"""Counters that begin again: at their width (they go on), or because the driver was loaded anew (a reset)."""

from __future__ import annotations

from collections.abc import Mapping

from probes.rdma.names import WRAPS

_WIDTH = 1 << 32
_NEAR = _WIDTH // 4


class Odometer:
    """One port's 32-bit counters, carried on past their end.

    PromQL takes any fall of a counter for a reset, and would lose up to 2^32 at each turn. A fall is taken for a turn
    only if it leads from the last quarter of the width to the first, and if no wider counter of the port fell with it.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._carry: dict[str, int] = {}

    def carried(self, values: Mapping[str, int]) -> dict[str, int]:
        """The values as they would read on wider counters."""
        fell = {name for name, value in values.items() if value < self._last.get(name, 0)}
        turned = {name for name in fell if self._turns(name, values[name])}
        if fell == turned:
            for name in turned:
                self._carry[name] = self._carry.get(name, 0) + _WIDTH
        else:
            self._carry.clear()
        self._last = dict(values)
        return {name: value + self._carry.get(name, 0) for name, value in values.items()}

    def _turns(self, name: str, value: int) -> bool:
        return name in WRAPS and _WIDTH - _NEAR <= self._last[name] < _WIDTH and value < _NEAR
