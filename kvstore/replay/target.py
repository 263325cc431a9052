"""The store that a replay goes to: a cluster made for it, or one that runs; and what its pages say of evictions."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvstore.client import Client
from kvstore.deadline import Deadline
from kvstore.describe import describe as described
from kvstore.errors import BadRequest
from kvstore.layout import Layout
from kvstore.membership import membership_of
from kvstore.placement import placement
from kvstore.replay.content import Content
from kvstore.replay.trace import WINDOW_TOKENS, Request
from kvstore.security import Access

_SPARE = 64
"""Blocks beyond a trace's own, so that a put under way never evicts."""
_EVICTED = re.compile(r"^kv_evicted_blocks_total\{[^}]*\} (\S+)", re.MULTILINE)


def pool_blocks(requests: Sequence[Request], layout: Layout, shards: int, kind: str) -> int:
    """Blocks that a shard needs so that nothing of the trace is ever evicted: what its fullest shard gets."""
    content = Content(layout)
    where = placement(kind, layout, [str(number) for number in range(shards)])
    seen: set[int] = set()
    counts = np.zeros(shards, np.int64)
    for request in requests:
        new = [window not in seen for window in request.windows.tolist()]
        seen.update(request.windows.tolist())
        keys = content.keys(request)[np.repeat(new, content.counts(request))]
        counts += np.bincount(where.home(keys), minlength=shards)
    return int(counts.max(initial=0)) + _SPARE


async def first_of(targets: str, access: Access) -> dict[str, Any]:
    """What the first shard of `targets` says of itself. Raises `ShardUnavailable`, `AccessDenied`, `BadRequest`."""
    membership, deadline = membership_of(targets, access), Deadline(5_000)
    try:
        view = await membership.view(deadline)
    finally:
        await membership.close()
    return await described(view.members[0].address, access, deadline)


def describe(targets: str, access: Access | None = None) -> dict[str, Any]:
    """The same for plain code; `access` as the environment says, if not given."""
    return asyncio.run(first_of(targets, access or Access.from_environment()))


def layout_of(facts: dict[str, Any]) -> Layout:
    """The layout of a running store; raises `BadRequest` where a trace's windows do not fit into it."""
    layout = Layout.from_json(json.dumps(facts["layout"]))
    if layout.window_tokens != WINDOW_TOKENS or layout.block_bytes % 8:
        raise BadRequest(
            f"this store has windows of {layout.window_tokens} tokens and blocks of {layout.block_bytes} bytes; a "
            f"replay needs windows of {WINDOW_TOKENS} tokens and blocks of whole 64-bit words"
        )
    return layout


async def evictions(client: Client) -> int | None:
    """Blocks that the store has evicted since it started; None where a shard has no page that says so."""
    urls = [str(link.facts.get("metrics") or "") for link in client.shards.links]
    pages = await asyncio.gather(*(asyncio.to_thread(_page, url) for url in urls))
    found = [_EVICTED.findall(page) for page in pages]
    return None if not all(found) else sum(int(float(value)) for values in found for value in values)


def _page(url: str) -> str:
    if not url:
        return ""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except (OSError, ValueError):
        return ""


def cluster_file_or_addresses(text: str) -> str:
    """As `Client.connect` takes it: a path that exists is one."""
    return str(Path(text).resolve()) if Path(text).is_file() else text
