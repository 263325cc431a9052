"""Host memory that blocks pass through on their way to and from a device."""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.header import Bytes
from kvstore.transport.device.memory import Device

BOUNCE_BYTES = 8 << 20
"""Large enough that a copy's fixed cost (some microseconds) does not show, small enough to stay in a cache (policy)."""


class Bounce:
    """Room for some blocks at a time; made when first used. For one thread."""

    def __init__(self, device: Device, block_bytes: int) -> None:
        self._device = device
        self._block_bytes = block_bytes
        self._blocks = max(1, BOUNCE_BYTES // block_bytes)
        self._room: Bytes | None = None

    def rounds(self, n: int) -> Iterator[tuple[slice, Bytes]]:
        """Rows of `n` blocks and room `[rows, block_bytes]` for them, round by round; the same memory every time."""
        for first in range(0, n, self._blocks):
            last = min(n, first + self._blocks)
            yield slice(first, last), self._rows(last - first)

    def _rows(self, n: int) -> Bytes:
        if self._room is None:
            self._room = self._device.host(self._blocks * self._block_bytes).reshape(-1, self._block_bytes)
        return self._room[:n]
