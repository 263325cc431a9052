"""One cycle asks every source once, and nothing that one source does reaches the others."""

from __future__ import annotations

import asyncio

from probes.sampler import Sampler
from probes.series import SeriesStore
from probes.sources.base import SourceStatus


class Slow:
    """A source that answers when it is told to."""

    def __init__(self, name: str) -> None:
        self.target = name
        self.status = SourceStatus(name, "stale", "not asked yet")
        self.asked: list[int] = []
        self.closed = False
        self.let_go = asyncio.Event()

    async def collect(self, now_ms: int) -> SourceStatus:
        self.asked.append(now_ms)
        await self.let_go.wait()
        self.status = SourceStatus(self.target, "fresh", time_ms=now_ms, last_ok_ms=now_ms)
        return self.status

    async def close(self) -> None:
        self.closed = True

    def expire(self, now_ms: int) -> None: ...


class Broken(Slow):
    async def collect(self, now_ms: int) -> SourceStatus:
        raise RuntimeError("boom")


async def test_a_silent_source_is_not_asked_twice_and_tells_for_how_long() -> None:
    quick, slow = Slow("quick"), Slow("slow")
    quick.let_go.set()
    sampler = Sampler(SeriesStore(), [quick, slow], interval_ms=1)
    states = [[status.state for status in (await sampler.cycle(at)).statuses] for at in (1, 2, 3)]
    assert states == [["fresh", "timeout"]] * 3
    assert (quick.asked, slow.asked) == ([1, 2, 3], [1])
    slow.let_go.set()
    cycle = await sampler.cycle(4)
    assert [status.state for status in cycle.statuses] == ["fresh", "fresh"]
    assert cycle.statuses[1].time_ms == 1, "the answer to the first question"
    await sampler.cycle(5)
    assert slow.asked == [1, 5]
    assert sampler.statuses[1].time_ms == 5
    await sampler.close()
    assert quick.closed
    assert slow.closed


async def test_a_source_that_fails_inside_is_told_and_the_others_go_on() -> None:
    quick, broken = Slow("quick"), Broken("broken")
    quick.let_go.set()
    sampler = Sampler(SeriesStore(), [broken, quick], interval_ms=1000)
    for at in (1, 2):
        first, second = (await sampler.cycle(at)).statuses
        assert (first.state, first.error) == ("gone", "internal error: RuntimeError: boom")
        assert second.state == "fresh"
    await sampler.close()


async def test_closing_does_not_wait_for_a_silent_source() -> None:
    slow = Slow("slow")
    sampler = Sampler(SeriesStore(), [slow], interval_ms=1)
    await sampler.cycle(1)
    await asyncio.wait_for(sampler.close(), 5)
    assert slow.closed


async def test_patience_can_be_longer_than_the_interval() -> None:
    slow = Slow("slow")
    sampler = Sampler(SeriesStore(), [slow], interval_ms=1)
    asyncio.get_running_loop().call_later(0.2, slow.let_go.set)
    assert (await sampler.cycle(1, patience_s=30)).statuses[0].state == "fresh"
    await sampler.close()


async def test_no_source_at_all() -> None:
    assert (await Sampler(SeriesStore(), []).cycle(1)).statuses == ()


def test_age_counts_from_the_last_samples() -> None:
    assert SourceStatus("t", "refused").age_s(5000) is None
    assert SourceStatus("t", "refused", last_ok_ms=2000).age_s(5000) == 3.0
    assert SourceStatus("t", "fresh", last_ok_ms=6000).age_s(5000) == 0.0
    assert SourceStatus("t", "empty").ok
    assert not SourceStatus("t", "timeout").ok


class Alone(Slow):
    """A source that can be asked without an event loop."""

    def collect_alone(self, now_ms: int) -> SourceStatus:
        self.asked.append(now_ms)
        return SourceStatus(self.target, "fresh", time_ms=now_ms, last_ok_ms=now_ms)


class BrokenAlone(Slow):
    def collect_alone(self, now_ms: int) -> SourceStatus:
        raise RuntimeError("boom")


def test_only_a_single_target_is_asked_without_an_event_loop() -> None:
    one, other = Alone("one"), Alone("other")
    assert Sampler(SeriesStore(), [one, other]).cycle_alone(7) is None
    assert Sampler(SeriesStore(), [Slow("a list of targets")]).cycle_alone(7) is None
    assert one.asked == other.asked == []
    cycle = Sampler(SeriesStore(), [one]).cycle_alone(7)
    assert cycle is not None
    assert (cycle.time_ms, [status.state for status in cycle.statuses], one.asked) == (7, ["fresh"], [7])
    other.status = SourceStatus("other", "fresh", kind="recording")
    assert Sampler(SeriesStore(), [one, other]).cycle_alone(8) is not None, "a recording is read already"
    cycle = Sampler(SeriesStore(), [BrokenAlone("broken")]).cycle_alone(7)
    assert cycle is not None
    assert (cycle.statuses[0].state, cycle.statuses[0].error) == ("gone", "internal error: RuntimeError: boom")
