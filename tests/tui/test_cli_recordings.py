"""Recordings and the commands: written, killed, cut, mended, beside live targets."""

from __future__ import annotations

import gzip
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.endpoints import Endpoint
from tests.live.living_page import LivingPage
from tests.tui.commands_rig import DEMO, ROOT, Captured, run

# --- recordings


def test_a_recording_cut_in_half_is_read_and_said_to_be_cut(tmp_path: Path, capsys: Captured) -> None:
    whole = gzip.decompress(DEMO.read_bytes())
    cut = tmp_path / "cut.om"
    cut.write_bytes(whole[: len(whole) // 2])
    code, out, _ = run(capsys, "once", str(cut))
    assert code == 0
    assert "no # EOF" in out


def test_a_family_behind_the_cut_is_not_called_unsupported(tmp_path: Path, capsys: Captured) -> None:
    """A compressed recording is ordered by family: what is missing may have stood behind the cut."""
    whole = DEMO.read_bytes()
    cut = tmp_path / "cut.om.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    code, out, _ = run(capsys, "once", str(cut))
    assert code == 0
    assert "the recording is cut off" in out
    assert "unsupported here" not in out
    assert "the recording is cut off" not in run(capsys, "once", str(DEMO))[1]


def test_record_survives_a_kill_and_is_mended(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "r.om"
    with Endpoint() as endpoint, LivingPage(endpoint):
        words = [sys.executable, "-m", "tui.cli", "record", endpoint.target, "-o", str(file), "--interval", "100ms"]
        process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while len(endpoint.requests) < 8 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        code, out, _ = run(capsys, "query", "count_over_time(kv:pool_usage_ratio[1m])", str(file), "--json")
        assert code == 0
        assert int(json.loads(out)["result"][0]["value"][1]) >= 6
    assert run(capsys, "record", "--repair", str(file))[0] == 0
    assert file.read_text().endswith("# EOF\n")
    if shutil.which("promtool"):
        made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(file), str(tmp_path / "tsdb")]
        done = subprocess.run(made, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_record_ends_in_order_on_ctrl_c(tmp_path: Path) -> None:
    file = tmp_path / "r.om"
    with Endpoint() as endpoint, LivingPage(endpoint):
        words = [sys.executable, "-m", "tui.cli", "record", endpoint.target, "-o", str(file), "--interval", "100ms"]
        process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(endpoint.requests) < 3:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert "samples" in out
    assert file.read_text().endswith("# EOF\n")


def test_record_does_not_overwrite_and_leaves_nothing_behind(tmp_path: Path, capsys: Captured) -> None:
    there = tmp_path / "there.om"
    there.write_text("mine")
    with Endpoint(behaviour="html") as endpoint:
        assert run(capsys, "record", endpoint.target, "-o", str(there), "--for", "200ms")[0] == 2
        code, _, err = run(capsys, "record", endpoint.target, "-o", str(tmp_path / "new.om"), "--for", "200ms")
    assert there.read_text() == "mine"
    assert code == 4
    assert "HTML page" in err
    assert not (tmp_path / "new.om").exists()
