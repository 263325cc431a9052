"""Several requests in flight answer as one by one."""

from __future__ import annotations

import asyncio
import random

import pytest

from kvstore.replay.order import Order
from kvstore.replay.trace import excerpt, read_trace


@pytest.mark.parametrize("seed", range(4))
async def test_hits_do_not_depend_on_who_is_slow(seed: int) -> None:
    """A store of sets with random delays, sixteen lanes: the hits of the infinite oracle, and never a missed one."""
    trace = [request.windows.tolist() for request in read_trace(excerpt(), limit=150)]
    rng, there, order, lanes = random.Random(seed), set(), Order(), asyncio.Semaphore(16)
    hits = [0] * len(trace)
    busiest = running = 0

    async def slow() -> None:
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(0)

    async def one(number: int, windows: list[int]) -> None:
        nonlocal running, busiest
        turn = order.start(windows)
        running += 1
        busiest = max(busiest, running)
        try:
            await turn.ready()
            await slow()
            missing = [window for window in windows if window not in there]
            hits[number] = len(windows) - len(missing)
            turn.looked(missing)
            await slow()
            there.update(missing)
        finally:
            turn.done()
            running -= 1
            lanes.release()

    tasks = []
    for number, windows in enumerate(trace):
        await lanes.acquire()
        tasks.append(asyncio.create_task(one(number, windows)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)

    seen: set[int] = set()
    for windows, found in zip(trace, hits, strict=True):
        assert found == len(seen.intersection(windows))
        seen.update(windows)
    assert busiest > 4
    assert not order.last


async def test_a_request_that_fails_holds_up_nobody() -> None:
    order = Order()
    first, second = order.start([1]), order.start([1])
    first.done()
    await asyncio.wait_for(second.ready(), 5)
    second.done()
    assert not order.last
