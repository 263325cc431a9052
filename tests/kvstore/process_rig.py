"""What tests on real shard processes share: a small layout, keys and blocks, clients as processes."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvstore.keys import Chain, Keys, block_keys, root_digest, tail_digest
from kvstore.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = Layout("process-rig", layers=2, head_groups=2, heads=1, head_dim=32, block_tokens=16, window_tokens=128)
"""2 KiB a block, eight a window."""


def some_keys(n: int, seed: int, *, layer: int = 0, group: int = 0) -> Keys:
    """Keys of `n` blocks, other ones for every seed."""
    rng = np.random.default_rng(seed)
    return block_keys([rng.bytes(24) for _ in range(n)], layer, group)


def blocks_for(keys: Keys, version: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that say whose they are: every word is made of the key, the version and its place."""
    words = LAYOUT.block_bytes // 8
    place = np.arange(words, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (keys[:, :1] ^ keys[:, 3:4]) * np.uint64(0x9E3779B97F4A7C15) + place[None] * np.uint64(version + 1)
    return mixed.view(np.uint8)


def chain(tokens: list[int]) -> Chain:
    made = Chain(root_digest(LAYOUT.model_id), LAYOUT.block_tokens)
    made.extend(tokens)
    return made


def tail_keys(of: Chain, session: int) -> Keys:
    """The key of a chain's tail in layer 0, group 0."""
    return block_keys([tail_digest(of.parent, session)], 0, 0, first_index=len(of.digests))


def digests_of(of: Chain) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(b"".join(of.tail_digests()), np.uint8).reshape(-1, 24)


class Helper:
    """A Python process that runs `code` (with `say(...)` and `ask()` for JSON lines); a context manager."""

    _PRELUDE = """
import json, sys
def say(value): print(json.dumps(value), flush=True)
def ask(): return json.loads(sys.stdin.readline())
"""

    def __init__(self, code: str, *args: str, prefix: Sequence[str] = ()) -> None:
        """`prefix`: words before the interpreter's, such as those that make a namespace."""
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", self._PRELUDE + code, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def heard(self, timeout_s: float = 20.0) -> Any:
        """The next thing it says."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        assert ready, "the helper process says nothing"
        line = self.process.stdout.readline()
        assert line, "the helper process has ended"
        return json.loads(line)

    def tell(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
