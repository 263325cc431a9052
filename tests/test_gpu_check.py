"""`benchmarks/gpu_check.py`: runs without a GPU, finds broken kernels, and survives sections that fail."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

import gpu_check  # noqa: E402 - a script
from gpu import kineto, runner, wheels  # noqa: E402 - and its parts
from gpu.check import Check  # noqa: E402
from gpu.results import exit_code, table, write  # noqa: E402
from gpu.rows import FAILED, MET, MISSED, RIGHT, SKIPPED, UNFINISHED, WRONG, Row  # noqa: E402
from gpu.runner import Found, Orders, Runner  # noqa: E402
from gpu.sections import SECTIONS, Section, named  # noqa: E402
from gpu.tally import Tally  # noqa: E402

from tests.probes.nvml import machines  # noqa: E402
from tests.probes.nvml.machines import Machine  # noqa: E402

HAS_KERNELS = all(importlib.util.find_spec(name) is not None for name in ("torch", "triton"))
kernels = pytest.mark.skipif(not HAS_KERNELS, reason="torch or triton is not installed (extra cuda)")


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, as a user calls it."""
    given = {**os.environ, **environment}
    given.pop("OUT", None)
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, env=given, timeout=300, check=False)


# --- without a GPU --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """One run of everything that a CPU can show."""
    if not HAS_KERNELS:
        pytest.skip("torch or triton is not installed (extra cuda)")
    out = tmp_path_factory.mktemp("out")
    return call("--cpu", "--seed", "5", "--out", str(out)), out


def test_the_whole_of_it_runs_without_a_gpu(whole: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, out = whole
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("nothing is wrong: ")
    (path,) = out.glob("gpu-cpu-*.json")
    found = json.loads(path.read_text())
    assert found["schema"] == "kvscope.gpu-check/1"
    assert found["facts"]["interpreted"] is True
    assert found["facts"]["seed"] == 5
    rows = [Row.of(row) for row in found["rows"]]
    assert {row.section for row in rows} == {section.name for section in SECTIONS}
    assert not [row for row in rows if row.state in (WRONG, FAILED)]
    for section in SECTIONS:
        states = {row.state for row in rows if row.section == section.name}
        if section.needs_gpu:
            assert states == {SKIPPED}
            assert all("no CUDA device" in row.note for row in rows if row.section == section.name)
        else:
            assert states - {SKIPPED}, f"{section.name} has shown nothing"


def test_every_operator_was_checked(whole: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    from gpu.ops import NAMES

    (path,) = whole[1].glob("gpu-cpu-*.json")
    rows = json.loads(path.read_text())["rows"]
    right = {row["name"].split()[0].rstrip(",") for row in rows if row["state"] == RIGHT}
    assert set(NAMES) <= right
    assert {row["name"] for row in rows if row["section"] == "operators"} == {f"opcheck {name}" for name in NAMES}


def test_a_trace_is_kept_and_names_no_machine(whole: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    path = whole[1] / "trace-resident.json"
    text = path.read_text()
    assert len(text) <= 300_000
    names = [event["name"] for event in json.loads(text)["traceEvents"]]
    assert any(name.startswith("kv.step|") for name in names)
    assert str(ROOT) not in text


# --- broken kernels -------------------------------------------------------------------------------------------------

BREAK = """
import importlib, json, sys, time
from gpu import check_append, check_bitmap, check_decode, check_moves
from gpu.check import Check
# One case of each kind is enough to find them; the allocator under contention does not call what is broken here.
check_append.DTYPES, check_moves.DTYPES = check_append.DTYPES[:1], check_moves.DTYPES[:1]
check_append.FP8 = check_append.FP8[:1]
check_bitmap.trials, check_bitmap.contended = lambda cpu: [check_bitmap.Trial(70, 0.6, 4)], lambda check: None
small, check_decode.cases = check_decode.cases(True), lambda cpu: small[:1] + small[2:3]
for kernel, module in json.loads(sys.argv[1]):
    rows = []
    check = Check(module, True, 11, time.monotonic() + 600, rows.append, kernel)
    importlib.import_module("gpu." + module).run(check)
    print(json.dumps([kernel, [row.as_dict() for row in rows]]))
"""
FOUND_BY = {
    "gather": "check_moves",
    "scatter": "check_moves",
    "append": "check_append",
    "block_table_update": "check_tables",
    "token_slots": "check_tables",
    "page_table": "check_tables",
    "bitmap_allocate": "check_bitmap",
    "bitmap_free": "check_bitmap",
    "bitmap_count": "check_bitmap",
    "paged_decode": "check_decode",
}


@kernels
def test_a_broken_kernel_is_found_and_no_other_is_blamed() -> None:
    environment = {**runner.environment(cpu=True), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-P", "-c", BREAK, json.dumps(sorted(FOUND_BY.items()))]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = dict(json.loads(line) for line in done.stdout.splitlines())
    assert set(told) == set(FOUND_BY)
    for kernel, rows in told.items():
        wrong = {row["name"].split()[0].rstrip(",") for row in rows if row["state"] == WRONG}
        # What the allocator gave away twice is what giving back and counting go by.
        others = {"bitmap_free"} if kernel.startswith("bitmap") else set()
        assert kernel in wrong
        assert wrong <= {kernel} | others


# --- sections that fail ---------------------------------------------------------------------------------------------

FAILING = """
import os, time
def run(check):
    check.right("before", None)
    {}
"""


@pytest.fixture
def sections(tmp_path: Path) -> dict[str, Section]:
    """Sections that raise, die, leave the GPU in error, hang, do well, and tell which kernel they were to break. They
    compute nothing: of torch and triton a worker asks the version, and without them it is there in no time."""
    (tmp_path / "torch.py").write_text('__version__ = "none"\nclass version:\n    cuda = None\n')
    (tmp_path / "triton.py").write_text('__version__ = "none"\n')
    bodies = {
        "raises": 'raise ValueError("something\\nlong")',
        "dies": "os.kill(os.getpid(), 9)",
        "errs": f"raise SystemExit({runner.GPU_IN_ERROR})",
        "hangs": "time.sleep(600)",
        "well": 'check.right("after", 1.0, "of it")',
        "wrong": 'check.wrong_number("it", check.wrong)',
    }
    for name, body in bodies.items():
        (tmp_path / f"section_{name}.py").write_text(FAILING.format(body))
    return {name: Section(name, f"section_{name}", 1.0) for name in bodies}


def test_a_section_that_fails_costs_no_other(
    sections: dict[str, Section], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 1.0)
    orders = Orders(cpu=True, seed=1, limit_s=200, paths=(str(tmp_path),))
    failing = [section for name, section in sections.items() if name != "wrong"]
    found = Runner(orders, lambda row: None).run(failing)
    told = {section: [row for row in found.rows if row.section == section] for section in sections}
    assert [row.state for row in told["raises"]] == [RIGHT, FAILED]
    assert told["raises"][1].note == "ValueError: something"
    assert [row.state for row in told["dies"]] == [RIGHT, FAILED]
    assert "signal 9" in told["dies"][1].note
    assert [row.name for row in told["errs"]] == ["before", "GPU"]
    assert "left in error" in told["errs"][1].note
    assert [row.state for row in told["hangs"]] == [RIGHT, UNFINISHED]
    assert "was killed" in told["hangs"][1].note
    assert [row.state for row in told["well"]] == [RIGHT, RIGHT]
    assert exit_code(found) == 1


def test_a_wrong_number_is_the_exit_code(
    sections: dict[str, Section], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "named", lambda names: [sections["well"], sections["wrong"]])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gpu_check.check(gpu_check.arguments(["--cpu", "--wheels", "none", "--wrong", "page_table"])) == 1
    lines = capfd.readouterr().out.splitlines()
    assert "wrong: it  WRONG  (page_table)" in lines
    assert lines[-1] == "something is WRONG: 3 right, 1 WRONG"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_no_worker_outlives_the_command(end: signal.Signals, sections: dict[str, Section], tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    chatter = "[(check.right('on and on', 1.0), time.sleep(0.01)) for _ in range(60_000)]"
    body = f"open({str(mark)!r}, 'w').write(str(os.getpid())); {chatter}"
    (tmp_path / "section_hangs.py").write_text(FAILING.format(body))
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    words = [sys.executable, "-c", ALONE, str(tmp_path)]
    errors = tmp_path / "errors"
    with (
        errors.open("w") as told,
        subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=told) as command,
    ):
        assert soon(lambda: mark.exists() and mark.read_text())
        command.send_signal(end)
        command.wait(30)
    worker = int(mark.read_text())
    assert soon(lambda: not alive(worker)), "the worker goes on by itself"
    assert not errors.read_text()


ALONE = """
import signal, sys
from gpu.runner import Orders, Runner
from gpu.sections import Section
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
orders = Orders(cpu=True, seed=1, limit_s=200, paths=(sys.argv[1],))
Runner(orders, lambda row: None).run([Section("hangs", "section_hangs", 100.0)])
"""


def soon(true: Callable[[], object], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    """Whether a process is there, and no zombie that waits for its parent."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_what_had_no_time_is_named(sections: dict[str, Section], tmp_path: Path) -> None:
    orders = Orders(cpu=True, seed=1, limit_s=1.0, paths=(str(tmp_path),))
    found = Runner(orders, lambda row: None).run([sections["well"], sections["raises"]])
    assert [(row.section, row.state) for row in found.rows] == [("well", UNFINISHED), ("raises", UNFINISHED)]
    assert exit_code(found) == 1
    assert table(found).splitlines()[-1] == "NOT FINISHED, and nothing is wrong so far: 2 NOT FINISHED"


def test_what_cannot_be_run_here_is_one_line(tmp_path: Path) -> None:
    if HAS_KERNELS:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
    done = call("--only", "moves", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    expected = (
        "no CUDA device here; --cpu" if HAS_KERNELS else "not installed: pip install '.[cuda]' in kvscope's checkout"
    )
    assert expected in done.stderr.strip().splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_section_that_there_is_not_is_a_usage_error() -> None:
    done = call("--cpu", "--only", "moves,nonsense")
    assert done.returncode == 2
    assert "no section 'nonsense'; there are " in done.stderr
    assert [section.name for section in named("tables, moves")] == ["moves", "tables"]


# --- what is told ---------------------------------------------------------------------------------------------------


def test_a_missed_aim_is_not_wrong_and_is_marked(tmp_path: Path) -> None:
    rows = [Row("a", "right one", RIGHT), Row("a", "slow", MISSED, 0.5, "of the copy rate", ">= 0.85")]
    found = Found(rows, {"gpu": "some GPU"})
    assert exit_code(found) == 0
    assert "MISSED" in table(found)
    assert table(found).splitlines()[-1] == "nothing is wrong: 1 right, 1 MISSED"
    data, page = write(found, tmp_path)
    assert json.loads(data.read_text())["rows"][1]["aim"] == ">= 0.85"
    assert "| a | slow | **MISSED** | 0.5 of the copy rate (aim >= 0.85) |  |" in page.read_text()


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([WRONG, FAILED, UNFINISHED], "something is WRONG: "),
        ([FAILED, UNFINISHED], "something FAILED: "),
        ([UNFINISHED], "NOT FINISHED, and nothing is wrong so far: "),
    ],
)
def test_only_a_wrong_number_is_called_wrong_but_all_of_them_are_1(states: list[str], said: str) -> None:
    found = Found([Row("a", "b", RIGHT), *(Row("a", "c", state) for state in states)])
    assert exit_code(found) == 1
    assert table(found).splitlines()[-1].startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((f"--limit={limit}", f"--limit {limit}: seconds are") for limit in ("nan", "-1", "0", "inf")),
        *((f"--seed={seed}", f"--seed {seed}: 0 … 4294967295 can be") for seed in ("-1", "4294967296", "9" * 20)),
    ],
)
def test_a_number_that_is_none_is_a_usage_error(words: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        gpu_check.check(gpu_check.arguments(["--cpu", words]))


def test_nothing_checked_is_not_well() -> None:
    for rows in ([], [Row("a", "section", SKIPPED)]):
        assert exit_code(Found(rows)) == 1
        assert table(Found(rows)).splitlines()[-1].startswith("NOTHING was checked")


def test_what_was_not_compared_for_want_of_time_is_not_finished() -> None:
    rows: list[Row] = []
    tally = Tally(Check("decode", True, 1, 0.0, rows.append), "paged_decode")
    tally.leave_out(3)
    tally.tell()
    assert [row.state for row in rows] == [UNFINISHED]


def test_a_run_that_only_skips_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.check(gpu_check.arguments(["--cpu", "--only", "telemetry,nsys", "--wheels", "none"])) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "NOTHING was checked: 2 skipped"


# --- traces ---------------------------------------------------------------------------------------------------------


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def test_the_busy_time_of_a_gpu_counts_what_overlaps_once() -> None:
    events = [
        event("user_annotation", "kv.step|0", 0, 100),
        event("kernel", "a", 10, 20),
        event("kernel", "b", 20, 30),
        event("gpu_memcpy", "c", 70, 10),
        event("cpu_op", "d", 0, 90),
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]
    found = kineto.activity(events, 2)
    assert found is not None
    assert (found.steps, found.busy_s, found.span_s) == (2, pytest.approx(50e-6), pytest.approx(100e-6))
    assert found.idle == pytest.approx(0.5)
    assert kineto.activity(events[:1] + events[4:], 2) is None, "no work of a GPU is no idle GPU"


def test_a_trace_is_trimmed_to_its_size_and_keeps_what_joins_it() -> None:
    steps = 400
    events = [event("cpu_op", "aten::linear", t, 5, Sequence=t) for t in range(steps)]
    events += [event("cuda_runtime", "cudaLaunchKernel", t, 1, correlation=t, cbid=211) for t in range(steps)]
    events += [event("kernel", "k" * 400, t + 0.5, 1, correlation=t, stream=7) for t in range(steps)]
    whole = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": 12345,
        "hostname": "secret",
        "deviceProperties": [{"id": 0, "name": "GPU", "uuid": "secret"}],
        "traceEvents": [*events, {"ph": "M", "name": "process_labels", "args": {"labels": "secret"}}],
    }
    assert len(kineto.trim(whole, 10**9)["traceEvents"]) == len(events)
    for most in (90_000, 20_000):
        trimmed = kineto.trim(whole, most)
        text = json.dumps(trimmed, separators=(",", ":"))
        assert len(text) <= most
        assert "secret" not in text
        kept = {event["cat"] for event in trimmed["traceEvents"]}
        assert kept == {"kernel", "cuda_runtime"}
        launched = {event["args"]["correlation"] for event in trimmed["traceEvents"] if event["cat"] == "cuda_runtime"}
        worked = {event["args"]["correlation"] for event in trimmed["traceEvents"] if event["cat"] == "kernel"}
        assert len(launched & worked) >= 0.9 * len(worked) > 0
    assert trimmed["baseTimeNanoseconds"] == 12345


# --- wheels ---------------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, tags: str, files: dict[str, str]) -> Path:
    path = folder / f"{name}-1.0-{tags}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path


def test_wheels_that_are_missing_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    here = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    files = {"kvscope_some_wheel.py": "number = 1", "kvscope_w-1.0.data/purelib/kvscope_beside.py": "number = 2"}
    wheel(tmp_path, "kvscope_w", "py3-none-any", files)
    wheel(tmp_path, "kvscope_old", "cp27-cp27m-linux_x86_64", {"kvscope_old.py": ""})
    wheel(tmp_path, "pytest", "py3-none-any", {"pytest.py": "raise ImportError"})
    wheel(tmp_path, "kvscope_stable", f"cp38-abi3-manylinux2014_{os.uname().machine}", {"kvscope_stable.py": ""})
    wheel(tmp_path, "kvscope_own", f"{here}-{here}-manylinux_2_28_{os.uname().machine}", {"kvscope_own.py": ""})
    wheel(tmp_path, "kvscope_riscv", f"{here}-{here}-manylinux_2_39_riscv64", {"kvscope_riscv.py": ""})
    taken = wheels.use(tmp_path, tmp_path / "unpacked")
    assert sorted(taken) == ["kvscope_own", "kvscope_stable", "kvscope_w"]
    for name, number in (("kvscope_some_wheel", 1), ("kvscope_beside", 2)):
        assert importlib.import_module(name).number == number
    assert sys.path[-1] == str(tmp_path / "unpacked"), "what was there already comes first"


def test_a_wheel_writes_nowhere_else(tmp_path: Path) -> None:
    bad = wheel(tmp_path, "kvscope_bad", "py3-none-any", {"../outside.py": ""})
    with pytest.raises(ValueError, match="no place in it"):
        wheels.unpack(bad, tmp_path / "unpacked")
    assert not (tmp_path / "outside.py").exists()


def test_a_wheel_that_is_none_and_a_folder_that_cannot_be_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "kvscope_torn-1.0-py3-none-any.whl").write_text("torn")
    (tmp_path / "taken").write_text("")
    for words in (["--wheels", str(tmp_path)], ["--wheels", "none", "--out", str(tmp_path / "taken")]):
        done = call("--cpu", "--only", "tables", *words)
        assert done.returncode == 2
        assert done.stderr.startswith("gpu_check.py: ")
        assert str(tmp_path) in done.stderr
        assert "Traceback" not in done.stderr


def test_no_folder_of_wheels_is_no_wheels(tmp_path: Path) -> None:
    assert wheels.use(tmp_path / "none", tmp_path / "unpacked") == []


# --- the GPU's own counters -------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """An H100 of which only the driver's library is not real."""
    if not HAS_KERNELS:
        pytest.skip("torch or triton is not installed (extra cuda)")
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (kvscope[nvml])")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, so no NVML to ask")
    source, library = ROOT / "tests" / "probes" / "nvml" / "stub.c", tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True, timeout=60)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    made = Machine(tmp_path)
    monkeypatch.setenv("KVSCOPE_NVML_STUB", str(made.path))
    made.set(machines.h100())
    return made


def test_gpm_is_read_through_the_probe(machine: Machine) -> None:
    from gpu.telemetry import Probe, peak_of

    probe = Probe("a UUID that NVML spells in another way")
    try:
        assert "gpm_dram_bandwidth_ratio" not in probe.read().values, "one sample is none"
        time.sleep(0.15)
        reading = probe.read()
        machine.change({"gpm.10": 1e9})
        time.sleep(0.15)
        later = probe.read()
    finally:
        probe.close()
    assert reading.values["gpm_dram_bandwidth_ratio"] == pytest.approx(0.9175)
    assert reading.values["pcie_receive_bytes_per_second"] == pytest.approx(2048 * 2**20)
    assert "gpm_dram_bandwidth_ratio" not in later.values
    assert later.states["gpm_dram_bandwidth_ratio"], "the state says why"
    known = SimpleNamespace(name="NVIDIA H200")
    assert peak_of(known, reading) == (4800e9, "by the vendor's table")
    clocked = SimpleNamespace(name="x", memory_bus_width=5120)
    clock = reading.values["memory_clock_max_hertz"]
    assert peak_of(clocked, reading)[0] == pytest.approx(2 * clock * 640)
    assert peak_of(SimpleNamespace(name="x"), reading) == (0.0, "")


def test_a_unit_that_is_wrong_is_a_wrong_number() -> None:
    if not HAS_KERNELS:
        pytest.skip("torch or triton is not installed (extra cuda)")
    from gpu.telemetry import compare

    rows: list[Row] = []
    check = Check("telemetry", False, 1, float("inf"), rows.append)
    for seen in (4.0e12, 2.9e12, 4.0e10, 4.0e14):
        compare(check, "DRAM traffic by GPM", seen, 4.0e12, "")
    compare(check, "DRAM traffic by GPM", 1.0, 0.0, "")
    assert [row.state for row in rows] == [MET, MISSED, WRONG, WRONG, SKIPPED]
