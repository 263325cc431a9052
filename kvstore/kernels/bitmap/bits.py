"""Bits of packed words, in Triton: what the allocator computes with. Words are uint32; a set bit is a free slot."""

from __future__ import annotations

from kvstore.kernels.language import jit, tl


@jit
def popcount(word):
    """Set bits of each word (the usual sums of pairs, nibbles and bytes)."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@jit
def lowest(word):
    """The number of the lowest set bit; 32 where there is none."""
    return popcount(~word & (word - 1))


@jit
def trailing(word):
    """Set bits from bit 0 on, up to the first clear one."""
    return popcount(word & (~word - 1))


@jit
def leading(word):
    """Set bits from bit 31 down, up to the first clear one."""
    clear = ~word
    clear = clear | (clear >> 1)
    clear = clear | (clear >> 2)
    clear = clear | (clear >> 4)
    clear = clear | (clear >> 8)
    clear = clear | (clear >> 16)
    return 32 - popcount(clear)


@jit
def span(low, high):
    """A word whose bits `low` … `high` - 1 are set; 0 <= low < 32, 0 < high <= 32."""
    ones = tl.full(low.shape, 0xFFFFFFFF, tl.uint32)
    return (ones << low.to(tl.uint32)) & (ones >> (32 - high).to(tl.uint32))


@jit
def runs_within(word, length):
    """Bits at which `length` set bits begin, all within the word."""
    rest = tl.minimum(length, 32)
    for _ in tl.static_range(5):
        step = rest >> 1
        word = word & (word >> step.to(tl.uint32))
        rest -= step
    return tl.where(length <= 32, word, tl.zeros_like(word))
