"""How a step's time grows with the length of the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

WORTH = 0.25
"""A term counts when it makes this share of the time at the longest sequence (policy)."""


@dataclass(frozen=True, slots=True)
class Growth:
    """`fixed + per_token · n + per_pair · n²` seconds at n tokens, and what they make at the longest."""

    fixed: float
    per_token: float
    per_pair: float
    longest: int

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the time at the longest sequence: fixed, linear, quadratic."""
        terms = (self.fixed, self.per_token * self.longest, self.per_pair * self.longest**2)
        whole = sum(terms)
        return (terms[0] / whole, terms[1] / whole, terms[2] / whole)

    @property
    def kind(self) -> str:
        """`quadratic`, `linear` or `constant`: the highest term that counts."""
        _, linear, quadratic = self.shares
        return "quadratic" if quadratic >= WORTH else "linear" if linear + quadratic >= WORTH else "constant"


def growth(lengths: Sequence[int], seconds: Sequence[float]) -> Growth:
    """The fit of least relative error without negative terms; at least three lengths.

    Least squares over every choice of terms (Lawson and Hanson, *Solving Least Squares Problems*, 1974, ch. 23, have
    the general method; with three terms all seven choices are tried), each point weighed by its own time, so that the
    short lengths count as much as the long ones.
    """
    n = np.asarray(lengths, np.float64)
    weights = 1 / np.asarray(seconds, np.float64)
    scale = np.array([1.0, n.max(), n.max() ** 2])
    columns = np.stack([np.ones_like(n), n, n**2], axis=1) / scale * weights[:, None]
    best, least = np.zeros(3), np.inf
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            terms, *_ = np.linalg.lstsq(columns[:, chosen], np.ones(len(n)), rcond=None)
            error = float(np.sum((columns[:, chosen] @ terms - 1) ** 2))
            if terms.min() >= 0 and error < least:
                best, least = np.zeros(3), error
                best[list(chosen)] = terms
    fixed, per_token, per_pair = (best / scale).tolist()
    return Growth(fixed, per_token, per_pair, int(n.max()))
