"""Runs the sections in worker processes: each has its time, and none can take the others with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.building import Build
from gpu.rows import FAILED, SKIPPED, UNFINISHED, Row
from gpu.sections import Section

GPU_IN_ERROR = 3
"""Exit code of a worker: an asynchronous error of the GPU stays with its process, the next section needs another."""

LIMIT_S = 345.0
"""Of the whole run: what is left of six minutes goes to Python's start and to the table."""
START_S = 60.0
"""Until a worker says what it runs on: torch is loaded, the GPU made ready."""
GRACE_S = 20.0
"""What a section may take beyond its budget (one compilation, one case more) before its process is ended."""
PARTING_S = 10.0
"""In which a worker that has said all ends by itself."""
LEAST_S = 8.0
"""With less time left a section is not begun."""
_HERE = Path(__file__).resolve().parent


@dataclass(slots=True)
class Found:
    """What the run brought: rows, what it ran on, the seconds of each section; `refused`: why nothing can be run."""

    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """What is asked of all sections alike (see `gpu.check.Check`). `paths`: where wheels were unpacked."""

    cpu: bool
    seed: int
    wrong: str = ""
    out: Path | None = None
    limit_s: float = LIMIT_S
    paths: tuple[str, ...] = ()


class Runner:
    """One run. `show` gets each row as it comes."""

    def __init__(self, orders: Orders, show: Callable[[Row], None]) -> None:
        self._orders = orders
        self._show = show
        self._until = time.monotonic() + orders.limit_s
        self._variables: dict[str, str] = {}
        self.found = Found()

    def run(self, sections: Sequence[Section]) -> Found:
        """All of `sections`, in as many processes as it takes."""
        with contextlib.ExitStack() as stack:
            if not self._orders.cpu:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvscope-flashinfer-")))
                build = Build(folder, environment(False, self._orders.paths))
                stack.callback(build.end)
                self._variables = build.variables
            self._run(sections)
        return self.found

    def _run(self, sections: Sequence[Section]) -> None:
        waiting = []
        for section in sections:
            if self._orders.cpu and section.needs_gpu:
                self._row(Row(section.name, "section", SKIPPED, note=f"no CUDA device: {section.needs_gpu}"))
            else:
                waiting.append(section)
        while waiting:
            if self._left() < LEAST_S:
                for section in waiting:
                    self._row(Row(section.name, "section", UNFINISHED, note="the run's time was over"))
                break
            waiting = self._work(waiting)

    def _work(self, sections: list[Section]) -> list[Section]:
        """One worker on `sections`; those that it did not come to."""
        worker = Worker(self._orders, sections, self._left(), self._variables)
        try:
            return self._listen(worker, sections)
        except BaseException:
            worker.kill()
            raise
        finally:
            worker.end()

    def _listen(self, worker: Worker, sections: list[Section]) -> list[Section]:
        waiting, current, began = list(sections), "", time.monotonic()
        worker.until = min(began + START_S, self._until)
        for message in worker.messages():
            if "refused" in message:
                self.found.refused = message["refused"]
                return []
            if "facts" in message:
                self.found.facts, worker.up = message["facts"], True
            elif "row" in message:
                self._row(Row.of(message["row"]))
            elif "begin" in message:
                current, began = message["begin"], time.monotonic()
                section = waiting.pop(0)
                worker.until = min(began + section.budget_s + GRACE_S, self._until)
                if self._left() < LEAST_S:
                    worker.kill()
                    self._row(Row(current, "section", UNFINISHED, note="the run's time was over"))
                    return waiting
            elif "end" in message:
                self.found.seconds[current] = round(time.monotonic() - began, 2)
                current, worker.until = "", min(time.monotonic() + START_S, self._until)
        code = worker.end()
        if current:
            self._row(Row(current, "section", worker.state, note=worker.ending(time.monotonic() - began)))
            return waiting
        if code in (0, GPU_IN_ERROR):
            return waiting
        # It ended where no section ran: the first one behind is charged, or all if it never came up.
        charged = waiting.pop(0).name if worker.up and waiting else "worker"
        self._row(Row(charged, "start", worker.state, note=worker.ending(time.monotonic() - began)))
        return waiting if worker.up else []

    def _row(self, row: Row) -> None:
        self.found.rows.append(row)
        self._show(row)

    def _left(self) -> float:
        return self._until - time.monotonic()


class Worker:
    """A process of `gpu.worker` in a session of its own, so that what it starts can be ended with it."""

    def __init__(
        self, orders: Orders, sections: Sequence[Section], left_s: float, variables: Mapping[str, str]
    ) -> None:
        self._read, write = os.pipe()
        order = {
            "report": write,
            "parent": os.getpid(),
            "sections": [(section.name, section.module, min(section.budget_s, left_s)) for section in sections],
            "cpu": orders.cpu,
            "seed": orders.seed,
            "wrong": orders.wrong,
            "out": str(orders.out) if orders.out else "",
        }
        self.up = False
        self.until = 0.0
        self._killed = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpu.worker", json.dumps(order)],
            pass_fds=(write,),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env={**environment(orders.cpu, orders.paths), **variables},
            start_new_session=True,
        )
        os.close(write)

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the worker tells, until it has said all, or `until` (monotonic seconds) has passed."""
        rest = b""
        while True:
            ready, _, _ = select.select([self._read], [], [], max(0.0, self.until - time.monotonic()))
            if not ready:
                self.kill()
                return
            piece = os.read(self._read, 1 << 16)
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def kill(self) -> None:
        """End the process and what it started, at once."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> int | None:
        """Its exit code, once it has ended; None where it had to be killed."""
        if not self._killed:
            try:
                self._process.wait(PARTING_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process.wait(START_S)
        if self._read >= 0:
            os.close(self._read)
            self._read = -1
        return None if self._killed else self._process.returncode

    @property
    def state(self) -> str:
        """Of a row about its end: its time was over, or it failed by itself."""
        return UNFINISHED if self._killed else FAILED

    def ending(self, seconds: float) -> str:
        """How it ended, in words."""
        if self._killed:
            return f"did not end within {seconds:.0f} s: its process was killed"
        code = self._process.returncode
        return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with {code}"


def environment(cpu: bool, paths: Sequence[str] = ()) -> dict[str, str]:
    """The worker's: checkout and wheels on its path, Triton's interpreter chosen before anything is imported."""
    found = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    before = os.environ.get("PYTHONPATH", "")
    found["PYTHONPATH"] = os.pathsep.join([str(_HERE.parent), str(_HERE.parent.parent), *paths, before]).rstrip(
        os.pathsep
    )
    if cpu:
        found |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return found
