"""Numbers as a person reads them: short, with their unit, never more digits than the value carries."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_HUGE = 1e16  # from here on a power of ten: what is so large is a mistake, and its digits would fill the line
_HUGE_S = 86400e4  # ten thousand days


def text_of(value: float | None, unit: str, none: str = "–") -> str:
    """At most eight characters: ``98.2 %``, ``1.24 M``, ``310 ms``, ``2.1 GB/s``, ``3.2/min``; no data is a dash."""
    if value is None or math.isnan(value):
        return none
    if unit == "ratio":
        return percent(value)
    if unit == "seconds":
        return seconds(value)
    if unit in ("bytes", "bytes_per_second"):
        return scaled(value, "B" if unit == "bytes" else "B/s")
    if unit == "per_second":
        return rate(value)
    if unit == "tokens_per_second":
        return scaled(value, "/s")
    return scaled(value, "")


def percent(value: float) -> str:
    share = value * 100
    if abs(value) >= 1e4:
        return power(value)  # no share is so large: the number as it stands
    if 99.95 <= share < 100:
        return "99.9 %"  # not full is not full
    return f"{share:.1f} %" if share < 99.95 else f"{share:.0f} %"


def seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    size = abs(value)
    if size < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if size < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if size < 99.95:
        return f"{value:.3g} s"
    return age(value)


def rate(value: float) -> str:
    """Events: a minute when rarer than one a second."""
    if value == 0:
        return "0/s"
    if abs(value) >= 1:
        return scaled(value, "/s")
    return f"{digits(value * 60)}/min" if abs(value) * 60 >= 0.1 else f"{digits(value * 3600)}/h"


def scaled(value: float, unit: str) -> str:
    """With a decimal prefix (k, M, G, T), or a power of ten."""
    if abs(value) >= _HUGE:
        return f"{power(value)} {unit}" if unit.startswith("B") else power(value) + unit
    for size, prefix in _LARGE:
        if abs(value) >= size * 0.9995:
            return f"{digits(value / size)} {prefix}{unit}" if unit else f"{digits(value / size)} {prefix}"
    number = digits(value)
    return f"{number} {unit}" if unit.startswith("B") else number + unit


def digits(value: float) -> str:
    """Three significant digits, a whole number where it is one."""
    if value == int(value) and abs(value) < 1e4:
        return str(int(value))
    if abs(value) >= _HUGE:
        return power(value)
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"


def power(value: float) -> str:
    """As a power of ten: ``1e308``, ``1.23e17``."""
    return re.sub(r"e\+0*", "e", f"{value:.3g}")


def age(value_s: float) -> str:
    """A duration: ``12 s``, ``5m16s``, ``2h05m``, ``3d04h``; from ten thousand days on ``1e303 d``."""
    if abs(value_s) >= _HUGE_S:
        return f"{power(value_s / 86400)} d"
    whole = int(value_s)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 360_000:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def clock(time_ms: int, *, date: bool = False) -> str:
    """UTC wall clock; with the date when asked."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")
