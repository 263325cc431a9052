"""The median; NumPy's own loads its masked arrays on first use: 20 ms and 4 MB, of which a screen has no use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def median(values: NDArray[np.float64]) -> float:
    """The median of finite numbers [N]; NaN of none."""
    size = values.size
    if not size:
        return float("nan")
    ordered = np.sort(values, axis=None)
    # Halved before they are added: the sum of two huge ones would overflow.
    return float(ordered[(size - 1) // 2] / 2 + ordered[size // 2] / 2)
