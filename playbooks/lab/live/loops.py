"""Decode loops: processes with a model each and its KV in a pool on a device, each with a page of its own.

    python -m playbooks.lab.live.decode LOOP_JSON

It says where its page is in a line on standard output, decodes until standard input ends, and then prints its report.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import IO, Any, Literal

from kvstore.errors import StoreError
from playbooks.lab.scenarios import Truth

_START_S = 120.0
"""Importing torch, and on a GPU compiling the kernels, on a busy machine."""
_END_S = 20.0


@dataclass(frozen=True)
class Loop:
    """One of them: batches of `rows` sequences, one after the other, `pause_s` (mean) apart.

    `table`: `batched`, or the fault `upload`; `bitmap`: `packed`, or the fault `naive` (`kvstore.device.DevicePool`).
    """

    number: int
    seed: int
    rows: int
    pause_s: float = 4.0
    table: Literal["batched", "upload"] = "batched"
    bitmap: Literal["packed", "naive"] = "packed"


@dataclass(frozen=True)
class LoopReport:
    """What a loop did, for the person who runs the lab; no diagnosis reads it. `device`: `cpu` or a GPU's name."""

    device: str
    steps: int = 0
    tokens: int = 0
    busy_s: float = 0.0


@dataclass
class LoopPlan:
    """What a scenario of decode loops prepares; their fault is there from the start."""

    truth: Truth
    loops: tuple[Loop, ...]
    seconds: float = 120.0


class Loops:
    """A context: the loops decode inside it. Raises `StoreError` with what a loop said when it does not come up."""

    def __init__(self, loops: tuple[Loop, ...]) -> None:
        self._loops = loops
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said: list[IO[bytes]] = []
        self.facts: list[dict[str, Any]] = []

    @property
    def metrics_urls(self) -> list[str]:
        return [str(facts["metrics"]) for facts in self.facts]

    @property
    def devices(self) -> list[str]:
        return [str(facts["device"]) for facts in self.facts]

    def __enter__(self) -> Loops:
        try:
            for loop in self._loops:
                self._begin(loop)
            end = time.monotonic() + _START_S
            self.facts = [self._wait(number, end) for number in range(len(self._loops))]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def reports(self) -> tuple[LoopReport, ...]:
        """End the loops and take what they did. Raises `StoreError` for one that ended early or does not end."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        return tuple(self._report(number) for number in range(len(self._processes)))

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        for said in self._said:
            said.close()

    def _begin(self, loop: Loop) -> None:
        said = tempfile.TemporaryFile()  # noqa: SIM115 - read when it ends early, closed with the process
        self._said.append(said)
        argv = [sys.executable, "-m", "playbooks.lab.live.decode", json.dumps(asdict(loop))]
        # One thread for the numbers of each: four loops share the machine.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._processes.append(
            subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                bufsize=0,
                env=environment,
                process_group=0,  # Ctrl-C in a terminal is ours: it ends them by the pipe
            )
        )

    def _wait(self, number: int, end: float) -> dict[str, Any]:
        pipe, line = self._processes[number].stdout, b""
        assert pipe is not None
        while not line.endswith(b"\n"):
            if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
                raise StoreError(f"decode loop {number} did not come up within {_START_S:g} s")
            more = pipe.read(65_536)
            if not more:
                raise self._early(number)
            line += more
        facts: dict[str, Any] = json.loads(line)
        return facts

    def _report(self, number: int) -> LoopReport:
        process = self._processes[number]
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise StoreError(f"decode loop {number} did not end within {_END_S:g} s") from None
        assert process.stdout is not None
        try:
            return LoopReport(**json.loads(process.stdout.read()))
        except ValueError:
            raise self._early(number) from None

    def _early(self, number: int) -> StoreError:
        process, said = self._processes[number], self._said[number]
        process.wait(_END_S)
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
        return StoreError(f"decode loop {number} ended early: {lines[-1]}")
