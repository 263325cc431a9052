"""A recording reads back as what was recorded: while it is written, after kill -9, mended, and by promtool."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from probes.attach import Attachment, attach
from probes.labels import Labels
from probes.openmetrics import FamilyNames, WrittenFamily, series_text
from probes.recorder import Recorder, RecordingError, UnwritableError, repair, stamp_text, value_text
from probes.series import Metadata
from tests.endpoints import Endpoint

PAGE = """\
# TYPE work_total counter
work_total{engine="0"} %d
# TYPE work_created gauge
work_created{engine="0"} 1.7e9
# TYPE depth gauge
depth{engine="0",text="a \\"b\\" \\\\ } # c"} 0.1
# TYPE wait_seconds histogram
wait_seconds_bucket{le="0.5"} 1
wait_seconds_bucket{le="+Inf"} 3
wait_seconds_count 3
wait_seconds_sum 7.25
# TYPE size summary
size{quantile="0.5"} NaN
size_count 0
size_sum 0
# TYPE plain counter
plain 4
untyped_thing -Inf
vllm:cache_config_info{block_size="16",engine="0"} 1
"""


def contents(attachment: Attachment) -> dict[str, tuple[list[int], bytes]]:
    """Every series with its times and the bits of its values."""
    return {
        str(labels): (frame.times.tolist(), values.tobytes())
        for frame in attachment.store.frames
        for labels, values in zip(frame.labels, frame.values, strict=True)
    }


async def record(path: Path, cycles: int = 8) -> tuple[Attachment, Recorder]:
    """Record some cycles of an endpoint that fails and comes back on the way; the recorder is left open."""
    with Endpoint(PAGE.encode() % 0) as endpoint:
        attachment = attach([endpoint.target])
        recorder = Recorder(path, attachment.store)
        for at in range(cycles):
            endpoint.serve(PAGE % (at * 10))
            if at == 3:
                endpoint.behave("500")
            await attachment.cycle(1_700_000_000_000 + at * 1000 + (at % 2) * 7)
            assert recorder.record() > 0
        await attachment.close()
    return attachment, recorder


async def test_recording_reads_back_bit_for_bit_open_closed_and_mended_again(tmp_path: Path) -> None:
    path = tmp_path / "x.om"
    live, recorder = await record(path)
    while_open = attach([str(path)])
    assert "unclosed" in (while_open.statuses[0].error or "")
    assert contents(while_open) == contents(live)
    recorder.close()
    recorder.close()
    closed = attach([str(path)])
    assert closed.statuses[0].error is None
    assert contents(closed) == contents(live)
    before = path.read_bytes()
    assert repair(path).samples == recorder.samples
    assert path.read_bytes() == before, "nothing left to mend"
    assert list(tmp_path.iterdir()) == [path], "no temporary file stays"


async def test_closed_recording_has_each_series_together_under_a_type_it_may_have(tmp_path: Path) -> None:
    path = tmp_path / "x.om"
    _, recorder = await record(path)
    recorder.close()
    lines = path.read_text().splitlines()
    assert lines[-1] == "# EOF"
    types = dict(one.split(" ")[2:4] for one in lines if one.startswith("# TYPE"))
    assert types["work"] == "counter"
    assert types["work_created"] == "unknown"
    assert types["plain"] == "unknown"
    assert (types["wait_seconds"], types["size"], types["depth"]) == ("histogram", "summary", "gauge")
    series = [one.rsplit(" ", 2)[0] for one in lines if not one.startswith("#")]
    runs = [one for at, one in enumerate(series) if at == 0 or series[at - 1] != one]
    assert len(runs) == len(set(runs))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
async def test_promtool_takes_a_closed_and_a_mended_recording(tmp_path: Path) -> None:
    path, cut = tmp_path / "x.om", tmp_path / "cut.om"
    _, recorder = await record(path)
    shutil.copy(path, cut)
    os.truncate(cut, cut.stat().st_size - 5)
    recorder.close()
    assert repair(cut).samples == recorder.samples - 1
    for one, samples in ((path, recorder.samples), (cut, recorder.samples - 1)):
        out = subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(one), str(tmp_path / f"{one.stem}-db")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert out.returncode == 0, out.stderr
        assert str(samples) in out.stdout.split()


CHILD = """
import asyncio, sys, time
from pathlib import Path
from probes.attach import attach
from probes.recorder import Recorder

async def main():
    attachment = attach([sys.argv[1]], interval_ms=20)
    recorder = Recorder(Path(sys.argv[2]), attachment.store)
    while True:
        await attachment.cycle(round(time.time() * 1000))
        recorder.record()
        print(recorder.samples, flush=True)
        await asyncio.sleep(0.02)

asyncio.run(main())
"""


def test_kill_9_loses_at_most_the_cycle_under_way(tmp_path: Path) -> None:
    path = tmp_path / "killed.om"
    with Endpoint(PAGE.encode() % 5) as endpoint:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, endpoint.target, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        samples = 0
        for _ in range(10):
            samples = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    found = attach([str(path)])
    assert found.statuses[0].state == "fresh"
    assert "unclosed" in (found.statuses[0].error or "")
    assert found.statuses[0].samples >= samples
    kept = found.statuses[0].samples
    assert repair(path).samples == kept
    assert attach([str(path)]).statuses[0].error is None


def test_recordings_one_behind_the_other_are_one_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "both.om"
    first = "# TYPE a gauge\na 1 1\na 2 2\n# EOF\n"
    path.write_text(first + "\ufeff# TYPE a gauge\na 3 3\n# TYPE b gauge\nb 4 3\n# EOF\n\n" + "a 5 5\n# EOF")
    found = attach([str(path)])
    assert (found.statuses[0].samples, found.statuses[0].error) == (5, "3 recordings one behind the other, read as one")
    mended = repair(path)
    assert (mended.samples, mended.parts) == (5, 3)
    assert path.read_text().splitlines() == (
        ["# TYPE a gauge", "a 1 1", "a 2 2", "a 3 3", "a 5 5", "# TYPE b gauge", "b 4 3", "# EOF"]
    )
    assert contents(attach([str(path)])) == contents(found)
    path.write_text(body := first + "a 1 2\n# EOF\n")
    with pytest.raises(RecordingError, match=r"line 5: two recordings .* overlap in time"):
        repair(path)
    assert path.read_text() == body, "left as it was"


def test_a_recording_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "x.om"
    store = attach([_recording(tmp_path)]).store
    before = os.umask(0o022)
    try:
        with Recorder(path, store):
            assert path.stat().st_mode & 0o777 == 0o644
        assert path.stat().st_mode & 0o777 == 0o644
        path.write_text("a 2 2\na 1 1\nb 1 1\na 3 3\n")
        path.chmod(0o755)
        repair(path)
        assert path.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_file_that_is_taken_away_while_recording_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.om"
    store = attach([_recording(tmp_path)]).store
    for replaced in (False, True):
        recorder = Recorder(path, store)
        recorder.record()
        path.unlink()
        if replaced:
            path.write_text("b 1 1\na 1 1\nb 2 2\n")
        with pytest.raises(UnwritableError, match="deleted or replaced while it was being recorded"):
            recorder.close()
    assert path.read_text() == "b 1 1\na 1 1\nb 2 2\n", "somebody else's file is left alone"


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    store = attach([_recording(tmp_path)]).store
    with pytest.raises(RecordingError, match="is there already"):
        Recorder(tmp_path / "in.om", store)
    with pytest.raises(RecordingError, match="cannot be written"):
        Recorder(tmp_path / "no" / "x.om", store)
    with Recorder(tmp_path / "in.om", store, overwrite=True) as recorder:
        assert recorder.record() == 1 and recorder.record() == 0  # noqa: PT018


def _recording(tmp_path: Path) -> str:
    path = tmp_path / "in.om"
    path.write_text("a 1 1\n# EOF\n")
    return str(path)


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"<html>\n", "HTML"), (b"a 1\n", "without a timestamp"), (b"a 1 1\nb x 2\n", "line 2: 'x' is not a number")],
)
def test_what_is_no_recording_is_not_mended_but_left(tmp_path: Path, body: bytes, words: str) -> None:
    path = tmp_path / "x.om"
    path.write_bytes(body)
    with pytest.raises(RecordingError, match=words):
        repair(path)
    assert path.read_bytes() == body
    with pytest.raises(RecordingError, match="cannot be mended"):
        repair(tmp_path / "none.om")


def test_mending_needs_memory_for_the_series_and_not_for_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "long.om"
    text = "".join(f'm{{n="{n}"}} {t}.25 {t}\n' for t in range(3000) for n in range(40))
    path.write_text(text)
    import tracemalloc

    tracemalloc.start()
    assert repair(path).samples == 120_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    short = tmp_path / "short.om"
    short.write_text(text[: len(text) // 8])
    tracemalloc.start()
    repair(short)
    small = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * small + 20e6
    assert peak < 60e6


@pytest.mark.parametrize(
    ("name", "declared", "family"),
    [
        ("a_total", {"a_total": "counter"}, ("a", "counter")),
        ("a_total", {"a": "counter"}, ("a", "counter")),
        ("a", {"a": "counter"}, ("a", "unknown")),
        ("a_total", {"a_total": "gauge"}, ("a_total", "unknown")),
        ("a_created", {"a_created": "gauge"}, ("a_created", "unknown")),
        ("a_bucket", {"a": "histogram"}, ("a", "histogram")),
        ("a_sum", {"a": "summary"}, ("a", "summary")),
        ("a", {"a": "summary"}, ("a", "summary")),
        ("a", {"a": "gauge"}, ("a", "gauge")),
        ("a_count", {}, ("a_count", "unknown")),
        ("a_info", {"a_info": "gauge"}, ("a_info", "unknown")),
    ],
)
def test_family_of_a_name(name: str, declared: dict[str, str], family: tuple[str, str]) -> None:
    names = FamilyNames(lambda one: Metadata(declared[one]) if one in declared else None)
    assert names.family(name) == WrittenFamily(*family)


def test_texts() -> None:
    assert [value_text(v) for v in (1.0, 0.1, float("nan"), float("inf"), -float("inf"), 1e300)] == [
        b"1.0",
        b"0.1",
        b"NaN",
        b"+Inf",
        b"-Inf",
        b"1e+300",
    ]
    assert (stamp_text(5000), stamp_text(5007)) == (b" 5\n", b" 5.007\n")
    assert series_text(Labels.of({"a.b": "c"}, name="m.x")) == '{"m.x","a.b"="c"}'
    assert np.float64(value_text(0.1 + 0.2)) == 0.1 + 0.2


def test_a_file_is_not_mended_while_it_is_recorded(tmp_path: Path) -> None:
    store = attach([_recording(tmp_path)]).store
    path = tmp_path / "out.om"
    with Recorder(path, store) as recorder:
        recorder.record()
        before = path.read_bytes()
        with pytest.raises(RecordingError, match="is still being recorded"):
            repair(path)
        for overwrite in (False, True):
            with pytest.raises(RecordingError, match="is still being recorded"):
                Recorder(path, store, overwrite=overwrite)
        assert path.read_bytes() == before
    assert repair(path).samples == 1


CLOSED = """\
# HELP b What it is.
# TYPE b gauge
b{n="2"} 1 5
b{n="2"} 1 6
b{n="1"} 1 5
# TYPE a counter
a_total 1.50 5
# EOF
"""


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (("", ""), True),
        (("# EOF\n", ""), False),
        (('b{n="1"} 1 5\n', 'b{n="1"} 1 5\nb{n="2"} 1 7\n'), False),
        (("# EOF", 'b{n="3"} 1 5\n# EOF'), False),
        (("# HELP b What it is.\n# TYPE b gauge\n", ""), False),
        (("# HELP b What", "# b What"), False),
    ],
)
def test_what_is_closed_and_in_order_stays_as_it_is(tmp_path: Path, change: tuple[str, str], kept: bool) -> None:
    path = tmp_path / "x.om"
    text = CLOSED.replace(*change) if change[0] else CLOSED
    path.write_text(text)
    repair(path)
    assert (path.read_text() == text) is kept
    assert path.read_text().endswith("# EOF\n")
    assert [p.name for p in tmp_path.iterdir()] == ["x.om"]


def test_only_plain_files_are_recorded_and_mended(tmp_path: Path) -> None:
    store = attach([_recording(tmp_path)]).store
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RecordingError, match="is a pipe, not a file"):
        repair(pipe)
    with pytest.raises(RecordingError, match="cannot be written"):
        Recorder(pipe, store, overwrite=True)
    with pytest.raises(RecordingError, match="is a device, not a file"):
        Recorder(Path("/dev/null"), store, overwrite=True)
    with pytest.raises(RecordingError, match=r"written uncompressed: name it x\.om"):
        Recorder(tmp_path / "x.om.gz", store)


def test_compressed_and_timeless_files_are_not_mended(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "x.om.gz"
    path.write_bytes(body := gzip.compress(b"a 1 1\n"))
    with pytest.raises(RecordingError, match="the file is compressed; unpack it first"):
        repair(path)
    assert path.read_bytes() == body
    path.write_text("a 1 1\na 1 +Inf\n")
    with pytest.raises(RecordingError, match=r"line 2: timestamp '\+Inf' is not a time"):
        repair(path)
