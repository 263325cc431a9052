"""Keys are equal exactly where token prefixes are; hits agree with comparing every token."""

from __future__ import annotations

from random import Random

import pytest

from playbooks.lab.pool import BlockPool
from playbooks.lab.prefix import KeyChain, KeyTable, PrefixCache, Segment

Token = tuple[int, int]


def _tokens(segments: list[Segment]) -> list[Token]:
    return [(text, offset) for text, length in segments for offset in range(length)]


def _prompt(rng: Random) -> list[Segment]:
    """Segments over few texts of fixed lengths, so that prefixes are shared often and in many ways."""
    lengths = {1: 5, 2: 9, 3: 16, 4: 1, 5: 33}
    return [(text, lengths[text]) for text in rng.choices(list(lengths), k=rng.randint(1, 7))]


@pytest.mark.parametrize("block_tokens", [1, 3, 8])
def test_keys_are_equal_exactly_where_the_tokens_are(block_tokens: int) -> None:
    rng, table = Random(block_tokens), KeyTable()
    content: dict[int, tuple[Token, ...]] = {}
    key_of: dict[tuple[Token, ...], int] = {}
    for _ in range(300):
        segments = _prompt(rng)
        tokens = _tokens(segments)
        chain = KeyChain(table, segments, block_tokens)
        for step in sorted(rng.sample(range(1, 40), 3)):
            chain.upto(step)
        keys = chain.upto(10**6)
        assert len(keys) == len(tokens) // block_tokens
        for index, key in enumerate(keys, 1):
            prefix = tuple(tokens[: index * block_tokens])
            assert content.setdefault(key, prefix) == prefix
            assert key_of.setdefault(prefix, key) == key


def test_hits_agree_with_comparing_every_token() -> None:
    rng, table, size = Random(3), KeyTable(), 4
    pool = BlockPool(20_000)
    cache = PrefixCache(pool, size)
    seen: set[tuple[Token, ...]] = set()
    for _ in range(200):
        segments = _prompt(rng)
        tokens = _tokens(segments)
        chain = KeyChain(table, segments, size)
        expected = 0
        while (expected + 1) * size < len(tokens) and tuple(tokens[: (expected + 1) * size]) in seen:
            expected += 1
        found = cache.match(chain, len(tokens))
        assert len(found) == expected
        blocks = pool.allocate(len(tokens) // size, 0.0)
        for index, key in enumerate(chain.upto(len(blocks))):
            cache.publish(blocks[index], key)
            seen.add(tuple(tokens[: (index + 1) * size]))
        pool.release(blocks)


def test_the_last_token_is_always_left_to_compute() -> None:
    pool = BlockPool(10)
    cache = PrefixCache(pool, 4)
    chain = KeyChain(KeyTable(), [(1, 8)], 4)
    for block, key in zip(pool.allocate(2, 0.0), chain.upto(2), strict=True):
        cache.publish(block, key)
    assert len(cache.match(chain, 8)) == 1
    assert len(cache.match(chain, 9)) == 2


def test_what_was_evicted_and_is_wanted_again_is_counted() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool, 4)
    chain = KeyChain(KeyTable(), [(1, 13)], 4)
    blocks = pool.allocate(3, 0.0)
    for block, key in zip(blocks, chain.upto(3), strict=True):
        cache.publish(block, key)
    pool.release(blocks)
    pool.allocate(2, 1.0)
    found = cache.match(chain, 13)
    cache.account(chain, 13, len(found))
    assert len(found) == 1
    assert cache.truth.evicted_then_wanted == 2
    assert (cache.truth.hit, cache.truth.would_hit) == (4, 12)
