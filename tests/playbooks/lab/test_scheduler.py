"""The engine conserves blocks, tokens and requests, whatever it is asked to do."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from playbooks.lab.config import EngineConfig, StepCost
from playbooks.lab.prefix import new_text
from playbooks.lab.request import Request, Stage
from playbooks.lab.scheduler import Engine
from playbooks.lab.workload import Lengths, SharedPrefixes, Stream, Turns, Unique

QUIET = StepCost(base=0.01, prefill=1e-5, decode=0.0, context=0.0, noise=0.0)


def _request(prompt: int, output: int, arrival: float = 0.0, text: int | None = None) -> Request:
    return Request([(text or new_text(), prompt)], prompt, output, output, arrival)


def _run(engine: Engine, requests: list[Request], until: float = 120.0) -> None:
    for request in requests:
        engine.timers.at(request.arrival, lambda _time, r=request: engine.submit(r))  # type: ignore[misc]
    now = engine.now
    while now < until:
        now += 0.05
        engine.advance(now)
        engine.check_integrity()


def test_one_request_costs_what_the_model_says() -> None:
    engine = Engine(EngineConfig(100, cost=QUIET), Random(0))
    request = _request(prompt=100, output=5)
    _run(engine, [request], 2.0)
    assert request.first_token == pytest.approx(0.01 + 100 * 1e-5)
    assert request.last_token == pytest.approx(request.first_token + 4 * 0.01)
    assert engine.meters.token_gap.count == 4
    assert engine.meters.ttft.total == pytest.approx(request.first_token)
    assert engine.pool.usage == 0.0


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    engine = Engine(EngineConfig(2000, max_batched_tokens=256, cost=QUIET), Random(0))
    decode, long = _request(16, 400), _request(2000, 3, arrival=0.1)
    _run(engine, [decode, long], 8.0)
    buckets = dict(engine.meters.step_tokens.cumulative())
    assert buckets[256.0] == engine.meters.step_tokens.count, "no step is over its budget"
    assert long.first_token - long.first_scheduled > 7 * 0.01
    assert engine.meters.generation_tokens == 403


def test_the_second_of_two_equal_prompts_hits_all_but_its_tail() -> None:
    engine = Engine(EngineConfig(100, cost=QUIET), Random(0))
    text = new_text()
    _run(engine, [_request(100, 2, 0.0, text), _request(100, 2, 1.0, text)], 2.0)
    assert engine.meters.prefix_queries == 200
    assert engine.meters.prefix_hits == 96
    assert engine.meters.prompt_by_source == {
        "local_compute": 104,
        "local_cache_hit": 96,
        "external_kv_transfer": 0,
    }


def test_a_second_turn_hits_the_answer_of_the_first() -> None:
    rng = Random(5)
    engine = Engine(EngineConfig(4000, cost=QUIET), rng)
    turns = Turns(1.0, Lengths(2, 0.1), Lengths(32, 0.01, 32, 32), limit=400)
    stream = Stream(0.2, Unique(Lengths(160, 0.01, 160, 160)), Lengths(64, 0.01, 64, 64), rng, turns=turns)
    stream.attach(engine, 0.0)
    engine.advance(60.0)
    done = engine.meters
    assert done.prefix_hits / done.prefix_queries > 0.5
    assert engine.prefix.truth.hit == engine.prefix.truth.would_hit


def test_preemption_takes_the_newest_and_everybody_finishes() -> None:
    engine = Engine(EngineConfig(20, cost=QUIET), Random(0))
    requests = [_request(60, 120, arrival=0.001 * index) for index in range(6)]
    _run(engine, requests, 60.0)
    assert all(request.stage is Stage.FINISHED for request in requests)
    assert requests[0].preemptions == 0
    assert engine.meters.preemptions == sum(request.preemptions for request in requests) > 3
    assert engine.meters.generation_tokens == 6 * 120
    assert engine.meters.prefix_queries == 6 * 60, "a preempted request's look-ups are not counted again"
    assert [request.generated for request in requests] == [120] * 6


def test_a_watermark_keeps_admission_from_thrashing() -> None:
    def preempted(watermark: float) -> int:
        engine = Engine(EngineConfig(60, watermark=watermark, cost=QUIET), Random(0))
        _run(engine, [_request(100, 60, arrival=0.01 * index) for index in range(40)], 60.0)
        return engine.meters.preemptions

    assert preempted(0.3) < preempted(0.0)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_under_a_random_load(seed: int) -> None:
    rng = Random(seed)
    config = EngineConfig(rng.randint(120, 400), max_num_seqs=24, max_batched_tokens=512, residency_sample=3)
    engine = Engine(config, rng)
    family = SharedPrefixes(rng, 4, Lengths(120, 0.4), Lengths(60, 0.8))
    stream = Stream(rng.uniform(2, 12), family, Lengths(60, 0.9, 1), rng, impatient=0.3, bursts=2.0)
    stream.turns = Turns(0.5, Lengths(3, 0.5), Lengths(30, 0.5))
    stream.attach(engine, 0.0)
    for tenth in range(300):
        engine.advance(tenth / 10)
        engine.check_integrity()
    stream.attach(None, 30.0)
    engine.advance(600.0)
    engine.check_integrity()
    assert not engine.running
    assert not engine.waiting
    assert engine.pool.usage == 0.0
    assert engine.live_tokens() == 0
    meters = engine.meters
    assert meters.e2e.count == sum(meters.success.values()) > 20
    assert meters.token_gap.count + meters.ttft.count == meters.generation_tokens
    assert sum(meters.prompt_by_source.values()) == meters.prompt_tokens
    assert engine.prefix.truth.hit == meters.prefix_hits
    assert meters.generation_length.total == meters.generation_tokens


def test_leaked_aborts_keep_their_blocks() -> None:
    engine = Engine(EngineConfig(100, cost=QUIET), Random(0))
    engine.leak_aborts = True
    request = _request(160, 500)
    engine.submit(request)
    engine.advance(1.0)
    held = len(request.blocks)
    engine.abort(request)
    engine.check_integrity()
    assert engine.pool.leaked == held > 10
    assert engine.pool.usage == pytest.approx(held / 99)


def test_a_producer_holds_the_prompt_until_its_reader_has_it() -> None:
    engine = Engine(EngineConfig(100, producer=True, transfers=True, cost=QUIET), Random(0))
    kept, expired = _request(160, 1), _request(160, 1)
    engine.submit(kept)
    engine.submit(expired)
    engine.advance(1.0)
    assert engine.pool.usage == pytest.approx(20 / 99)
    engine.release_held(kept)
    assert engine.pool.usage == pytest.approx(10 / 99)
    engine.advance(490.0)
    assert engine.pool.usage == 0.0
    assert engine.meters.transfers is not None
    assert engine.meters.transfers.num_kv_expired_reqs == 1


def test_a_fetch_is_deferred_and_then_decodes_without_prefill() -> None:
    engine = Engine(EngineConfig(100, transfers=True, cost=QUIET), Random(0))
    engine.fetcher = lambda request, now: engine.timers.at(now + 0.5, lambda _time: engine.fetched(request))
    request = replace(_request(160, 4), fetch=True)
    engine.submit(request)
    engine.advance(0.3)
    assert (engine.waiting_deferred, len(engine.running)) == (1, 0)
    engine.advance(2.0)
    assert request.stage is Stage.FINISHED
    assert engine.meters.prompt_by_source["external_kv_transfer"] == 159
    assert engine.meters.prompt_by_source["local_compute"] == 1
    engine.check_integrity()
