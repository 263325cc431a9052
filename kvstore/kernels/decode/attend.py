"""The Triton kernels of paged decode attention: one pass over the pages, and the combination of its splits.

A program of `attend` is one sequence, one KV head (or a part of the
query heads that share it) and one split of the sequence; the heads that share a KV head are the rows of its products,
so that every page is read once for all of them. Online softmax in float32 as in FlashAttention, the split with its
second pass as in Flash-Decoding (Dao et al., 2022 and 2023).
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, valid-type, name-defined"
from kvstore.kernels.language import jit, tl


@jit
def decode_e4m3(raw):
    """Bytes of e4m3 as float16, times 1/256: its exponent bias is 7, float16's 15. Exact, subnormals included."""
    bits = raw.to(tl.uint16)
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    half = tl.where((bits & 0x7F) == 0x7F, 0x7E00, half)  # the one NaN of e4m3, which has no infinity
    return half.to(tl.uint16).to(tl.float16, bitcast=True)


@jit
def decode_e5m2(raw):
    """Bytes of e5m2 as float16: its upper half."""
    return (raw.to(tl.uint16) << 8).to(tl.uint16).to(tl.float16, bitcast=True)


@jit
def load_states(pointers, mask, dtype: tl.constexpr, format: tl.constexpr):
    """K or V of some tokens in the dtype of the products; 0 where masked, whatever lies there."""
    raw = tl.load(pointers, mask=mask, other=0.0 if format == "native" else 0)
    if format == "e4m3":
        raw = decode_e4m3(raw)
    elif format == "e5m2":
        raw = decode_e5m2(raw)
    elif format == "e4m3-native":
        raw = raw.to(tl.float8e4nv, bitcast=True)
    elif format == "e5m2-native":
        raw = raw.to(tl.float8e5, bitcast=True)
    return raw.to(dtype)


@jit
def attend(
    query, keys, values, tables, lengths, indptr, key_scales, value_scales, out, sums,
    scale, softcap, window, splits,
    query_row, query_token, query_head, key_block, key_token, key_head, value_block, value_token, value_head,
    table_row, key_scale_head, value_scale_head,
    heads,
    Q_LEN: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr,
    CSR: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    KEY_SCALED: tl.constexpr, VALUE_SCALED: tl.constexpr, FORMAT: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Strides are in elements. `tables`: `[batch, max_blocks]`, or CSR's indices; `lengths`: tokens, or CSR's
    `last_page_len`. `out`: `[batch, q_len, heads, head_dim]`, or with SPLIT `[batch, q_len, heads, splits, head_dim]`
    float32 with `sums` `[batch, q_len, heads, splits]`, the base-2 logarithm of each split's sum of weights."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    split = tl.program_id(2)
    parts: tl.constexpr = (GROUP * Q_LEN + M - 1) // M
    kv_head = part // parts

    if CSR:
        first_page = tl.load(indptr + row)
        pages = tl.load(indptr + row + 1) - first_page
        length = tl.where(pages > 0, (pages - 1) * BLOCK_TOKENS + tl.load(lengths + row), 0)
        table = tables + first_page
    else:
        length = tl.load(lengths + row)
        table = tables + row.to(tl.int64) * table_row

    # Rows of the products: query token by query token, the heads of the group within. The last token sees everything.
    member = (part % parts) * M + tl.arange(0, M)
    token = member // GROUP
    head = kv_head * GROUP + member % GROUP
    real = member < GROUP * Q_LEN
    position = length - Q_LEN + token
    dims = tl.arange(0, D)
    inside = dims < HEAD_DIM
    asked = query + row.to(tl.int64) * query_row + token[:, None] * query_token + head[:, None] * query_head
    q = tl.load(asked + dims[None, :], mask=real[:, None] & inside[None, :], other=0.0)

    # This split's tokens, in whole tiles of the part of the sequence that any of the queries sees.
    begin = 0
    if WINDOW:
        begin = tl.maximum(length - Q_LEN + 1 - window, 0) // TILE
    tiles = tl.cdiv(length, TILE) - begin
    share = tl.cdiv(tiles, splits)
    first = (begin + split * share) * TILE
    last = tl.minimum((begin + tl.minimum((split + 1) * share, tiles)) * TILE, length)

    scores_by = scale * 1.4426950408889634
    values_by = 1.0
    if FORMAT == "e4m3":
        scores_by *= 256.0
        values_by *= 256.0
    if KEY_SCALED:
        scores_by *= tl.load(key_scales + kv_head * key_scale_head)
    if VALUE_SCALED:
        values_by *= tl.load(value_scales + kv_head * value_scale_head)

    # Triton's interpreter multiplies bfloat16 as if it were integers: there its numbers are float32's.
    product: tl.constexpr = tl.float32 if WIDEN else q.dtype
    most = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    ahead = tl.arange(0, TILE)
    key_base = keys + kv_head.to(tl.int64) * key_head
    value_base = values + kv_head.to(tl.int64) * value_head
    for start in range(first, last, TILE):
        at = start + ahead
        there = at < last
        if WINDOW:
            there = there & (at > length - Q_LEN - window)
        if BLOCK_TOKENS % TILE == 0:
            block = tl.load(table + start // BLOCK_TOKENS).to(tl.int64)
            key_at = block * key_block + (start % BLOCK_TOKENS + ahead) * key_token
            value_at = block * value_block + (start % BLOCK_TOKENS + ahead) * value_token
        else:
            block = tl.load(table + at // BLOCK_TOKENS, mask=there, other=0).to(tl.int64)
            key_at = block * key_block + (at % BLOCK_TOKENS) * key_token
            value_at = block * value_block + (at % BLOCK_TOKENS) * value_token
        loaded = there[:, None] & inside[None, :]
        k = load_states(key_base + key_at[:, None] + dims[None, :], loaded, q.dtype, FORMAT)
        scores = tl.dot(q.to(product), tl.trans(k.to(product)), input_precision=PRECISION) * scores_by
        if SOFTCAP:
            # tanh(x) = 1 - 2 / (exp(2x) + 1), which holds at both ends, but near 0 loses all digits of a small score
            # under a large cap: there x - x^3/3 + 2x^5/15 (the next term is below float32). Scores carry log2(e).
            bent = scores * (0.6931471805599453 / softcap)
            square = bent * bent
            near = scores * (1.0 + square * (0.13333333333333333 * square - 0.3333333333333333))
            far = softcap * 1.4426950408889634 * (1.0 - 2.0 / (tl.exp2(scores * (2.0 / softcap)) + 1.0))
            scores = tl.where(tl.abs(bent) < 0.1, near, far)
        seen = there[None, :] & (at[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (at[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        # A row that has seen nothing yet has no maximum: exp2(-inf - -inf) would be NaN.
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - level[:, None])
        kept = tl.exp2(most - level)
        total = total * kept + tl.sum(weights, 1)
        v = load_states(value_base + value_at[:, None] + dims[None, :], loaded, q.dtype, FORMAT)
        acc = acc * kept[:, None] + tl.dot(weights.to(q.dtype).to(product), v.to(product), input_precision=PRECISION)
        most = higher

    acc = acc * (values_by / tl.where(total > 0.0, total, 1.0))[:, None]
    written = real[:, None] & inside[None, :]
    line = (row.to(tl.int64) * Q_LEN + token) * heads + head
    if SPLIT:
        line = line * splits + split
        level = tl.where(total > 0.0, most + tl.log2(tl.where(total > 0.0, total, 1.0)), float("-inf"))
        tl.store(sums + line, level, mask=real)
    tl.store(out + line[:, None] * HEAD_DIM + dims[None, :], acc.to(out.dtype.element_ty), mask=written)


@jit
def combine(
    partial, sums, out, splits,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """One row of the output from its splits, SOME at a time: each weighs 2**(its sum - the highest). A split that saw
    nothing is not read, whatever lies there; a row that saw nothing is 0."""
    line = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, SPLITS)
    dims = tl.arange(0, D)
    levels = tl.load(sums + line * splits + each, mask=each < splits, other=float("-inf"))
    highest = tl.max(levels, 0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(tl.exp2(levels - highest), 0)
    mixed = tl.zeros([D], tl.float32)
    for first in range(0, splits, SOME):
        some = first + tl.arange(0, SOME)
        level = tl.load(sums + line * splits + some, mask=some < splits, other=float("-inf"))
        saw = (level > float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :]
        states = tl.load(partial + (line * splits + some)[:, None] * HEAD_DIM + dims[None, :], mask=saw, other=0.0)
        mixed += tl.sum(states * tl.exp2(level - highest)[:, None], 0)
    mixed = mixed / tl.where(total > 0.0, total, 1.0)
    tl.store(out + line * HEAD_DIM + dims, mixed.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
