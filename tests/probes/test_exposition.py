"""Pages against prometheus_client's parser, the fast path against the slow one, and everything that is no page."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from probes.exposition import ExpositionError, Limits, Page, PageParser
from probes.exposition.page import NO_TIME
from probes.labels import Labels

Series = tuple[str, dict[str, str]]
SHARED_PAGE = Path(__file__).parents[2] / ".." / "shared" / "pages" / "vllm-0.32.0-cpu.txt"
_FIXTURES = Path(__file__).parents[1] / "fixtures"
# Of rdma lie trees of sysfs there, not pages.
FIXTURE_PAGES = sorted(path for path in _FIXTURES.rglob("*.txt") if path.parent != _FIXTURES / "rdma")


class Reader:
    """A parser with the table that its rows stand for."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.labels: list[Labels] = []
        self._rows: dict[Labels, int] = {}
        self.parser = PageParser(self._row, limits)

    def _row(self, labels: Labels) -> int:
        if labels not in self._rows:
            self._rows[labels] = len(self.labels)
            self.labels.append(labels)
        return self._rows[labels]

    def page(self, text: str | bytes, openmetrics: bool = False) -> Page:
        data = text.encode() if isinstance(text, str) else text
        return self.parser.parse(data, openmetrics=openmetrics)

    def read(self, text: str | bytes, openmetrics: bool = False) -> dict[Labels, float]:
        page = self.page(text, openmetrics)
        return {self.labels[row]: float(value) for row, value in zip(page.rows, page.values, strict=True)}


def theirs(text: str) -> dict[Labels, float]:
    """What prometheus_client reads; the first of two samples of a series stands."""
    found: dict[Labels, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(Labels.of(sample.labels, name=sample.name), sample.value)
    return found


def same(a: dict[Labels, float], b: dict[Labels, float]) -> bool:
    return a.keys() == b.keys() and all(a[key] == b[key] or (math.isnan(a[key]) and math.isnan(b[key])) for key in a)


# --- against prometheus_client ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [SHARED_PAGE, *FIXTURE_PAGES], ids=lambda path: path.name)
def test_real_page_reads_as_prometheus_client_reads_it(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    text = path.read_text("utf-8")
    expected = theirs(text)
    reader = Reader()
    assert same(reader.read(text), expected)
    assert same(reader.read(text), expected), "the second time, by layout"
    assert len(expected) > 100


def test_openmetrics_of_a_real_registry_reads_as_the_registry_says() -> None:
    registry = CollectorRegistry()
    Counter("work", "Work \\ done\n.", ["kind"], registry=registry).labels('a"}\\\n # {').inc(
        2.5, exemplar={"trace_id": "}x"}
    )
    Histogram("wait_seconds", "Waited", unit="seconds", registry=registry).observe(0.3, exemplar={"a": "b # c"})
    Summary("size", "Size", registry=registry).observe(4)
    Gauge("depth", "Depth", registry=registry).set(math.nan)
    Info("build", "Build", registry=registry).info({"version": "1 2"})
    Enum("mode", "Mode", states=["x", "y"], registry=registry).state("y")
    text = openmetrics.generate_latest(registry)
    expected = {
        Labels.of(sample.labels, name=sample.name): sample.value
        for family in openmetrics_families(text.decode())
        for sample in family.samples
    }
    reader = Reader()
    for _ in range(2):
        assert same(reader.read(text, openmetrics=True), expected)
    assert len(expected) > 20


label_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name[:2] != "__")
label_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
values = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-(2**60), 2**60).map(float))
series = st.tuples(
    st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True),
    st.dictionaries(label_names, label_values, max_size=4),
)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def line(name: str, labels: dict[str, str], value: float, gap: str = " ") -> str:
    inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}}{gap}{number(value)}\n" if labels else f"{name}{gap}{number(value)}\n"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(series, values, st.sampled_from([" ", "  ", "\t", " \t "])), min_size=1, max_size=12))
def test_made_page_reads_as_prometheus_client_reads_it(
    rows: list[tuple[tuple[str, dict[str, str]], float, str]],
) -> None:
    text = "".join(line(name, labels, value, gap) for (name, labels), value, gap in rows)
    reader = Reader()
    first = reader.read(text)
    assert same(first, theirs(text))
    assert same(reader.read(text), first)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(series, min_size=1, max_size=10, unique_by=lambda one: (one[0], tuple(sorted(one[1].items())))),
    st.lists(st.lists(values, min_size=10, max_size=10), min_size=2, max_size=4),
    st.randoms(use_true_random=False),
)
def test_a_parser_with_a_past_reads_as_a_new_one(rows: list[Series], pages: list[list[float]], random: Random) -> None:
    used = Reader()
    for values_ in pages:
        kept = [one for one in rows if random.random() < 0.8]
        if random.random() < 0.3:
            random.shuffle(kept)
        text = "# HELP x y\n" + "".join(line(name, labels, v) for (name, labels), v in zip(kept, values_, strict=False))
        assert same(used.read(text), Reader().read(text))


# --- the format ---------------------------------------------------------------------------------------------------


def test_labels_with_braces_hashes_quotes_and_spaces() -> None:
    text = 'm{a="}",b="# EOF",c=" { x } ",d="q\\"\\\\\\n",e="ü"} 1\nm{a="x} 5 # y"} 2\n'
    reader = Reader()
    for _ in range(2):
        assert reader.read(text) == {
            Labels.of({"a": "}", "b": "# EOF", "c": " { x } ", "d": 'q"\\\n', "e": "ü"}, name="m"): 1.0,
            Labels.of({"a": "x} 5 # y"}, name="m"): 2.0,
        }


def test_openmetrics_exemplars_units_and_seconds() -> None:
    text = (
        "# TYPE h histogram\n# UNIT h seconds\n# HELP h Some \\\\ help\\n.\n"
        'h_bucket{le="1.0"} 5 1.5 # {trace_id="}x"} 0.5 1.4\nh_bucket{le="+Inf"} 6 1.5\n'
        "h_count 6 1.5\nh_sum 3 1.5\n# EOF\n"
    )
    reader = Reader()
    page = reader.page(text, openmetrics=True)
    assert page.values.tolist() == [5, 6, 6, 3]
    assert page.times is not None
    assert page.times.tolist() == [1500] * 4
    family = page.families["h"]
    assert (family.type, family.unit, family.help) == ("histogram", "seconds", "Some \\ help\n.")


def test_explicit_timestamps_of_classic_text_are_milliseconds() -> None:
    page = Reader().page("a 1 1395066363000\nb 2\n")
    assert page.times is not None
    assert page.times.tolist() == [1395066363000, NO_TIME]


def test_line_ends_tabs_and_missing_types() -> None:
    reader = Reader()
    for _ in range(2):
        assert reader.read('\n# a comment\nm{a="b", c = "d" ,}\t3\r\n  \nn{} 4\r\no 5\n') == {
            Labels.of({"a": "b", "c": "d"}, name="m"): 3.0,
            Labels.of(name="n"): 4.0,
            Labels.of(name="o"): 5.0,
        }
    assert reader.page("m 1\n").families == {}


def test_quoted_utf8_names() -> None:
    assert Reader().read('{"my.metric","a.b"="c",d="e"} 1\n') == {
        Labels.of({"a.b": "c", "d": "e"}, name="my.metric"): 1.0
    }


def test_first_of_two_samples_stands_and_is_counted() -> None:
    reader = Reader()
    for _ in range(2):
        page = reader.page('m{a="1",b="2"} 1\nm{b="2",a="1"} 2\nn 3\n')
        assert (page.values.tolist(), page.duplicates) == ([1.0, 3.0], 1)


@pytest.mark.parametrize(
    "odd",
    [
        "",
        'm{b="9"} 3 1395066363000',
        'm{b="9"}  3',
        'm{b="q\\""} 3',
        'm{b="ü"} 3',
        'm{b="9",} 3',
        "m{} 3",
        'm{a="1"} 7',
        "# TYPE k gauge",
        "   ",
    ],
)
def test_one_line_written_otherwise_leaves_the_others_what_they_are(odd: str) -> None:
    text = f'# TYPE m gauge\nm{{a="1"}} 1\nm{{a="2"}} 2\nn{{a="1"}} 4\n{odd}\nn{{a="2"}} 5\n'
    reader = Reader()
    for _ in range(2):
        assert same(reader.read(text), theirs(text))
    assert same(reader.read(text.replace(" 4", " 40")), theirs(text.replace(" 4", " 40")))


def test_a_wrong_line_is_named_wherever_the_page_was_known() -> None:
    reader = Reader()
    reader.page("a 1\nb 2\n")
    with pytest.raises(ExpositionError, match="line 1: 'x' is not a number"):
        reader.page("a x\n# TYPE b nonsense\nb 2\n")


def test_labels_of_the_reader_stand_beside_those_of_each_line() -> None:
    found: list[Labels] = []
    asked: list[dict[str, str]] = []

    def dress(labels: dict[str, str]) -> Labels:
        asked.append(dict(labels))
        return Labels.of(labels | {"Zone": "z", "instance": "i"})

    def resolve(labels: Labels) -> int:
        found.append(labels)
        return len(found) - 1

    PageParser(resolve, dress=dress).parse(b'm{a="1"} 1\nn{a="1"} 2\no 3\np{a="\\n"} 4\n')
    fixed = {"Zone": "z", "instance": "i"}
    of = [({"a": "1"}, "m"), ({"a": "1"}, "n"), ({}, "o"), ({"a": "\n"}, "p")]
    assert found == [Labels.of(labels | fixed, name=name) for labels, name in of]
    assert asked == [{"a": "1"}, {}, {"a": "\n"}], "once for what two names have in common"


def test_layout_notices_what_changes() -> None:
    reader = Reader()
    reader.page("# TYPE m gauge\nm 1\nn 2\n")
    assert reader.page("# TYPE m counter\nm 1\nn 2\n").families["m"].type == "counter"
    assert reader.read("# TYPE m counter\nm 7\nn NaN\n")[Labels.of(name="m")] == 7.0
    assert math.isnan(reader.read("# TYPE m counter\nm 7\nn NaN\n")[Labels.of(name="n")])
    with pytest.raises(ExpositionError, match="1_0"):
        reader.page("# TYPE m counter\nm 1_0\nn 2\n")
    assert reader.read("# TYPE m counter\nm 1 5000\nn 2\n")[Labels.of(name="m")] == 1.0


def test_rows_stay_the_same_object_while_the_page_keeps_its_lines() -> None:
    reader = Reader()
    first = reader.page("m 1\nn 2\n")
    second = reader.page("m 3\nn 4\n")
    assert second.rows is first.rows
    assert np.array_equal(second.values, [3.0, 4.0])


# --- what is no page ----------------------------------------------------------------------------------------------

WRONG = {
    "html": (b"<!DOCTYPE html><title>Sign in</title>\n", "HTML page titled 'Sign in'", 0),
    "bare html": (b"  <html>\n", "HTML page", 0),
    "json": (b'{"status": "ok"}\n', "JSON", 0),
    "json list": (b"[1, 2]\n", "JSON", 0),
    "gzip": (b"\x1f\x8b\x08\0\0\0\0\0\n", "gzip", 0),
    "binary": (bytes(range(256)) + b"\n", "binary", 0),
    "latin-1": (b'm{a="\xe9"} 1\n', "UTF-8", 1),
    "prose": (b"a 1\nWelcome to this server\n", "'Welcome'", 2),
    "no value": (b"a 1\nb\n", "value after 'b'", 2),
    "no time": (b"a 1 NaN\n", "timestamp 'NaN' is not a time", 1),
    "endless time": (b"b 1\na 1 1e24\n", "timestamp '1e24' is not a time", 2),
    "late time": (b"a 1 9223372036854775807\n", "is not a time before the year 10000", 1),
    "bad value": (b"a one\n", "'one' is not a number", 1),
    "bad time": (b"a 1 soon\n", "'soon' is not a timestamp", 1),
    "too much": (b"a 1 2 3\n", "value after 'a'", 1),
    "open brace": (b'm{a="b" 1\n', "broken label", 1),
    "unquoted": (b"m{a=b} 1\n", "broken label", 1),
    "label twice": (b'm{a="1",a="2"} 1\n', "'a' is given twice", 1),
    "bad name": (b"1m 1\n", "metric name", 1),
    "no name": (b'{a="b"} 1\n', "no metric name", 1),
    "bad type": (b"# TYPE m gouge\nm 1\n", "unknown metric type 'gouge'", 1),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_page_is_told_by_what_it_is(case: str) -> None:
    body, words, at = WRONG[case]
    with pytest.raises(ExpositionError) as caught:
        Reader().page(body)
    assert words in str(caught.value)
    assert (caught.value.line, caught.value.kind) == (at, "not-exposition")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "openmetrics"),
    [(b"m 1\nn 2", False), (b'm 1\nn{a="b', False), (b"m 1\nn 2\n", True), (b"m 1\nn 2\n# EO", True)],
)
def test_a_cut_page_is_truncated(body: bytes, openmetrics: bool) -> None:
    with pytest.raises(ExpositionError) as caught:
        Reader().page(body, openmetrics)
    assert caught.value.kind == "truncated"


def test_a_cut_page_is_noticed_by_the_fast_path_too() -> None:
    reader = Reader()
    reader.page("m 1\nn 2\n# EOF\n", openmetrics=True)
    for body in (b"m 1\nn 2", b"m 1\nn 2\n", b"m 1\nn 2\n# EO"):
        with pytest.raises(ExpositionError):
            reader.page(body, openmetrics=True)
    assert reader.page("m 1\nn 2\n# EOF", openmetrics=True).values.tolist() == [1.0, 2.0]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_in_words_or_read(body: bytes) -> None:
    said = ""
    try:
        Reader().page(body)
    except ExpositionError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 300


def test_an_empty_page_has_no_samples() -> None:
    assert len(Reader().page(b"").rows) == 0
    assert len(Reader().page(b"# EOF\n", openmetrics=True).rows) == 0


def test_limits_of_size_and_series() -> None:
    with pytest.raises(ExpositionError, match="more than the limit of 10"):
        Reader(Limits(bytes=10)).page("some_metric 1\n")
    with pytest.raises(ExpositionError, match="line 3: the page has more than 2 series"):
        Reader(Limits(series=2)).page("a 1\nb 1\nc 1\n")
    with pytest.raises(ExpositionError, match="labels of 29 bytes"):
        Reader(Limits(labels=20)).page(f'm{{a="{"x" * 22}"}} 1\n')


def test_a_page_that_changes_its_series_may_have_as_many_as_the_limit() -> None:
    reader = Reader(Limits(series=2))
    for n in range(20):
        assert len(reader.page(f'a{{n="{n}"}} 1\nb{{n="{n}"}} 1\n').rows) == 2


def test_reading_stops_at_the_deadline_and_what_was_learnt_stays() -> None:
    rows: dict[Labels, int] = {}
    parser = PageParser(lambda labels: rows.setdefault(labels, len(rows)))
    with pytest.raises(ExpositionError, match="no time left to read the page: line 1 of 3") as caught:
        parser.parse(b"a 1\nb 1\n", until=0.0)
    assert caught.value.kind == "timeout"
    assert len(parser.parse(b"a 1\nb 1\n").rows) == 2


def test_the_end_mark_is_only_a_comment_in_classic_text() -> None:
    assert len(Reader().page("a 1\n# EOF\nb 2\n").rows) == 2
    with pytest.raises(ExpositionError, match="text after # EOF"):
        Reader().page("a 1\n# EOF\nb 2\n", openmetrics=True)


def test_a_byte_order_mark_is_passed_over() -> None:
    reader = Reader()
    for _ in range(2):
        assert reader.page(b"\xef\xbb\xbfa 1\n").values.tolist() == [1.0]
    assert str(reader.page(b"\xef\xbb\xbf# TYPE a gauge\na 1\n").families["a"].type) == "gauge"
