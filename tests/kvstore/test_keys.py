"""Chains and keys: equal tokens, equal keys; anything else, other keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import BadRequest
from kvstore.keys import Chain, block_keys, mix, parts, root_digest, salt_fingerprint, tail_digest

ROOT = root_digest("llama")
TOKENS = st.lists(st.integers(0, 50_000), max_size=70)


def chain(tokens: list[int], root: bytes = ROOT) -> Chain:
    made = Chain(root, 16)
    made.extend(tokens)
    return made


@given(tokens=TOKENS, cuts=st.lists(st.integers(0, 70), max_size=5))
def test_pieces_make_the_same_chain_as_the_whole(tokens: list[int], cuts: list[int]) -> None:
    pieces = Chain(ROOT, 16)
    last = 0
    for cut in [*sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]:
        pieces.extend(tokens[last:cut])
        last = cut
    whole = chain(tokens)
    assert pieces.digests == whole.digests
    assert pieces.tail_digests() == whole.tail_digests()
    assert len(pieces) == len(tokens)


@given(tokens=st.lists(st.integers(0, 50_000), min_size=33, max_size=70), at=st.integers(0, 69))
def test_an_edit_changes_its_block_and_all_behind(tokens: list[int], at: int) -> None:
    at %= len(tokens)
    edited = [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]
    before, after = chain(tokens), chain(edited)
    block = at // 16
    assert before.digests[:block] == after.digests[:block]
    assert not set(before.digests[block:]) & set(after.digests[block:])
    if at >= len(before.digests) * 16:
        inside = at - len(before.digests) * 16
        agree = [a == b for a, b in zip(before.tail_digests(), after.tail_digests(), strict=True)]
        assert agree == [i < inside for i in range(before.tail_tokens)]


def test_a_full_tail_has_the_digest_of_the_block() -> None:
    almost, full = chain(list(range(15))), chain(list(range(16)))
    almost.extend([15])
    assert almost.digests == full.digests
    assert full.tail_tokens == 0


def test_tenants_adapters_and_media_never_share() -> None:
    roots = {
        root_digest("llama"),
        root_digest("llama", salt=b"a"),
        root_digest("llama", salt=b"b"),
        root_digest("llama", adapter="a"),
        root_digest("llama", media=["a"]),
        root_digest("llama", media=["a", ""]),
        root_digest("llamaa"),
    }
    assert len(roots) == 7
    assert len({chain(list(range(16)), root).digests[0] for root in roots}) == 7
    assert salt_fingerprint(b"a") != salt_fingerprint(b"b")
    assert salt_fingerprint(b"") == ""


def test_a_key_names_layer_group_and_index() -> None:
    digests = chain(list(range(48))).digests
    keys = block_keys(digests, layer=31, group=7, first_index=5)
    layer, group, index = parts(keys)
    assert layer.tolist() == [31] * 3
    assert group.tolist() == [7] * 3
    assert index.tolist() == [5, 6, 7]
    assert keys[:, :3].tobytes() == b"".join(digests)
    assert block_keys([], 0, 0).shape == (0, 4)


def test_a_tail_is_found_by_its_place() -> None:
    assert tail_digest(ROOT, 1) != tail_digest(ROOT, 2)
    assert tail_digest(ROOT, 1) != tail_digest(chain(list(range(16))).parent, 1)


def test_the_hash_spreads_layers_groups_and_blocks() -> None:
    digests = chain(list(range(160))).digests
    keys = np.concatenate([block_keys(digests, layer, group) for layer in range(32) for group in range(8)])
    assert len(np.unique(mix(keys))) == len(keys)
    homes = np.bincount((mix(keys, 3) % np.uint64(8)).astype(np.int64), minlength=8)
    assert homes.min() > 0.8 * len(keys) / 8


@pytest.mark.parametrize("tokens", [["a"], [1 << 70], [[1, 2]], [None]])
def test_what_is_no_row_of_token_ids_is_refused(tokens: list[object]) -> None:
    with pytest.raises(BadRequest):
        Chain(ROOT, 16).extend(tokens)  # type: ignore[arg-type]
