"""Numbers as people read them."""

from __future__ import annotations

import pytest

from tui.quantity import age, text_of


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ratio", "–"),
        (float("nan"), "seconds", "–"),
        (0.0, "ratio", "0.0 %"),
        (0.9999, "ratio", "99.9 %"),
        (1.0, "ratio", "100 %"),
        (0.0213, "seconds", "21.3 ms"),
        (0.00004, "seconds", "40 µs"),
        (0.9999, "seconds", "1 s"),
        (8.42, "seconds", "8.42 s"),
        (316.0, "seconds", "5m16s"),
        (434_176, "tokens", "434 k"),
        (999_999, "tokens", "1 M"),
        (18_400, "tokens_per_second", "18.4 k/s"),
        (0, "tokens_per_second", "0/s"),
        (1.9e9, "bytes_per_second", "1.9 GB/s"),
        (512, "bytes", "512 B"),
        (0.42, "per_second", "25.2/min"),
        (3.2, "per_second", "3.2/s"),
        (0.0, "per_second", "0/s"),
        (0.0005, "per_second", "1.8/h"),
        (47, "requests", "47"),
        (1e308, "requests", "1e308"),
        (1e308, "ratio", "1e308"),
        (-1e308, "per_second", "-1e308/s"),
        (1e308, "bytes", "1e308 B"),
        (1e308, "seconds", "1.16e303 d"),
    ],
)
def test_text(value: float | None, unit: str, text: str) -> None:
    assert text_of(value, unit) == text


@pytest.mark.parametrize(("seconds", "text"), [(12, "12 s"), (165, "2m45s"), (7500, "2h05m"), (400_000, "4d15h")])
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize("unit", ["ratio", "seconds", "bytes_per_second", "per_second", "tokens", "requests"])
@pytest.mark.parametrize("value", [1e-9, 0.00123, 0.999, 1, 9.995, 99.95, 999.6, 12345, 9.9999e8, 3e15])
def test_always_short(value: float, unit: str) -> None:
    if (unit != "ratio" or value <= 1) and (unit != "seconds" or value < 1e9):
        assert len(text_of(value, unit)) <= 10
