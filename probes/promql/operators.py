"""The element-wise binary operators on float64, as Go computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from probes.columns import Floats, Mask

ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.float_power,
    "atan2": np.arctan2,
}

COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def combine(op: str, left: Floats, right: Floats, return_bool: bool) -> tuple[Floats, Mask | None]:
    """Values of ``left op right`` (any broadcastable shapes), and where a filter keeps them (None: everywhere).

    A comparison without ``bool`` yields the left value where it holds.
    """
    if op in ARITHMETIC:
        made: Floats = ARITHMETIC[op](left, right)
        return made, None
    holds: Mask = COMPARE[op](left, right)
    if return_bool:
        return holds.astype(np.float64), None
    return np.broadcast_to(left, holds.shape), holds


def drops_name(op: str, return_bool: bool, prometheus_2: bool) -> bool:
    """Whether the result has no metric name: all arithmetic, and ``bool``; 2.42 leaves ``atan2`` out."""
    if op == "atan2" and prometheus_2:
        return False
    return op in ARITHMETIC or return_bool
