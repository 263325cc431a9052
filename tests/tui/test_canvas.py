"""Cells: cut at the edge, safe for any label, honest about holes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tui.draw import chart
from tui.draw.canvas import ASCII, Canvas, cells, spans, width_of


def test_a_text_too_long_ends_in_an_ellipsis() -> None:
    canvas = Canvas(5, 1)
    canvas.put(0, 0, "kv-capacity")
    assert canvas.text() == "kv-c…"


def test_control_characters_of_a_label_never_reach_the_terminal() -> None:
    canvas = Canvas(20, 1)
    canvas.put(0, 0, "pod\x1b[31m\x07\u200b\x9b1")
    assert canvas.text() == "pod?[31m??1"


@given(st.text(), st.integers(-5, 12), st.integers(-2, 4), st.integers(0, 10))
def test_nothing_breaks_the_grid(text: str, x: int, y: int, width: int) -> None:
    canvas = Canvas(8, 2)
    canvas.area(1, 0, 5, 2).put(x, y, text, "bad", width)
    canvas.right(x, y, text)
    for chars, styles in canvas.rows():
        assert len(chars) == len(styles) == 8
        assert not any(char and ord(char[0]) < 32 for char in chars)


def test_wide_characters_take_two_cells() -> None:
    assert width_of("模型") == 4
    canvas = Canvas(3, 1)
    canvas.put(0, 0, "模型")
    assert width_of(canvas.text()) <= 3


def test_spans_join_cells_of_one_style() -> None:
    canvas = Canvas(6, 1)
    canvas.put(0, 0, "ab", "ok")
    canvas.put(2, 0, "cd", "bad")
    assert spans(canvas.rows()[0]) == [("ab", "ok"), ("cd", "bad"), ("  ", "text")]


def test_a_hole_is_not_a_zero() -> None:
    canvas = Canvas(3, 1)
    chart.area(canvas, [math.nan, 0.0, 1.0], 1.0)
    assert canvas.text() == "·▁█"


def test_a_chart_without_unicode() -> None:
    canvas = Canvas(4, 1, ASCII)
    chart.area(canvas, [math.nan, 0.0, 0.5, 1.0], 1.0)
    assert canvas.text() == " .=#"


def test_a_bar_is_full_only_when_it_is_full_and_empty_only_at_zero() -> None:
    def drawn(share: float | None) -> str:
        canvas = Canvas(10, 1, ASCII)
        chart.bar(canvas, 0, 0, 10, share, "data")
        return canvas.text()

    assert drawn(0.999) == "#########."
    assert drawn(1.0) == "##########"
    assert drawn(0.001) == "#........."
    assert drawn(0.0) == ".........."
    assert drawn(None) == "----------"


def test_nice_top_is_at_or_above_the_highest() -> None:
    assert [chart.nice_top([v]) for v in (0.094, 8.42, 47, 3, 2.1)] == [0.1, 10.0, 50.0, 5.0, 2.5]
    assert chart.nice_top([math.nan]) == 1.0


def test_line_and_paragraph_separators_never_reach_the_terminal() -> None:
    assert list(cells("a\u2028b\u2029c")) == list("a?b?c")
