"""The collective baseline of `kvstore bench fetch`: what one fetch costs when it is an all-gather.

A collective moves everybody's data to everybody, and everybody must take part: for one reader that wants one owner's
blocks, each of two ranks contributes as many, and the owner has to stop what it does. Needs torch (gloo on CPUs; NCCL
where both processes have a GPU would be the same calls).
"""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_READY = b"ready\n"
_STOP = 1


class Gloo:
    """Rank 0, the reader; rank 1, the owner, is a process that does nothing but take part."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self._mine: Any = None
        self._all: list[Any] = []

    def begin(self, size: int) -> None:
        """Fetches of `size` bytes from now on (until `end`)."""
        import torch

        assert self._child.stdin is not None
        self._child.stdin.write(b"%d\n" % size)
        self._child.stdin.flush()
        self._mine = torch.zeros(size, dtype=torch.uint8)
        self._all = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]

    def fetch(self) -> bytes:
        """One all-gather; the first byte of what the owner sent."""
        import torch.distributed as dist

        dist.all_gather(self._all, self._mine)
        return bytes(self._all[1][:1].tolist())

    def end(self) -> None:
        """The owner waits for the next `begin`."""
        self._mine[0] = _STOP
        self.fetch()


@contextlib.contextmanager
def gloo() -> Iterator[Gloo | None]:
    """Two ranks on loopback; None where torch (with gloo) is not installed."""
    if importlib.util.find_spec("torch") is None:
        yield None
        return
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "kvstore.bench.collective", str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            _join(port, 0)
            assert child.stdout is not None
            if child.stdout.readline() != _READY:
                raise RuntimeError("the second rank of the collective did not start")
            yield Gloo(child)
        finally:
            child.kill()
            if dist.is_initialized():
                dist.destroy_process_group()


def describe() -> str:
    """As measured."""
    import torch

    return f"all-gather of two ranks, gloo over loopback, torch {torch.__version__}"


def _join(port: int, rank: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def _owner(port: int) -> None:
    """Rank 1: for every size named on standard input, all-gathers until rank 0 says that it was the last."""
    import torch
    import torch.distributed as dist

    _join(port, 1)
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        mine = torch.full((int(line),), 7, dtype=torch.uint8)
        both = [torch.zeros_like(mine) for _ in range(2)]
        while both[0][0] != _STOP:
            dist.all_gather(both, mine)


if __name__ == "__main__":
    _owner(int(sys.argv[1]))
