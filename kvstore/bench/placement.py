"""`kvstore bench placement`: what an attention call costs under each placement, from the real homes of real keys.

A call is one layer's attention of one head group in one decode step. On a full-attention layer it reads the whole
context; on a sliding-window layer the last `--sliding` tokens, averaged over positions. Bytes are *cross-shard* when
their home is not where the caller runs: on the tensor-parallel rank of its head group, or – the best that a scheduler
could do – on the shard that holds most of what the call reads.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.bench import machine
from kvstore.keys import Chain, block_keys, root_digest
from kvstore.layout import Layout
from kvstore.placement import KINDS, Placement, placement

QUERY_HEADS = 32
KV_HEADS = 8
HEAD_DIM = 128
_POSITION_STEP = 16


@dataclass(frozen=True, slots=True)
class Cost:
    """Means over calls; shares are of the bytes that a call reads."""

    bytes_per_call: float
    shards_per_call: float
    most_shards: int
    cross_bytes: float
    cross_share: float
    cross_share_best_caller: float
    fullest_shard_share: float
    """Of one head group's KV of the whole context: what one shard must be able to hold and to serve."""


def measure(where: Placement, context: int, sliding: int | None, seed: int = 0) -> Cost:
    """The cost of a decode call at the end of `context` tokens (full attention), or of windows of `sliding` tokens."""
    layout = where.layout
    chain = Chain(root_digest(layout.model_id), layout.block_tokens)
    chain.extend(np.random.default_rng(seed).integers(0, 128_000, context))
    shards = len(where.names)
    rows: list[tuple[int, int, int, int]] = []
    fullest: list[float] = []
    for layer in range(layout.layers):
        for group in range(layout.head_groups):
            homes = where.home(block_keys(chain.digests, layer, group))
            rank = group * shards // layout.head_groups
            rows.extend(_call(homes[a:b], rank, shards) for a, b in _spans(context, sliding, layout.block_tokens))
            fullest.append(float(np.bincount(homes, minlength=shards).max() / len(homes)))
    blocks, touched, cross, cross_best = np.asarray(rows, np.float64).T
    size = layout.block_bytes
    return Cost(
        bytes_per_call=float(blocks.mean() * size),
        shards_per_call=float(touched.mean()),
        most_shards=int(touched.max()),
        cross_bytes=float(cross.mean() * size),
        cross_share=float(cross.sum() / blocks.sum()),
        cross_share_best_caller=float(cross_best.sum() / blocks.sum()),
        fullest_shard_share=float(np.mean(fullest)),
    )


def _spans(context: int, sliding: int | None, block_tokens: int) -> list[tuple[int, int]]:
    """First and last block (exclusive) of each call."""
    if sliding is None:
        return [(0, context // block_tokens)]
    ends = range(sliding, context + 1, _POSITION_STEP)
    return [((end - sliding) // block_tokens, -(-end // block_tokens)) for end in ends]


def _call(homes: npt.NDArray[np.int64], rank: int, shards: int) -> tuple[int, int, int, int]:
    """Blocks read, shards touched, blocks not on the rank's shard, blocks not on the best shard."""
    counts = np.bincount(homes, minlength=shards)
    return len(homes), int(np.count_nonzero(counts)), len(homes) - int(counts[rank]), len(homes) - int(counts.max())


def compare(context: int, sliding: int, shards: int, layers: int, block_tokens: int) -> dict[str, Any]:
    """Costs by kind of layer and placement."""
    layout = Layout(
        "bench",
        layers=layers,
        head_groups=min(shards, KV_HEADS),
        heads=max(1, KV_HEADS // shards),
        head_dim=HEAD_DIM,
        block_tokens=block_tokens,
        window_tokens=512,
    )
    names = [f"shard-{number}" for number in range(shards)]
    places = {kind: placement(kind, layout, names) for kind in KINDS}
    return {
        "query_heads": QUERY_HEADS,
        "kv_heads": KV_HEADS,
        "context": context,
        "sliding": sliding,
        "shards": shards,
        "layers": layers,
        "block_bytes": layout.block_bytes,
        "full": {kind: asdict(measure(where, context, None)) for kind, where in places.items()},
        "window": {kind: asdict(measure(where, context, sliding)) for kind, where in places.items()},
    }


def run(argv: list[str]) -> int:
    """Exit code 0; 2 for a geometry that cannot be."""
    parser = argparse.ArgumentParser(prog="kvstore bench placement", description=__doc__)
    parser.add_argument("--context", type=int, default=8192, metavar="TOKENS")
    parser.add_argument("--sliding", type=int, default=512, metavar="TOKENS", help="tokens a sliding-window layer sees")
    parser.add_argument("--shards", type=int, default=4, choices=(1, 2, 4, 8), help="as many as tensor-parallel ranks")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if not 1 <= options.sliding <= options.context <= 2**20 or not 1 <= options.layers <= 256:
        parser.error("need 1 ≤ --sliding ≤ --context ≤ 1048576 and 1 ≤ --layers ≤ 256")
    if options.block_tokens < 1 or 512 % options.block_tokens or options.context < options.block_tokens:
        parser.error("--block-tokens must divide 512 and fit into the context")
    found = compare(options.context, options.sliding, options.shards, options.layers, options.block_tokens)
    if options.json:
        print(json.dumps({**found, "machine": machine.facts()}))
    else:
        print("\n".join(_table(found)))
    return 0


def _table(found: dict[str, Any]) -> list[str]:
    lines = [
        f"{found['query_heads']} query heads, {found['kv_heads']} KV heads, {found['context']} tokens, "
        f"{found['shards']} shards, {found['layers']} layers, blocks of {found['block_bytes']} bytes; per call",
        f"{'layers':<9}{'placement':<19}{'read':>10}{'shards':>8}{'most':>6}{'cross':>11}{'share':>8}"
        f"{'best':>8}{'fullest':>9}",
    ]
    for layers in ("full", "window"):
        for kind, cost in found[layers].items():
            lines.append(
                f"{layers:<9}{kind:<19}{cost['bytes_per_call'] / 2**20:>6.2f} MiB{cost['shards_per_call']:>8.2f}"
                f"{cost['most_shards']:>6}{cost['cross_bytes'] / 2**20:>7.2f} MiB{cost['cross_share']:>8.1%}"
                f"{cost['cross_share_best_caller']:>8.1%}{cost['fullest_shard_share']:>9.1%}"
            )
    return [
        *lines,
        "cross, share: bytes whose home is not the shard of the head group's rank; best: share when the caller runs",
        "where most of them lie; fullest: share of one head group's context that its fullest shard holds",
    ]
