"""Opening a cache: who the model is, what the store has of the tokens, and into the layers with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvstore.client import SyncClient
from kvstore.errors import BadRequest, StoreError
from kvstore.header import Bytes
from kvstore.integrations.transformers.columns import Columns
from kvstore.integrations.transformers.counts import Counts
from kvstore.integrations.transformers.fetch import Fetched, Fetcher, MissingBlocksError
from kvstore.integrations.transformers.identity import identity_of, require_layout, windows_of
from kvstore.integrations.transformers.layers import StoreLayer
from kvstore.integrations.transformers.match import Finder, Found, Reach
from kvstore.integrations.transformers.writer import Version
from kvstore.keys import root_digest, salt_fingerprint

log = logging.getLogger(__name__)

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Place:
    """One model's place in one store."""

    client: SyncClient
    columns: Columns
    windows: list[int | None]
    root: bytes
    deadline_ms: int


@dataclass(slots=True)
class Match:
    """What was taken from the store: `length` positions of a left-padded batch; of each row, what goes on from there.

    `partials`: KV behind a row's last full block, `versions`: its session's tail, `known`: digests of full blocks that
    the store has.
    """

    length: int = 0
    partials: list[Bytes | None] = field(default_factory=list)
    versions: list[Version | None] = field(default_factory=list)
    known: list[set[bytes]] = field(default_factory=list)


def place_of(
    client: SyncClient, model: Any, *, salt: bytes, adapter: str, revision: str, sessions: bool, deadline_ms: int
) -> Place:
    """Raises `BadRequest` where store and model do not fit each other, naming what does not."""
    layout = client.layout
    windows = windows_of(model)
    require_layout(layout, model, len(windows))
    if salt_fingerprint(salt) != layout.salt:
        raise BadRequest("layout field 'salt': this is not the salt that the store's layout was made with")
    shards = client.client.shards
    if sessions and len(shards) > 1 and shards.placement.kind == "uniform":
        raise BadRequest(
            "sessions need a store whose tails and full blocks have one home: start it with --placement head-group"
        )
    identity = identity_of(model, revision=revision, adapter=adapter)
    root = root_digest(f"{layout.model_id} {identity}", salt=salt, adapter=adapter)
    return Place(client, Columns(layout), windows, root, deadline_ms)


def take(
    place: Place,
    layers: Sequence[StoreLayer],
    rows: Sequence[list[int]],
    pads: Sequence[int],
    sessions: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype,
    counts: Counts,
) -> Match:
    """Match every row, and fill the layers with all but the last token at most. A store that fails is an empty one."""
    client = place.client.client
    most = pads[0] + len(rows[0]) - 1
    reach = Reach(client.layout, place.windows)
    finder = Finder(client, place.columns, place.root, reach, place.deadline_ms)
    results = place.client.run(finder.find_all(rows, sessions))
    found = [None if isinstance(result, StoreError) else result for result in results]
    for result in results:
        if isinstance(result, StoreError):
            _failed(counts, result)
    try:
        return _fill(place, reach, layers, found, pads, most, device=device, dtype=dtype, counts=counts)
    finally:
        place.client.run(_release(place, found))


def _fill(
    place: Place,
    reach: Reach,
    layers: Sequence[StoreLayer],
    found: Sequence[Found | None],
    pads: Sequence[int],
    most: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    counts: Counts,
) -> Match:
    layout = place.client.layout
    fetcher = Fetcher(place.client, layout, reach, layers)
    match = Match()
    fetched: Fetched | None = None
    length = 0
    for _ in range(_TRIES):
        length = reach.common(found, pads, most)
        if all(length <= pad for pad in pads):
            break
        try:
            fetched = fetcher.fetch(found, pads, length, dtype)
            break
        except MissingBlocksError:
            continue
        except StoreError as error:
            _failed(counts, error)
            break
    if fetched is not None:
        match.length = length
        counts.read_blocks += fetched.blocks
        counts.matched_tokens += sum(max(0, length - pad) for pad in pads)
        for layer, keys, values in zip(layers, fetched.keys, fetched.values, strict=True):
            layer.fill(keys.to(device), values.to(device), length)
    match.partials = fetched.partials if fetched is not None else [None] * len(pads)
    match.versions = [_version(row) for row in found]
    match.known = [_known(row) for row in found]
    return match


def _version(found: Found | None) -> Version | None:
    """The tail as one that can be appended to: every column of it is what we have in common, no more."""
    if found is None or found.tail is None or not found.agree:
        return None
    if not (found.tail.found.all() and (found.tail.valid == found.agree).all()):
        return None
    return Version(found.whole, found.parent, found.tail.clock)


def _known(found: Found | None) -> set[bytes]:
    if found is None:
        return set()
    there: list[bool] = np.asarray(found.there.all(axis=0)).tolist()
    return {digest for digest, is_there in zip(found.digests, there, strict=True) if is_there}


def _failed(counts: Counts, error: StoreError) -> None:
    counts.read_failures += 1
    log.warning("nothing is taken from the store (%s): everything is computed", error)


async def _release(place: Place, found: Sequence[Found | None]) -> None:
    client = place.client.client
    located = [where for row in found if row is not None for where in (row.blocks, row.tail) if where is not None]
    with contextlib.suppress(StoreError):
        await asyncio.gather(
            *(client.release(where, deadline_ms=place.deadline_ms) for where in located if where.leased)
        )
