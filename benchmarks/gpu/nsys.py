"""The decode loop under Nsight Systems, where it is and works: an export with the GPU's own rows.

python -m gpu.nsys      the program that is profiled
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu.check import Check

MOST_BYTES = 4_000_000
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
PRIVATE = ("TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_NIC_INFO", "EXPORT_META_DATA", "META_DATA_CAPTURE", "ANALYSIS_FILE")
"""Tables that say where the export was made; a reader needs none of them."""
_PLACES = ("/opt/nvidia/nsight-systems/*/bin/nsys", "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys")
_TIMEOUT_S = 40.0
_STEPS = 6


def run(check: Check) -> None:
    tool = find()
    if tool is None:
        check.skipped("nsys", "it is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        why = recorded(tool, Path(folder))
        if why:
            check.skipped("nsys", why)
            return
        export = Path(folder) / "report.sqlite"
        kernels = count(export)
        if not kernels:
            check.skipped("nsys", "its export holds no kernel")
            return
        clean(export)
        size = export.stat().st_size
        if check.out is not None and size <= MOST_BYTES:
            shutil.copy(export, check.out / "nsys-decode-loop.sqlite")
        kept = "nsys-decode-loop.sqlite" if check.out is not None and size <= MOST_BYTES else "not kept"
        check.measured("nsys", kernels, "kernels", f"{size / 1000:,.0f} kB, {kept}")


def find() -> str | None:
    """nsys on the PATH, or where NVIDIA's packages put it."""
    found = shutil.which("nsys")
    places = [str(path) for pattern in _PLACES for path in sorted(Path("/").glob(pattern.lstrip("/")))]
    return found or (places[-1] if places else None)


def recorded(tool: str, folder: Path) -> str:
    """Record and export; why there is none, or nothing."""
    report = folder / "report"
    profile = [
        tool, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true",
        f"--output={report}", sys.executable, "-P", "-m", "gpu.nsys",
    ]  # fmt: skip
    export = [tool, "export", "--type=sqlite", f"--output={report}.sqlite", f"{report}.nsys-rep"]
    for words in (profile, export):
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"nsys {words[1]}: {type(error).__name__}"
        if words is profile and not report.with_suffix(".nsys-rep").exists():
            return f"it made no report: {last(done.stderr or done.stdout)}"
        if words is export and not report.with_suffix(".sqlite").exists():
            return f"it made no export: {last(done.stderr or done.stdout)}"
    return ""


def last(text: str) -> str:
    """The last line that says anything."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def count(export: Path) -> int:
    """Kernels in an export; tables may be absent (each is optional)."""
    with contextlib.closing(sqlite3.connect(export)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if KERNELS not in tables:
            return 0
        return int(database.execute(f"SELECT count(*) FROM {KERNELS}").fetchone()[0])


def clean(export: Path) -> None:
    """Without what names the machine."""
    with contextlib.closing(sqlite3.connect(export)) as database:
        for name in PRIVATE:
            database.execute(f"DROP TABLE IF EXISTS {name}")
        database.commit()
        database.execute("VACUUM")


def main() -> None:
    """Some steps of the loop, each in a range."""
    import torch

    from gpu.decode_loop import Loop, Plan
    from gpu.model import Model, Shape
    from gpu.scenes import Draw

    plan = Plan(Shape(2, 1024, 8, 2, 128, 2048, torch.bfloat16), batch=16, context=256, steps=_STEPS, rounds=1)
    check = Check("nsys", cpu=False, seed=1, until=float("inf"), say=lambda row: None)
    with torch.inference_mode():
        loop = Loop(check, plan, Model(plan.shape, Draw(1, "cuda")), "both faults", 1)
        for _ in range(_STEPS):
            torch.cuda.nvtx.range_push("kv.step")
            loop.step()
            torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
