"""Which blocks of a device pool are free, kept on the device: packed words, or the textbook mistake."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kvstore.bitmap import longest_first, runs_of
from kvstore.device.crossing import Crossing, Ints
from kvstore.errors import PoolExhausted
from kvstore.kernels.bitmap import bitmap_allocate, bitmap_count, bitmap_free, new_bitmap
from kvstore.kernels.bitmap.state import FAULTS

_ALLOCATE, _COUNT = "bitmap.allocate", "bitmap.count"


class DeviceSlots(Protocol):
    """What a pool needs of its bitmap. Slots are int32 on the device; -1 is none."""

    def allocate(self, counts: Ints, there: Tensor) -> Tensor:
        """`[requests, most]`: `counts[i]` slots in row i and -1 behind them. `there` is `counts` on the device."""

    def release(self, slots: Tensor) -> None:
        """`slots` of any shape are free again; -1 is skipped."""

    def free(self) -> int:
        """How many are free, read from the device."""

    def faults(self) -> dict[str, int]:
        """What may never have happened, by what it was, read from the device; empty if it has not."""


class PackedSlots:
    """Words and counters on the device: an allocation is one launch, and its answer stays there."""

    def __init__(self, count: int, crossing: Crossing) -> None:
        self.count = count
        self._crossing = crossing
        self.words, self.state = new_bitmap(count, crossing.device)

    def allocate(self, counts: Ints, there: Tensor) -> Tensor:
        out = torch.empty(len(counts), int(counts.max(initial=1)), dtype=torch.int32, device=there.device)
        bitmap_allocate(self.words, self.state, there, out, self.count)
        return out

    def release(self, slots: Tensor) -> None:
        bitmap_free(self.words, self.state, slots.contiguous(), self.count)

    def free(self) -> int:
        return int(self._crossing.read(_COUNT, bitmap_count(self.words)))

    def faults(self) -> dict[str, int]:
        state = self._crossing.read(_COUNT, self.state).tolist()
        return {what: state[place] for what, place in FAULTS.items() if state[place]}


class NaiveSlots:
    """One boolean a slot on the device, which the host reads for every allocation, and each slot again to be sure:
    `NaiveBitmap` with a real device behind it. Every read waits for all that was launched before."""

    def __init__(self, count: int, crossing: Crossing) -> None:
        self.count = count
        self._crossing = crossing
        self._flags = torch.ones(count + 1, dtype=torch.bool, device=crossing.device)
        """The last one is nobody's: what -1 is written to."""

    def allocate(self, counts: Ints, there: Tensor) -> Tensor:
        out = np.full((len(counts), int(counts.max(initial=1))), -1, np.int32)
        for request, count in enumerate(counts.tolist()):
            out[request, :count] = self._take(count)
        (answer,) = self._crossing.send(_ALLOCATE, out)
        return answer.reshape(out.shape)

    def _take(self, count: int) -> Ints:
        flags = self._crossing.read(_ALLOCATE, self._flags[: self.count]).numpy()
        starts, lengths = runs_of(flags)
        if int(lengths.sum()) < count:
            raise PoolExhausted(f"{count} blocks asked, {int(lengths.sum())} are free")
        fits = np.flatnonzero(lengths >= count)
        slots = starts[fits[0]] + np.arange(count) if len(fits) else longest_first((starts, lengths), count)
        for slot in slots.tolist():
            self._crossing.read(_ALLOCATE, self._flags[slot])
        self._flags[self._crossing.send(_ALLOCATE, slots)[0].long()] = False
        return slots.astype(np.int32)

    def release(self, slots: Tensor) -> None:
        place = torch.where(slots < 0, self.count, slots).reshape(-1).long()
        self._flags.index_fill_(0, place, True)

    def free(self) -> int:
        return int(self._crossing.read(_COUNT, self._flags[: self.count]).sum())

    def faults(self) -> dict[str, int]:
        return {}
