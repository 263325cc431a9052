"""What a block size costs, for one setting and one distribution of lengths.

Time is compared with *attention time*: the bytes of KV that the decode steps read, at the memory's peak rate. A decode
step's attention is bound by them: two operations (a multiplication and an addition) a query head and element, against
hundreds that a GPU could do in the time that it takes to read one (the roofline of Williams, Waterman and Patterson,
CACM 2009). Real kernels take longer, so the shares here are upper bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.replay.trace import WINDOW_TOKENS
from kvstore.tune.lengths import Lengths
from kvstore.tune.setting import Setting

ENTRY_BYTES = 4
"""Of a block table: one int32 a block, for all layers (`kvstore.table`)."""

COPY_S = 2e-6
"""What one copy or descriptor costs beside its bytes. The latency that the runbook `descriptor-explosion` counts with:
50 GB/s · 2 µs = 100 kB, below which the time goes per descriptor."""

ALLOCATE_S = 14e-6
"""One call of the packed bitmap, on a host: 13 to 15 µs measured for 1 and for 32 of 524,288 slots."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """`moved` says what is brought into the pool by copies: `prefix` (what the prompts share with earlier ones, as
    after a hit in another tier), `prompt` (all of it, as when prefill runs elsewhere) or `nothing`."""

    moved: str = "prefix"
    copy_s: float = COPY_S
    allocate_s: float = ALLOCATE_S


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one block size. Bytes are a rank's; shares are 0 … 1; `*_time` are shares of the attention time."""

    block_tokens: int
    block_bytes: int
    blocks: int
    """Blocks of one layer that the pool holds (each counted once for all layers)."""
    table_bytes: int
    """A dense block table: a row for each request that fits, a column for each block of the longest."""
    metadata_share: float
    """Of the card's memory: headers with their padding, block table, bitmap."""
    tail_waste: float
    """Allocated slots without a token, over time."""
    prefix_loss: float | None
    """Tokens of shared prefixes that whole blocks cannot share; None: nothing is known of prefixes."""
    window_copies: int
    """Copies of a window of 512 tokens, all layers, each block by itself."""
    fetch_time: float
    """Copies that bring in what is moved, each block by itself: their number times `copy_s`, and the bytes, read and
    written."""
    run_fetch_time: float
    """The same where a window is one run, and one copy a layer."""
    tail_time: float
    """What appends rewrite of their tails, read and written."""
    paging_time: float
    """Calls of the allocator, and the block table that the steps read."""
    requests: int
    """How many fit at once, each with the blocks that it holds on average; prefixes not shared."""

    @property
    def copy_time(self) -> float:
        return self.fetch_time + self.tail_time

    @property
    def run_copy_time(self) -> float:
        return self.run_fetch_time + self.tail_time


def costs(setting: Setting, lengths: Lengths, block_tokens: int, given: Assumptions) -> Costs:
    """The figures of one size, which divides a window. Lengths must have decode steps (`attended` > 0)."""
    layout, layers = setting.layout(block_tokens), setting.model.layers
    blocks = int(setting.pool_bytes // (layout.slot_bytes * layers))
    requests = int(blocks / lengths.mean_blocks(block_tokens))
    table = ENTRY_BYTES * max(1, requests) * -(-int(lengths.final.max()) // block_tokens)
    beside = (layout.slot_bytes - layout.block_bytes) * layers * blocks
    read_s = 1 / setting.card.bytes_per_s
    attention_s = lengths.attended * setting.token_bytes * read_s
    moved_blocks, moved_windows = _moved(lengths, block_tokens, given.moved)
    bytes_s = 2 * moved_blocks * layout.block_bytes * layers * read_s
    entries = lengths.blocks_read(block_tokens) * layers * setting.heads
    paging_s = lengths.allocations(block_tokens) * given.allocate_s + entries * ENTRY_BYTES * read_s
    return Costs(
        block_tokens=block_tokens,
        block_bytes=layout.block_bytes,
        blocks=blocks,
        table_bytes=table,
        metadata_share=(beside + table + blocks * layers / 8) / setting.card.memory_bytes,
        tail_waste=lengths.tail_waste(block_tokens),
        prefix_loss=lengths.shared.loss(block_tokens) if lengths.shared else None,
        window_copies=WINDOW_TOKENS // block_tokens * layers,
        fetch_time=(moved_blocks * layers * given.copy_s + bytes_s) / attention_s,
        run_fetch_time=(moved_windows * layers * given.copy_s + bytes_s) / attention_s,
        tail_time=lengths.tail_copies(block_tokens) * setting.token_bytes * read_s / attention_s,
        paging_time=paging_s / attention_s,
        requests=requests,
    )


def _moved(lengths: Lengths, block_tokens: int, moved: str) -> tuple[float, float]:
    """Blocks, and windows that they lie in, which are brought in for all requests."""
    if moved == "prefix" and lengths.shared is not None:
        return lengths.shared.blocks(block_tokens), lengths.shared.windows()
    if moved == "prompt":
        prompts = lengths.prompts
        return float((-(-prompts // block_tokens)).sum()), float((-(-prompts // WINDOW_TOKENS)).sum())
    return 0.0, 0.0
