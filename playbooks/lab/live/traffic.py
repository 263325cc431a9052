"""The lab's clients: a process of their own, told over a pipe what to do from now on.

    python -m playbooks.lab.live.clients CLUSTER_FILE LAYOUT_JSON SEED TRANSPORT

Orders come on standard input, one JSON document a line; on end of input the report goes to standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from kvstore.layout import Layout
from playbooks.lab.live.load import Load, Report

_START_S = 20.0
_END_S = 20.0


class Traffic:
    """A context: the clients work inside it."""

    def __init__(self, cluster: Path, layout: Layout, load: Load, seed: int, transport: str = "auto") -> None:
        module = "playbooks.lab.live.clients"
        self._argv = [sys.executable, "-m", module, str(cluster), layout.as_json(), str(seed), transport]
        self._first = load
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Traffic:
        self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.change(self._first)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def change(self, load: Load) -> None:
        """From now on like this; conversations that run go on as they began."""
        self._order({"load": load.as_json()})

    def scatter(self, shard: int, gap: int) -> None:
        """Hold one block every `gap` slots of a shard's pool, all over it."""
        self._order({"scatter": {"shard": shard, "gap": gap}})

    def report(self) -> Report:
        """End the clients and take what they saw; empty when they died."""
        process = self._running()
        try:
            text, _ = process.communicate(timeout=_END_S)
            return Report(**json.loads(text))
        except (subprocess.TimeoutExpired, ValueError):
            process.kill()
            process.wait()
            return Report(latest_error="the clients ended without a report")

    def _order(self, order: dict[str, object]) -> None:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("the lab's clients ended early; what they said is above") from None

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the clients are not running: use `with Traffic(...)`")
        return self._process


def report_text(report: Report) -> str:
    """As the clients' process prints it."""
    return json.dumps(asdict(report))
