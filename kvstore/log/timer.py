"""A wait of some tens of microseconds that ends on time, and a wake-up from other threads.

`time.sleep(100e-6)` takes about 180 µs: the kernel's default timer slack is 50 µs, and it cannot be woken. Here a
timerfd is polled beside an eventfd, and the waiting thread's slack is set to 1 µs.
"""

from __future__ import annotations

import ctypes
import os
import select

_PR_SET_TIMERSLACK = 29
_CLOCK_MONOTONIC = 1
_TFD_CLOEXEC = 0o2000000
_TFD_NONBLOCK = 0o4000
_libc = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


def tighten_slack(nanoseconds: int = 1000) -> bool:
    """Let this thread's timers fire within `nanoseconds`; False where the kernel does not let us."""
    return int(_libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds), 0, 0, 0)) == 0


class NativeTimer:
    """One waiting thread; any thread may `wake` it."""

    def __init__(self) -> None:
        self._timer = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_CLOEXEC | _TFD_NONBLOCK)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), f"timerfd_create: {os.strerror(ctypes.get_errno())}")
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)
        self._timed = select.poll()
        self._timed.register(self._event, select.POLLIN)
        self._timed.register(self._timer, select.POLLIN)
        self._spec = _TimerSpec()

    def wake(self) -> None:
        """End the wait that runs, or the next one."""
        os.eventfd_write(self._event, 1)

    def wait(self) -> None:
        """Until somebody wakes us."""
        self._poll.poll()
        self._drain()

    def wait_for(self, nanoseconds: int) -> None:
        """Until `nanoseconds` have passed or somebody wakes us."""
        if nanoseconds <= 0:
            return
        self._spec.value_s, self._spec.value_ns = divmod(nanoseconds, 1_000_000_000)
        if _libc.timerfd_settime(self._timer, 0, ctypes.byref(self._spec), None) < 0:
            raise OSError(ctypes.get_errno(), f"timerfd_settime: {os.strerror(ctypes.get_errno())}")
        self._timed.poll()
        self._drain()

    def _drain(self) -> None:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self._timer)
        os.close(self._event)
