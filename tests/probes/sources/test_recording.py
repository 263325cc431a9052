"""A file of samples as a source: any order, any clock, whole or cut."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from probes.columns import is_absent, is_stale
from probes.labels import Labels
from probes.series import SeriesStore
from probes.sources.recording import Recording, RecordingSource, load

CASES = sorted((Path(__file__).parents[3] / ".." / "shared" / "cases").glob("*.om"))


def recorded(tmp_path: Path, text: str, name: str = "x.om") -> Recording:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load(path)


def line(recording: Recording, name: str, block: int = 0, **labels: str) -> list[float]:
    """The values of the one series with this name, NaN where there is no sample."""
    held = recording.blocks[block]
    (row,) = [i for i, one in enumerate(held.labels) if one.name == name and one.covers(labels)]
    return [float(value) for value in held.values[row]]


def target(**labels: str) -> str:
    inside = "".join(f',{key}="{value}"' for key, value in labels.items())
    return f'{{job="j",instance="i"{inside}}}'


def test_series_of_one_target_share_a_time_axis(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        f"# TYPE a gauge\na{target()} 1 10\na{target()} 2 15.5\n"
        f"b{target(x='y')} 3 10\nb{target(x='y')} 4 15.5\n"
        'a{job="j",instance="other"} 9 11\n# EOF\n',
    )
    assert [(block.job, block.instance, block.times.tolist()) for block in found.blocks] == [
        ("j", "i", [10_000, 15_500]),
        ("j", "other", [11_000]),
    ]
    assert (line(found, "a"), line(found, "b")) == ([1, 2], [3, 4])
    assert (found.start_ms, found.end_ms, found.step_ms, found.samples, found.remark) == (10_000, 15_500, 5_500, 5, "")
    assert found.families["a"].type == "gauge"


def test_order_does_not_matter_and_the_first_of_two_samples_stands(tmp_path: Path) -> None:
    found = recorded(tmp_path, f"a{target()} 3 30\na{target()} 1 10\na{target()} 7 10\na{target()} 2 20\n# EOF\n")
    assert line(found, "a") == [1, 2, 3]


def test_a_file_without_targets_gets_them_from_its_name(tmp_path: Path) -> None:
    found = recorded(tmp_path, 'a 1 1\na{job="j"} 2 1\n# EOF\n', "engine.om")
    assert [(block.job, block.instance) for block in found.blocks] == [("recording", "engine"), ("j", "engine")]


def test_a_page_without_times_is_one_scrape_at_the_file_time(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_text("a 1\nb 2\n")
    os.utime(path, (1000, 1000.25))
    found = load(path)
    assert found.blocks[0].times.tolist() == [1_000_250]


def test_milliseconds_are_told_from_seconds(tmp_path: Path) -> None:
    assert recorded(tmp_path, "a 1 1771117200000\n# EOF\n").start_ms == 1771117200000
    assert recorded(tmp_path, "a 1 1771117200.123\n# EOF\n").start_ms == 1771117200123


def test_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "x.om.gz"
    path.write_bytes(gzip.compress(b"a 1 1\na 2 2\n# EOF\n"))
    found = load(path)
    assert (line(found, "a"), found.blocks[0].instance) == ([1, 2], "x")
    path.write_bytes(gzip.compress(b"a 1 1\na 2 2\n" * 500)[:-9])
    assert "unclosed" in load(path).remark


def test_a_series_that_stops_is_stale_where_it_first_fails(tmp_path: Path) -> None:
    up = "".join(f"up{target()} 1 {t}\n" for t in range(0, 60, 5))
    fast = "".join(f"fast{target()} 1 {t}\n" for t in range(0, 30, 5))
    slow = "".join(f"slow{target()} 1 {t}\n" for t in range(0, 31, 15))
    found = recorded(tmp_path, up + fast + slow + "# EOF\n")
    stale = is_stale(found.blocks[0].values)
    rows = {labels.name: at for at, labels in enumerate(found.blocks[0].labels)}
    assert found.blocks[0].times[stale[rows["fast"]]].tolist() == [30_000]
    assert found.blocks[0].times[stale[rows["slow"]]].tolist() == [45_000], "its own step is 15 s"
    assert not stale[rows["up"]].any()


def test_changed_samples_are_counted_where_the_file_does_not_say(tmp_path: Path) -> None:
    text = (
        "".join(f"up{target()} {int(t != 15)} {t}\n" for t in (0, 5, 10, 15, 20))
        + "".join(f"a{target()} {v} {t}\n" for t, v in ((0, 1), (5, 1), (10, 2), (20, 2)))
        + "".join(f"b{target()} {v} {t}\n" for t, v in ((0, 1), (5, 3), (10, 4), (20, 4)))
        + f"c{target()} 1 20\n# EOF\n"
    )
    found = recorded(tmp_path, text)
    counts = line(found, "kvscope_scrape_samples_changed")
    assert np.isnan(counts[0]), "nothing to compare the first with"
    assert (counts[1], counts[2], np.isnan(counts[3]), counts[4]) == (1.0, 2.0, True, 1.0)
    given = recorded(tmp_path, text.replace("# EOF", f"kvscope_scrape_samples_changed{target()} 7 20\n# EOF"))
    assert line(given, "kvscope_scrape_samples_changed")[-1] == 7


def test_info_gauges_follow_a_restart_with_another_size(tmp_path: Path) -> None:
    name = "vllm:cache_config_info"
    found = recorded(
        tmp_path,
        f"{name}{target(num_gpu_blocks='10')} 1 0\n{name}{target(num_gpu_blocks='20')} 1 5\n# EOF\n",
    )
    assert line(found, f"{name}:num_gpu_blocks") == [10, 20]


WHOLE = "# TYPE a gauge\n" + "".join(f"a{target()} {t}.5 {t}\n" for t in range(10, 20)) + "# EOF\n"


@pytest.mark.parametrize("kept", [*range(60, len(WHOLE) - 6, 7)])
def test_a_file_cut_anywhere_loads_what_is_whole(tmp_path: Path, kept: int) -> None:
    store = SeriesStore()
    path = tmp_path / "cut.om"
    path.write_text(WHOLE[:kept])
    source = RecordingSource("cut.om", path, store)
    assert source.status.state == "fresh"
    assert "unclosed recording" in (source.status.error or "")
    samples = WHOLE[:kept].rpartition("\n")[0].count("\na{")
    frame = store.frames[0]
    (row,) = frame.rows_named("a")
    values = frame.values[frame.labels.index(frame.label_at(row))]
    assert values[~is_absent(values)].tolist() == [10.5 + i for i in range(samples)]


@pytest.mark.parametrize(
    ("body", "state", "words"),
    [
        (b"", "empty", "no samples"),
        (b"# EOF\n", "empty", "no samples"),
        (b"<html><title>x</title></html>\n", "not-exposition", "HTML"),
        (b'{"a": 1}\n', "not-exposition", "JSON"),
        (b"\x7fELF\x02\x01\x01\0\0\0\n\0\0", "not-exposition", "binary"),
        (b"\x89PNG" + b"\0" * 100, "not-exposition", "binary"),
        (b"a 1 1\nhello there\n", "not-exposition", "line 2"),
        (b"a 1 1\nb 2\n", "not-exposition", "some samples have a timestamp"),
        (b"a 1 soon\n", "not-exposition", "'soon' is not a timestamp"),
    ],
)
def test_what_is_no_recording_is_told(tmp_path: Path, body: bytes, state: str, words: str) -> None:
    path = tmp_path / "x.om"
    path.write_bytes(body)
    status = RecordingSource("x.om", path, SeriesStore()).status
    assert (status.state, words in (status.error or "")) == (state, True), status


def test_a_file_that_went_away(tmp_path: Path) -> None:
    assert RecordingSource("x", tmp_path / "x.om", SeriesStore()).status.state == "gone"


def test_a_file_beyond_the_cap_keeps_its_newest_part(tmp_path: Path) -> None:
    path = tmp_path / "long.om"
    lines = [f'{name}{{job="j",instance="i"}} {t} {t}\n' for name in "abcd" for t in range(20_000)]
    path.write_text("".join(lines) + "# EOF\n")
    found = load(path, cap=30_000)
    assert "the oldest" in found.remark
    assert found.end_ms == 19_999_000
    assert 4_000 < found.samples <= 30_000 + 25_000, "a chunk is taken whole before the cap is seen"
    values = {name: line(found, name) for name in "abcd"}
    assert all(values[name][-3:] == [19_997, 19_998, 19_999] for name in "abcd")
    assert all(np.isfinite(values[name]).all() for name in "d")


def test_series_that_come_and_go_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.sources.blocks.MAX_CELLS", 1000)
    found = recorded(tmp_path, "".join(f"m{target(n=str(t))} {t} {t}\n" for t in range(200)) + "# EOF\n")
    block = found.blocks[0]
    assert (block.times.tolist(), len([one for one in block.labels if one.name == "m"])) == (
        [195_000, 196_000, 197_000, 198_000, 199_000],
        5,
    )
    assert (found.samples, "the oldest 195 samples" in found.remark) == (5, True)


@pytest.mark.skipif(not CASES, reason="no ../shared/cases here")
def test_every_case_bundle_loads() -> None:
    for path in CASES:
        store = SeriesStore()
        source = RecordingSource(path.name, path, store)
        assert (source.status.state, source.status.error) == ("fresh", None), path.name
        assert source.step_ms == 5_000
        assert store.samples >= source.status.samples
        assert Labels.of(name="nothing") not in set(store.series())


@pytest.mark.parametrize("stamp", ["+Inf", "1e300", "9e15", "-Inf", "NaN", "1.7e18"])
def test_a_time_that_is_none_is_refused_with_its_line(tmp_path: Path, stamp: str) -> None:
    path = tmp_path / "x.om"
    path.write_text(f"a 1 5\n\na 2 {stamp}\na 3 6\n# EOF\n")
    status = RecordingSource("x.om", path, SeriesStore()).status
    assert (status.state, status.error) == (
        "not-exposition",
        f"line 3: timestamp '{stamp}' is not a time before the year 10000",
    )


def test_seconds_and_milliseconds_in_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.om"
    path.write_text("a 1 1700000000\na 2 1700000001000\n# EOF\n")
    status = RecordingSource("x.om", path, SeriesStore()).status
    assert status.error == "timestamps in seconds and timestamps in milliseconds are mixed"


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.om"
    path.write_bytes(b"\xef\xbb\xbfa 1 5\n# EOF\n")
    assert load(path).samples == 1


def many(lines: int) -> bytes:
    return "".join(f'a{{n="{n % 7}"}} {n * 7919 % 104729} {n}\n' for n in range(lines)).encode() + b"# EOF\n"


def test_of_compressed_data_that_ends_early_the_rest_is_kept(tmp_path: Path) -> None:
    whole = gzip.compress(many(20_000))
    path = tmp_path / "x.om.gz"
    path.write_bytes(whole[: len(whole) // 2])
    status = RecordingSource("x.om.gz", path, SeriesStore()).status
    assert (status.state, status.samples > 5_000) == ("fresh", True)
    assert (status.error or "").startswith("its compressed data ends early; unclosed recording: no # EOF")


def test_of_damaged_compressed_data_the_part_before_is_kept(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(many(100_000)))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "x.om.gz"
    path.write_bytes(whole)
    status = RecordingSource("x.om.gz", path, SeriesStore()).status
    assert (status.state, status.samples > 20_000) == ("fresh", True)
    assert (status.error or "").startswith("its compressed data is damaged")


def test_a_wrong_line_in_whole_compressed_data_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.om.gz"
    path.write_bytes(gzip.compress(b"a 1 1\n" * 100_000 + b"a one 2\n# EOF\n"))
    status = RecordingSource("x.om.gz", path, SeriesStore()).status
    assert status.error == "line 100001: 'one' is not a number"


def test_members_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.om.gz"
    path.write_bytes(gzip.compress(b"a 1 1\n") + gzip.compress(b"a 2 2\n# EOF\n") + b"\0" * 512)
    found = load(path)
    assert (found.samples, found.remark) == (2, "")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    status = RecordingSource("pipe", path, SeriesStore()).status
    assert (status.state, status.error) == ("gone", "cannot be read: is a pipe, not a file")
