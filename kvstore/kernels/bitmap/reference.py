"""What the bitmap's kernels mean, in plain PyTorch: the requests of a batch one after another.

Several programs at once may come to other slots, never to other promises: no slot twice, none lost, all or nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvstore.kernels.bitmap.state import CURSOR, FREE, REFUSED, SHORT, STRANGE, TWICE

_BITS = torch.arange(32, dtype=torch.int64)


def unpack(words: Tensor) -> Tensor:
    """int32 words `[w]` → one flag a slot, `[32 * w]` bool."""
    return ((words.long()[:, None] >> _BITS.to(words.device)) & 1).bool().reshape(-1)


def pack(flags: Tensor) -> Tensor:
    """`[32 * w]` bool → int32 words `[w]`."""
    values = (flags.reshape(-1, 32).long() << _BITS.to(flags.device)).sum(1)
    return torch.where(values >= 2**31, values - 2**32, values).int()


def bitmap_allocate_reference(
    words: Tensor, state: Tensor, counts: Tensor, out: Tensor, slots: int, finest: int = 8
) -> None:
    """As `bitmap_allocate`."""
    flags = unpack(words)
    out.fill_(-1)
    for request, want in enumerate(counts.tolist()):
        if want <= 0:
            continue
        if want > out.shape[1] or want > int(state[FREE]):
            state[REFUSED] += 1
            continue
        state[FREE] -= want
        origin = (int(state[CURSOR]) & 0x7FFFFFFF) % slots
        state[CURSOR] = _int32(int(state[CURSOR]) + want)
        taken = _take_runs(flags, origin, want, finest)
        taken += _take_scattered(flags, origin, want - len(taken))
        if len(taken) < want:
            flags[taken] = True
            state[SHORT] += 1
            state[REFUSED] += 1
            continue
        out[request, :want] = torch.tensor(taken, dtype=out.dtype)
    words.copy_(pack(flags))


def bitmap_free_reference(words: Tensor, state: Tensor, slots: Tensor, total: int) -> None:
    """As `bitmap_free`."""
    flags = unpack(words)
    for slot in slots.reshape(-1).tolist():
        if slot >= total:
            state[STRANGE] += 1
        elif slot >= 0 and flags[slot]:
            state[TWICE] += 1
        elif slot >= 0:
            flags[slot] = True
            state[FREE] += 1
    words.copy_(pack(flags))


def bitmap_count_reference(words: Tensor) -> Tensor:
    """As `bitmap_count`."""
    return unpack(words).sum(dtype=torch.int32).reshape(1)


def first_run(flags: Tensor, origin: int, length: int) -> int:
    """The lowest place, from `origin` on, at which `length` flags are set; -1 if there is none."""
    sums = torch.nn.functional.pad(flags[origin:].long().cumsum(0), (1, 0))
    fits = (sums[length:] - sums[:-length] == length).nonzero()
    return int(fits[0]) + origin if len(fits) else -1


def _take_runs(flags: Tensor, origin: int, want: int, finest: int) -> list[int]:
    taken: list[int] = []
    piece, begin = want, origin
    while len(taken) < want and piece:
        piece = min(piece, want - len(taken))
        start = first_run(flags, begin, piece)
        if start >= 0:
            flags[start : start + piece] = False
            taken += range(start, start + piece)
        elif begin:
            begin = 0
        else:
            begin, piece = origin, piece // 2 if piece // 2 >= finest else 0
    return taken


def _take_scattered(flags: Tensor, origin: int, want: int) -> list[int]:
    turn = origin // 1024 * 1024  # groups of 32 words, that of `origin` first
    places = flags.nonzero().reshape(-1)
    taken: list[int] = torch.cat([places[places >= turn], places[places < turn]])[:want].tolist()
    flags[taken] = False
    return taken


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31
