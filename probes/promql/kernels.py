"""Functions of one range window, vectorised over windows and series (sources: Prometheus promql/functions.go)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probes.columns import Floats, Times
from probes.promql.windows import Kernel, Window


def extrapolated(counter: bool, per_second: bool, prometheus_2: bool) -> Kernel:
    """``rate`` (counter, per second), ``increase`` (counter) or ``delta``.

    The change between the first and last sample, counter resets undone, extrapolated to the window's ends
    where a sample lies within 1.1 average intervals of them, else by half an interval; a counter is not
    extrapolated below zero. Prometheus 2.42 looks at the zero point before the threshold, 3.x after it.
    """

    def kernel(w: Window) -> Floats:
        first, last = w.v[0], w.v[-1]
        result = last - first
        if counter:
            result = _undo_resets(w.v, result)
        sampled = (w.t[-1] - w.t[0]) / 1000
        average = sampled / (w.v.shape[0] - 1)
        to_start, to_end = (w.t[0] - w.start) / 1000, (w.end - w.t[-1]) / 1000
        threshold = average * 1.1
        if not prometheus_2:
            to_start = np.where(to_start >= threshold, average / 2, to_start)
        if counter:
            rising = (result > 0) & (first >= 0)
            to_zero = np.where(rising, sampled * (first / np.where(rising, result, 1)), np.inf)
            to_start = np.where(to_zero < to_start, to_zero, to_start)
        if prometheus_2:
            to_start = np.where(to_start < threshold, to_start, average / 2)
        reach = sampled + to_start + np.where(to_end < threshold, to_end, average / 2)
        factor = reach / sampled
        if per_second:
            factor = factor / ((w.end - w.start) / 1000)
        out: Floats = result * factor
        return out

    return kernel


def _undo_resets(v: Floats, result: Floats) -> Floats:
    drops = v[1:] < v[:-1]
    if not drops.any():
        return result
    undone = result
    for i in np.flatnonzero(drops.reshape(drops.shape[0], -1).any(axis=1)).tolist():
        undone = np.asarray(undone + np.where(drops[i], v[i], 0.0), dtype=np.float64)
    return undone


def last_two(per_second: bool) -> Kernel:
    """``irate`` (a counter, per second) or ``idelta``: the last two samples only."""

    def kernel(w: Window) -> Floats:
        before, last = w.v[-2], w.v[-1]
        if not per_second:
            return np.asarray(last - before)
        change = np.where(last < before, last, last - before)
        out: Floats = change / ((w.t[-1] - w.t[-2]) / 1000)
        return out

    return kernel


def changes(w: Window) -> Floats:
    before, after = w.v[:-1], w.v[1:]
    moved = (after != before) & ~(np.isnan(after) & np.isnan(before))
    return np.asarray(moved.sum(axis=0), dtype=np.float64)


def resets(w: Window) -> Floats:
    return np.asarray((w.v[1:] < w.v[:-1]).sum(axis=0), dtype=np.float64)


def kahan_add(term: Floats, total: Floats, carry: Floats) -> tuple[Floats, Floats]:
    """One step of compensated summation in Neumaier's form; answers (total, carry)."""
    grown = total + term
    kept = np.where(np.abs(total) >= np.abs(term), (total - grown) + term, (term - grown) + total)
    return grown, carry + kept


def kahan_sum(v: Floats) -> Floats:
    """Compensated sum along the first axis; an infinite total has no correction."""
    total, carry = _kahan(v)
    out: Floats = np.where(np.isinf(total), total, total + carry)
    return out


def _kahan(v: Floats) -> tuple[Floats, Floats]:
    total = np.zeros(v.shape[1:])
    carry = np.zeros(v.shape[1:])
    for row in v:
        total, carry = kahan_add(row, total, carry)
    return total, carry


def average(prometheus_2: bool) -> Kernel:
    """``avg_over_time``: 2.x keeps a running mean, 3.x divides the sum unless that overflows."""

    def running(w: Window) -> Floats:
        mean, carry = np.zeros(w.v.shape[1:]), np.zeros(w.v.shape[1:])
        for count, row in enumerate(w.v, start=1):
            grown, kept = kahan_add(row / count - mean / count, mean, carry)
            endless = np.isinf(mean)
            stays = endless & np.where(np.isinf(row), (mean > 0) == (row > 0), ~np.isnan(row))
            mean, carry = np.where(stays, mean, grown), np.where(stays, carry, kept)
        out: Floats = np.where(np.isinf(mean), mean, mean + carry)
        return out

    def direct(w: Window) -> Floats:
        total = kahan_sum(w.v)
        out: Floats = total / w.v.shape[0]
        endless = np.isinf(total)
        return np.where(endless, running(w), out) if endless.any() else out

    return running if prometheus_2 else direct


def variance(w: Window) -> Floats:
    """``stdvar_over_time``: Welford's method with compensated sums."""
    shape = w.v.shape[1:]
    mean, mean_carry, squares, carry = (np.zeros(shape) for _ in range(4))
    for count, row in enumerate(w.v, start=1):
        delta = row - (mean + mean_carry)
        mean, mean_carry = kahan_add(delta / count, mean, mean_carry)
        squares, carry = kahan_add(delta * (row - (mean + mean_carry)), squares, carry)
    out: Floats = (squares + carry) / w.v.shape[0]
    return out


def deviation(w: Window) -> Floats:
    return np.sqrt(variance(w))


def regression(v: Floats, t: Times, origin: Times) -> tuple[Floats, Floats]:
    """Least squares over seconds since ``origin``: (slope, intercept). A constant series has slope 0."""
    n = float(v.shape[0])
    x = (t - origin) / 1000
    sum_x, sum_y = _total(np.broadcast_to(x, v.shape)), _total(v)
    sum_xy, sum_x2 = _total(x * v), _total(np.broadcast_to(x * x, v.shape))
    slope = (sum_xy - sum_x * sum_y / n) / (sum_x2 - sum_x * sum_x / n)
    intercept = sum_y / n - slope * sum_x / n
    flat = (v == v[0]).all(axis=0)
    endless = flat & np.isinf(v[0])
    slope = np.where(endless, np.nan, np.where(flat, 0.0, slope))
    intercept = np.where(endless, np.nan, np.where(flat, v[0], intercept))
    return slope, intercept


def _total(v: Floats) -> Floats:
    total, carry = _kahan(v)
    return total + carry


def derivative(w: Window) -> Floats:
    return regression(w.v, w.t, w.t[0])[0]


def predict_linear(w: Window) -> Floats:
    assert w.parameter is not None
    slope, intercept = regression(w.v, w.t, w.at)
    out: Floats = slope * w.parameter + intercept
    return out


def smallest(w: Window) -> Floats:
    out: Floats = np.fmin.reduce(w.v, axis=0)
    return out


def largest(w: Window) -> Floats:
    out: Floats = np.fmax.reduce(w.v, axis=0)
    return out


def quantile(q: Floats, v: Floats) -> Floats:
    """The ``q`` quantile along the first axis of ``v`` [n, …], linear between ranks; NaN sorts first.

    q below 0 is -Inf, above 1 +Inf, NaN is NaN. ``q`` broadcasts over the trailing axes.
    """
    n = v.shape[0]
    q = np.broadcast_to(q, v.shape[1:])
    ordered = np.sort(v, axis=0)
    nans = np.isnan(v).sum(axis=0)
    rank = np.where((q >= 0) & (q <= 1), q, 0.0) * (n - 1)
    lower = np.floor(rank)
    weight = rank - lower
    upper = np.minimum(n - 1, lower + 1)

    def at(index: Floats) -> Floats:
        place = index.astype(np.intp) - nans
        value = np.take_along_axis(ordered, np.maximum(place, 0)[None, ...], axis=0)[0]
        picked: Floats = np.where(place < 0, np.nan, value)
        return picked

    out: Floats = at(lower) * (1 - weight) + at(upper) * weight
    out = np.where(q < 0, -np.inf, np.where(q > 1, np.inf, out))
    return np.where(np.isnan(q), np.nan, out)


def quantile_over_time(w: Window) -> Floats:
    assert w.parameter is not None
    return quantile(w.parameter, w.v)


def median_deviation(w: Window) -> Floats:
    """``mad_over_time``: the median of the distances to the median."""
    half = np.full((), 0.5)
    return quantile(half, np.abs(w.v - quantile(half, w.v)[None, ...]))


def _ones(w: Window) -> Floats:
    return np.ones(w.v.shape[1:])


def _count(w: Window) -> Floats:
    return np.full(w.v.shape[1:], float(w.v.shape[0]))


def _last(w: Window) -> Floats:
    return np.asarray(w.v[-1])


def _sum(w: Window) -> Floats:
    return kahan_sum(w.v)


_PLAIN: dict[str, tuple[Kernel, int]] = {
    "changes": (changes, 1),
    "resets": (resets, 1),
    "deriv": (derivative, 2),
    "predict_linear": (predict_linear, 2),
    "min_over_time": (smallest, 1),
    "max_over_time": (largest, 1),
    "sum_over_time": (_sum, 1),
    "count_over_time": (_count, 1),
    "last_over_time": (_last, 1),
    "stddev_over_time": (deviation, 1),
    "stdvar_over_time": (variance, 1),
    "quantile_over_time": (quantile_over_time, 1),
    "mad_over_time": (median_deviation, 1),
    "present_over_time": (_ones, 1),
    "absent_over_time": (_ones, 1),
    "irate": (last_two(True), 2),
    "idelta": (last_two(False), 2),
}

_VERSIONED: dict[str, tuple[Callable[[bool], Kernel], int]] = {
    "rate": (lambda old: extrapolated(True, True, old), 2),
    "increase": (lambda old: extrapolated(True, False, old), 2),
    "delta": (lambda old: extrapolated(False, False, old), 2),
    "avg_over_time": (average, 1),
}


def kernel_of(name: str, prometheus_2: bool) -> tuple[Kernel, int]:
    """The kernel of a range function, and how many samples it needs."""
    if name in _PLAIN:
        return _PLAIN[name]
    make, minimum = _VERSIONED[name]
    return make(prometheus_2), minimum
