"""The bitmap's kernels. Their meaning, in plain PyTorch, stands in `reference.py`."""

from __future__ import annotations

from kvstore.kernels.bitmap.bits import popcount
from kvstore.kernels.bitmap.search import claim_run, claim_scattered, find_run, read_words
from kvstore.kernels.language import jit, tl


@jit
def admit(state, want):
    """1 if `want` slots are ours to look for: the free count is lowered by them in one step, or not at all.

    Everybody lowers the count before it takes a bit, and raises it after it has set bits again. So whoever was admitted
    finds its slots, at the latest when those who try a run in vain have given it back.
    """
    have = tl.atomic_add(state, 0)
    admitted = 0
    while (have >= want) & (admitted == 0):
        seen = tl.atomic_cas(state, have, have - want)
        if seen == have:
            admitted = 1
        have = seen
    return admitted


@jit
def take_runs(words, n_words, origin, want, out, FINEST: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """One run of `want`, else runs of half as many, a quarter … `FINEST` slots. How many slots were taken."""
    taken = 0
    piece = want
    begin = origin
    lost = 0
    while (taken < want) & (piece > 0):
        piece = tl.minimum(piece, want - taken)
        start = find_run(words, n_words, begin, piece, BLOCK)
        claimed = 0
        if start >= 0:
            claimed = claim_run(words, start, piece, GROUP)
        if claimed == 1:
            store_run(out + taken, start, piece, BLOCK)
            taken += piece
        else:
            # A run lost to somebody else is looked for again, but not for ever.
            wrap = (start < 0) & (begin > 0)
            lost = tl.where(start >= 0, lost + 1, tl.where(wrap, lost, 4))
            begin = tl.where(wrap, 0, begin)
            if lost >= 4:
                lost = 0
                begin = origin
                piece = tl.where(piece // 2 >= FINEST, piece // 2, 0)
    return taken


@jit
def store_run(out, start, length, BLOCK: tl.constexpr):
    """`out[i] = start + i`, `length` times."""
    begin = 0
    while begin < length:
        next = begin + tl.arange(0, BLOCK)
        tl.store(out + next, start + next, mask=next < length)
        begin += BLOCK


@jit
def take_scattered(words, n_words, origin, taken, want, out, PATIENCE: tl.constexpr, GROUP: tl.constexpr):
    """Single slots, those of `origin`'s group of words first, round and round until `want` are taken.

    How many were taken: fewer only after `PATIENCE` rounds in vain, which a count that tells the truth does not allow.
    """
    begin = origin // 32 // GROUP * GROUP
    vain = 0
    while (taken < want) & (vain < PATIENCE):
        got = 0
        passed = 0
        while (passed < n_words + GROUP) & (taken + got < want):
            got += claim_scattered(words, n_words, begin, want - taken - got, out + taken + got, GROUP)
            begin = tl.where(begin + GROUP < n_words, begin + GROUP, 0)
            passed += GROUP
        taken += got
        vain = tl.where(got == 0, vain + 1, 0)
    return taken


@jit
def request(
    words, state, want, mine, n_words, slots, width,
    FINEST: tl.constexpr, PATIENCE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """`want` slots into `mine` `[width]`, or none. How many."""
    taken = 0
    admitted = 0
    if (want > 0) & (want <= width):
        admitted = admit(state, want)
    if admitted == 1:
        # Each looks from a place of its own on, as far from the next as it wants: where all is free, nobody meets.
        origin = (tl.atomic_add(state + 1, want) & 0x7FFFFFFF) % slots
        taken = take_runs(words, n_words, origin, want, mine, FINEST, BLOCK, GROUP)
        taken = take_scattered(words, n_words, origin, taken, want, mine, PATIENCE, GROUP)
        if taken < want:
            undo(words, mine, taken)
            tl.atomic_add(state + 5, 1)
            taken = 0
    if (want > 0) & (taken == 0):
        tl.atomic_add(state + 2, 1)
    return taken


@jit(unspecialised=("width",))
def allocate(
    words, state, counts, out, n_words, slots, width,
    FINEST: tl.constexpr, PATIENCE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A request a program: its row of `out` `[requests, width]` gets its slots and -1 behind them; only -1 if refused.

    The numbers behind `state` are those of `state.py`.
    """
    number = tl.program_id(0)
    mine = out + number.to(tl.int64) * width
    want = tl.load(counts + number)
    taken = request(words, state, want, mine, n_words, slots, width, FINEST, PATIENCE, BLOCK, GROUP)
    begin = taken
    while begin < width:
        next = begin + tl.arange(0, BLOCK)
        tl.store(mine + next, tl.full([BLOCK], -1, tl.int32), mask=next < width)
        begin += BLOCK


@jit
def undo(words, mine, taken):
    """The first `taken` slots of the row `mine` are free again. The count stays: it was what lied."""
    tl.debug_barrier()  # the row was written by other threads of this program
    at = 0
    while at < taken:
        slot = tl.load(mine + at)
        tl.atomic_or(words + slot // 32, 1 << (slot % 32))
        at += 1


@jit(unspecialised=("n",))
def release(words, state, slots, n, total, BLOCK: tl.constexpr):
    """`n` entries of `slots` are free again; below 0: skipped. The count rises by those that were not free."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + at, mask=at < n, other=-1)
    known = (slot >= 0) & (slot < total)
    bit = tl.full([BLOCK], 1, tl.uint32) << (slot & 31).to(tl.uint32)
    had = tl.atomic_or(words + slot // 32, bit.to(tl.int32, bitcast=True), mask=known)
    again = known & ((had.to(tl.uint32, bitcast=True) & bit) != 0)
    twice = tl.sum(again.to(tl.int32), 0)
    strange = tl.sum((slot >= total).to(tl.int32), 0)
    freed = tl.sum(known.to(tl.int32), 0) - twice
    if freed > 0:
        tl.atomic_add(state, freed)
    if twice > 0:
        tl.atomic_add(state + 3, twice)
    if strange > 0:
        tl.atomic_add(state + 4, strange)


@jit
def count(words, out, n_words, BLOCK: tl.constexpr):
    """Adds the set bits of the words to `out[0]`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(popcount(read_words(words, at, at < n_words)), 0))
