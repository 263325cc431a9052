"""The process that asks the driver: ``python -m probes.nvml.child``.

A line in is a question, a line of JSON out the answer. The process ends when its input does, even while a call into the
driver does not come back.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import traceback
from typing import BinaryIO

from probes.nvml.monitor import Answer, Monitor


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    monitor = Monitor()
    while True:
        asked.get()
        answer = _answer(monitor)
        _say(out, answer)
        if answer.ends:
            os._exit(0)


def _answer(monitor: Monitor) -> Answer:
    try:
        return monitor.read()
    except Exception as failure:
        traceback.print_exc()
        return Answer(state="gone", error=f"internal error: {type(failure).__name__}: {failure}", ends=True)


def _say(out: BinaryIO, answer: Answer) -> None:
    try:
        out.write(json.dumps(answer.as_dict()).encode() + b"\n")
        out.flush()
    except BrokenPipeError:
        os._exit(0)


def _listen(asked: queue.SimpleQueue[bytes]) -> None:
    """Each chunk of input is a question; its end is this process's."""
    while chunk := os.read(0, 64):
        asked.put(chunk)
    os._exit(0)


if __name__ == "__main__":
    main()
