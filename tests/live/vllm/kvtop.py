"""kvtop as a user starts it: a process, its exit code, and what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.vllm.serve import CHECKOUT

KVTOP = (sys.executable, "-m", "tui.cli")


@dataclass(frozen=True)
class Answer:
    """Exit code and both streams of one finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.out)
        except json.JSONDecodeError as error:
            raise AssertionError(f"no JSON (exit {self.code}): {error}\n{self.out[:400]}\n{self.err[:400]}") from None


def kvtop(*words: str, timeout_s: float = 180.0) -> Answer:
    """Run one command to its end."""
    done = subprocess.run([*KVTOP, *words], cwd=CHECKOUT, capture_output=True, text=True, timeout=timeout_s)
    return Answer(done.returncode, done.stdout, done.stderr)


class Recording:
    """``kvtop record`` in the background, ended the hard way."""

    def __init__(self, target: str, file: Path) -> None:
        self.file = file
        words = [*KVTOP, "record", target, "-o", str(file)]
        self._errors = file.with_suffix(".err").open("w+")
        self._process = subprocess.Popen(
            words, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True
        )

    def await_samples(self, timeout_s: float = 20.0) -> None:
        """Come back once something is in the file."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._errors.seek(0)
                raise AssertionError(f"kvtop record ended with {self._process.returncode}: {self._errors.read()[:400]}")
            if self.file.exists() and self.file.stat().st_size > 0:
                return
            time.sleep(0.1)
        raise AssertionError(f"kvtop record wrote nothing within {timeout_s:.0f} s")

    def kill(self) -> None:
        """kill -9, as a crash would."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()


def standing(diagnosis: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal between two diagnoses of the same minute: verdict, causes with members, open causes."""
    return {
        "verdict": diagnosis["verdict"],
        "findings": [(f["cause"], f["verdict"], f["member"]) for f in diagnosis["findings"]],
        "unknown": sorted({u["cause"] for u in diagnosis["unknown"]}),
        "unexplained": sorted(u["resource"] for u in diagnosis["unexplained"]),
    }
