"""kvtop beside vllm-htop on the same endpoints in one run: start-up, CPU, memory, and `kvtop once`.

    .venv/bin/python benchmarks/footprint.py [--seconds 20] [--engines 1,16] [--no-peer] [--no-write]

vllm-htop comes from the package index into an environment of its own (.venv/peers). Writes
benchmarks/results/footprint-DATE.md; prints the same table. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from pty_run import Watched, user_env, watch  # noqa: E402 - a script's neighbour

COLUMNS, ROWS = 160, 48
# What stands on the screen only beside data: in kvtop's table of engines, in vllm-htop's detail and table views.
OURS_DATA = "● fresh"
THEIR_DATA = "KV cache usage|{model}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    engines: int
    page_bytes: int
    model: str


@contextlib.contextmanager
def endpoint(engines: int, lifetime: int) -> Iterator[Endpoint]:
    """Serve one page of so many engines from benchmarks/engines_server.py, on loopback."""
    words = ["--engines", str(engines), "--for", str(lifetime)]
    server = subprocess.Popen(
        [sys.executable, str(HERE / "engines_server.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert server.stdout.readline().strip() == "ready"
        with urllib.request.urlopen(url, timeout=10) as answer:
            page = answer.read()
        model = page.decode().split('model_name="', 1)[1].split('"', 1)[0]
        yield Endpoint(url, engines, len(page), model)
    finally:
        server.terminate()
        server.wait(timeout=10)


def peer() -> Path:
    """The peer's command, installed on first use."""
    home = ROOT / ".venv" / "peers" / "vllm-htop"
    command = home / "bin" / "vllm-htop"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "-q", "vllm-htop"], check=True)
    return command


def kvtop() -> str:
    return str(Path(sys.executable).with_name("kvtop"))


def once_times(url: str, runs: int = 9) -> list[float]:
    """Wall seconds of `kvtop once URL`, process start included."""
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([kvtop(), "once", url], check=True, stdout=subprocess.DEVNULL, env=user_env())
        took.append(time.perf_counter() - start)
    return took


def loaded(words: list[str]) -> tuple[int, list[str]]:
    """How many modules a kvtop command loads, and which of the heavy ones."""
    spy = "import sys, json, tui.cli as c; c.main(sys.argv[1:]);print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", spy, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    names = json.loads(done.stderr.splitlines()[-1])
    tops = {name.split(".")[0] for name in names}
    return len(names), sorted(
        tops & {"textual", "rich", "torch", "numpy", "yaml", "promql_parser", "asyncio", "h11", "ssl"}
    )


def machine() -> str:
    model = "unknown processor"
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({model}), {system}"


def versions(with_peer: bool) -> str:
    ours = subprocess.run([kvtop(), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if not with_peer:
        return ours
    return ours + ", " + subprocess.run([str(peer()), "--version"], capture_output=True, text=True).stdout.strip()


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


def row(name: str, end: Endpoint, one: Watched, quit_s: float | None) -> str:
    cells = [
        name,
        str(end.engines),
        f"{end.page_bytes / 1000:.0f}",
        seconds(one.first_byte_s),
        seconds(one.first_data_s),
        f"{one.cpu_percent:.1f}",
        f"{one.rss_mb:.0f}",
        seconds(quit_s),
    ]
    return "| " + " | ".join(cells) + " |"


def compare(end: Endpoint, span: float, with_peer: bool) -> tuple[list[str], Watched]:
    """Rows for one endpoint: ours, the peer's, and the ratio of the two; and our own measures."""
    ours, our_quit = watch([kvtop(), end.url], OURS_DATA, span, COLUMNS, ROWS)
    rows = [row("kvtop", end, ours, our_quit)]
    if with_peer:
        base = end.url.removesuffix("/metrics")
        argv = [str(peer()), "--url", base, "--interval", "1", "--no-gpu-detect"]
        theirs, their_quit = watch(argv, THEIR_DATA.format(model=end.model), span, COLUMNS, ROWS)
        rows.append(row("vllm-htop", end, theirs, their_quit))
        if ours.first_data_s and theirs.first_data_s and theirs.cpu_percent:
            rows.append(
                f"| kvtop ÷ vllm-htop | {end.engines} | | | {ours.first_data_s / theirs.first_data_s:.2f} "
                f"| {ours.cpu_percent / theirs.cpu_percent:.2f} | {ours.rss_mb / theirs.rss_mb:.2f} | |"
            )
    return rows, ours


# What kvtop is built to: seconds, percent of a core, MB; those of CPU and memory for one engine and for more.
AIM_DATA_S, AIM_ONCE_S = 0.6, 0.4
AIM_CPU, AIM_RSS = (5.0, 15.0), (80.0, 100.0)


def aims(engines: int, ours: Watched, once_s: float) -> list[str]:
    """One row an aim, missed ones marked as missed."""
    several = int(engines > 1)
    wanted = [
        ("first data, s", ours.first_data_s, AIM_DATA_S, ".2f"),
        ("`kvtop once`, median s", once_s, AIM_ONCE_S, ".2f"),
        ("CPU, %", ours.cpu_percent, AIM_CPU[several], ".1f"),
        ("RSS, MB", ours.rss_mb, AIM_RSS[several], ".0f"),
    ]
    rows = []
    for name, value, aim, form in wanted:
        told = "never" if value is None else format(value, form)
        verdict = "met" if value is not None and value <= aim else "**missed**"
        rows.append(f"| {name} | {engines} | {aim:g} | {told} | {verdict} |")
    return rows


def compile_rooms() -> None:
    """As an installed package is: its byte code is there before the first start."""
    rooms = [str(ROOT / room) for room in ("probes", "playbooks", "exporters", "tui")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *rooms], check=True, env=user_env())


def report(engines: list[int], span: float, with_peer: bool) -> str:
    compile_rooms()
    load = os.getloadavg()[0]
    table, once, aimed = [], [], []
    for count in engines:
        with endpoint(count, round(2 * (span + 16) + 30)) as end:
            rows, ours = compare(end, span, with_peer)
            table += rows
            took = once_times(end.url)
            aimed += aims(count, ours, statistics.median(took))
            modules, heavy = loaded(["once", end.url])
            once.append(
                f"| {count} | {statistics.median(took):.2f} | {min(took):.2f} | {max(took):.2f} "
                f"| {modules} | {', '.join(heavy)} |"
            )
    return "\n".join(
        [
            f"# Footprint, {datetime.date.today()}",
            "",
            f"{versions(with_peer)}; {machine()}; load before the run {load:.1f}.",
            f"Pseudo-terminal {COLUMNS}×{ROWS}, 1 Hz; CPU over {span:.0f} s after the first 4 s, as percent of one "
            "core; resident memory at the end.",
            "First data: the first number of an engine is on the screen. Same endpoint, one after the other.",
            "",
            "| tool | engines | page kB | first byte s | first data s | CPU % | RSS MB | quit s |",
            "|---|---|---|---|---|---|---|---|",
            *table,
            "",
            "`kvtop once`, wall time of the whole process (nine runs):",
            "",
            "| engines | median s | min s | max s | modules | of note |",
            "|---|---|---|---|---|---|",
            *once,
            "",
            "Aims (at most):",
            "",
            "| measure | engines | aim | measured | |",
            "|---|---|---|---|---|",
            *aimed,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--engines", default="1,16")
    parser.add_argument("--no-peer", action="store_true", help="leave vllm-htop out")
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    text = report([int(n) for n in args.engines.split(",")], args.seconds, not args.no_peer)
    print(text)
    if not args.no_write:
        path = HERE / "results" / f"footprint-{datetime.date.today()}.md"
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
