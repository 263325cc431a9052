"""Finding and claiming free slots, in Triton.

A search reads words that other programs change meanwhile; what it finds is a guess. A claim clears the bits with
atomics and sees which of them it really got: a run that somebody else had a bit of is given back whole.
"""

from __future__ import annotations

from kvstore.kernels.bitmap.bits import leading, lowest, runs_within, span, trailing
from kvstore.kernels.language import jit, tl


@jit
def _later(a, b):
    return tl.maximum(a, b)


@jit
def read_words(words, at, inside):
    """The words at `at`, past the cache that other programs' atomics do not reach; 0 (all taken) outside."""
    return tl.load(words + at, mask=inside, other=0, volatile=True).to(tl.uint32, bitcast=True)


@jit
def not_before(word, at, origin):
    """`word`, the one at `at`, without what lies before slot `origin`."""
    later = tl.full(word.shape, 0xFFFFFFFF, tl.uint32) << (origin % 32).to(tl.uint32)
    return tl.where(at == origin // 32, word & later, word)


@jit
def find_run(words, n_words, origin, length, BLOCK: tl.constexpr):
    """The lowest slot, from slot `origin` on, at which `length` free slots begin; -1 if there is none.

    A run of free slots that reaches into word i begins in the last word before i that is not wholly free. That word's
    number and its free bits at the top are packed into one integer, so that a running maximum brings them along.
    """
    nowhere: tl.constexpr = 0x7FFFFFFF
    first = origin // 32
    carried = first * 64
    begin = first
    found = -1
    while (begin < n_words) & (found < 0):
        at = begin + tl.arange(0, BLOCK)
        word = not_before(read_words(words, at, at < n_words), at, origin)
        before = not_before(read_words(words, at - 1, (at > first) & (at <= n_words)), at - 1, origin)
        broken = tl.where(before == 0xFFFFFFFF, 0, at * 64 + leading(before))
        last = tl.maximum(tl.associative_scan(broken, 0, _later), carried)
        carried = tl.maximum(tl.max(broken, 0), carried)
        starts = (last // 64) * 32 - last % 64
        across = tl.where(at * 32 + trailing(word) - starts >= length, starts, nowhere)
        within = runs_within(word, length)
        inner = tl.where(within != 0, at * 32 + lowest(within), nowhere)
        best = tl.min(tl.where(at < n_words, tl.minimum(across, inner), nowhere), 0)
        if best < nowhere:
            found = best
        begin += BLOCK
    return found


@jit
def give_back_run(words, start, end, GROUP: tl.constexpr):
    """Slots `start` … `end` - 1, all ours, are free again."""
    begin = start // 32
    while begin * 32 < end:
        at = begin + tl.arange(0, GROUP)
        inside = at * 32 < end
        low = tl.minimum(tl.maximum(start - at * 32, 0), 31)
        high = tl.maximum(tl.minimum(end - at * 32, 32), 1)
        tl.atomic_or(words + at, span(low, high).to(tl.int32, bitcast=True), mask=inside)
        begin += GROUP


@jit
def claim_run(words, start, length, GROUP: tl.constexpr):
    """Takes slots `start` … `start + length - 1`, all or none. 1 if they are ours."""
    end = start + length
    begin = start // 32
    ours = 1
    while (begin * 32 < end) & (ours == 1):
        at = begin + tl.arange(0, GROUP)
        inside = at * 32 < end
        low = tl.minimum(tl.maximum(start - at * 32, 0), 31)
        high = tl.maximum(tl.minimum(end - at * 32, 32), 1)
        bits = tl.where(inside, span(low, high), tl.zeros([GROUP], tl.uint32))
        had = tl.atomic_and(words + at, (~bits).to(tl.int32, bitcast=True), mask=inside)
        got = tl.where(inside, had.to(tl.uint32, bitcast=True) & bits, tl.zeros([GROUP], tl.uint32))
        if tl.sum((got != bits).to(tl.int32), 0) > 0:
            tl.atomic_or(words + at, got.to(tl.int32, bitcast=True), mask=inside & (got != 0))
            ours = 0
        else:
            begin += GROUP
    if ours == 0:
        give_back_run(words, start, tl.minimum(begin * 32, end), GROUP)
    return ours


@jit
def claim_scattered(words, n_words, begin, most, out, GROUP: tl.constexpr):
    """Takes at most `most` free slots of the `GROUP` words from `begin` on, lowest first; writes them to `out`. How
    many it got."""
    at = begin + tl.arange(0, GROUP)
    inside = at < n_words
    bit = tl.arange(0, 32).to(tl.uint32)
    word = read_words(words, at, inside)
    free = ((word[:, None] >> bit[None, :]) & 1).to(tl.int32)
    rank = tl.reshape(tl.cumsum(tl.reshape(free, [GROUP * 32]), 0), [GROUP, 32])
    wanted = tl.where((free == 1) & (rank <= most), tl.full([GROUP, 32], 1, tl.uint32) << bit[None, :], 0)
    bits = tl.sum(wanted.to(tl.uint32), 1)
    asked = inside & (bits != 0)
    had = tl.atomic_and(words + at, (~bits).to(tl.int32, bitcast=True), mask=asked)
    got = tl.where(asked, had.to(tl.uint32, bitcast=True) & bits, tl.zeros([GROUP], tl.uint32))
    ours = ((got[:, None] >> bit[None, :]) & 1).to(tl.int32)
    place = tl.reshape(tl.cumsum(tl.reshape(ours, [GROUP * 32]), 0), [GROUP, 32]) - 1
    tl.store(out + place, at[:, None] * 32 + bit[None, :].to(tl.int32), mask=ours == 1)
    return tl.sum(tl.sum(ours, 1), 0)
