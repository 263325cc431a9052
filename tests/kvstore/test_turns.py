"""Whose request begins next: nobody waits for all that another has waiting, and alone nobody waits for anybody."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kvstore.calls.frames import FrameCalls, FrameServer
from kvstore.calls.turns import AT_ONCE, SMALL_BYTES, Turns

MANY = 400


async def test_who_comes_later_does_not_wait_for_all_who_came_before() -> None:
    turns, order = Turns(), []
    for number in range(MANY):
        turns.begin("many", 10, lambda number=number: order.append(number))
    assert order == list(range(AT_ONCE))
    await asyncio.sleep(0)
    turns.begin("few", 10, lambda: order.append("few"))
    assert order[-1] == "few"
    while turns.waiting("many"):
        await asyncio.sleep(0)
    assert [each for each in order if each != "few"] == list(range(MANY))


async def test_large_requests_begin_one_by_one() -> None:
    turns, order = Turns(), []
    for number in range(10):
        turns.begin("large", 100 * SMALL_BYTES, lambda number=number: order.append(number))
    for begun in range(1, 10):
        assert len(order) == begun
        await asyncio.sleep(0)
    assert order == list(range(10))


async def test_many_askers_share_every_turn() -> None:
    turns, order = Turns(), []

    async def ask(who: int) -> None:
        await turns.mine(who, 10)
        order.append(who)

    await asyncio.gather(*(ask(who) for who in range(3) for _ in range(MANY)))
    for at in range(0, 3 * MANY, 3 * AT_ONCE):
        assert sorted(order[at : at + 3 * AT_ONCE]) == [0] * AT_ONCE + [1] * AT_ONCE + [2] * AT_ONCE


async def test_who_is_forgotten_begins_nothing_more() -> None:
    turns, order = Turns(), []
    for number in range(MANY):
        turns.begin("gone", 10, lambda number=number: order.append(number))
    turns.forget("gone")
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(order), turns.waiting("gone")) == (AT_ONCE, 0)


async def test_a_flood_on_one_connection_does_not_hold_up_another(tmp_path: Path) -> None:
    order: list[bytes] = []

    async def answer(request: bytes) -> bytes:
        order.append(request)
        return request

    server = FrameServer(tmp_path / "calls", answer)
    await server.start()
    flood, other = [await FrameCalls.connect(str(server.path), 5) for _ in range(2)]

    async def ask() -> bytes:
        while not order:
            await asyncio.sleep(0)
        return await other.call(bytes, b"other", 30)

    answers = await asyncio.gather(*(flood.call(bytes, b"flood", 30) for _ in range(MANY)), ask())
    assert answers == [b"flood"] * MANY + [b"other"]
    assert order.index(b"other") < MANY // 4
    for each in (flood, other):
        await each.close()
    await server.stop()
