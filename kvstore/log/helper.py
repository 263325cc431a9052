"""One thread that makes segments and writes checkpoints beside the flusher.

Not a `ThreadPoolExecutor`: the interpreter waits for the threads of those when it ends, and a device that no longer
answers would then hold the process for ever.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Helper:
    """Runs what it is given, one after the other."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kv-log-helper", daemon=True)
        self._thread.start()

    def submit(
        self, function: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Its result, once it is its turn."""
        future: Future[Result] = Future()

        def work() -> None:
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put(work)
        return future

    def close(self, timeout_s: float) -> bool:
        """End after what was given before; False when that took longer than `timeout_s`."""
        self._work.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
