"""Continuous batching over a paged pool, a step at a time: the simulated engine.

Every running request in decode gets one token a step. So a request's next need of a block and its end are known
step numbers, and a step looks only at the requests that are due: its price does not grow with the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from .account import count_finished, count_first_token
from .config import EngineConfig
from .meters import EngineMeters
from .pool import BlockPool
from .prefix import KeyChain, KeyTable, PrefixCache, Segment, new_text
from .request import Request, Stage
from .timers import Timers

LEASE_S = 480.0
"""How long a producer keeps a finished prompt for its reader, unless told otherwise (vLLM's NIXL time-out)."""

_OUTPUT_SPAN = 1 << 40


class Engine:
    """One engine process from its start to its death. Times are seconds of the simulation."""

    def __init__(self, config: EngineConfig, rng: Random, now: float = 0.0) -> None:
        self.config = config
        self.now = now
        self.meters = EngineMeters(config.max_model_len, config.transfers, config.residency_sample > 0)
        residency = self.meters.residency
        self.pool = BlockPool(config.num_blocks, config.residency_sample, residency.evicted if residency else None)
        self.prefix = PrefixCache(self.pool, config.block_tokens, config.prefix_caching)
        self.timers = Timers()
        self.waiting: deque[Request] = deque()
        self.fetching: list[Request] = []
        self.running: dict[Request, None] = {}
        self._prefilling: dict[Request, None] = {}
        self.held: dict[Request, list[int]] = {}
        self.busy_prefill_s = 0.0
        self.busy_decode_s = 0.0
        self.leak_aborts = False
        self.lost_readers = False
        self.fetcher: Callable[[Request, float], None] | None = None
        self.step_factor = 1.0
        self._rng = rng
        self._keys = KeyTable()
        self._step = 0
        self._decoding = 0
        self._live_tokens = 0
        self._needs_block: dict[int, list[tuple[Request, int]]] = {}
        self._finishes: dict[int, list[tuple[Request, int]]] = {}
        self._watermark = int(config.watermark * config.num_blocks)

    # --- from outside ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """A request arrives (at its ``arrival``)."""
        segments: list[Segment] = [*request.segments, (new_text(), _OUTPUT_SPAN)]
        request.segments = segments
        request.chain = KeyChain(self._keys, segments, self.config.block_tokens)
        if request.fetch and self.fetcher is not None:
            request.stage = Stage.FETCHING
            self.fetching.append(request)
            self.start_fetches()
        else:
            self.waiting.append(request)

    def advance(self, until: float) -> None:
        """Run steps up to ``until``; the last one may end a little later."""
        while self.now < until:
            self.timers.fire(self.now)
            if self.running or self.waiting:
                took = self.step()
                if took:
                    continue
            self.now = max(self.now, min(until, self.timers.next_time))

    def abort(self, request: Request) -> None:
        """The client goes away. With ``leak_aborts`` the engine forgets the blocks instead of freeing them."""
        if request.stage is Stage.FINISHED:
            return
        self._settle(request)
        if request.in_batch:
            del self.running[request]
            if request.stage is Stage.DECODE:
                self._decoding -= 1
        elif request in self.fetching:
            self.fetching.remove(request)
        else:
            self.waiting.remove(request)
        self._drop_blocks(request, leak=self.leak_aborts)
        self._end(request, "abort")

    def release_held(self, request: Request) -> None:
        """The reader of a finished prompt has it, or the lease is over."""
        blocks = self.held.pop(request, None)
        if blocks is not None:
            self.pool.release(blocks)

    def fetched(self, request: Request) -> None:
        """The prompt's KV has come: the request is ready to be scheduled."""
        if request.stage is not Stage.FETCHING:
            return
        self.fetching.remove(request)
        request.stage = Stage.WAITING
        request.computed = request.prompt - 1
        self.meters.external_hits += request.computed
        self.waiting.append(request)

    def start_fetches(self) -> None:
        """Give blocks to fetches in order of arrival, and start them."""
        for request in self.fetching:
            if request.blocks or self.fetcher is None:
                continue
            count = -(-request.prompt // self.config.block_tokens)
            if self.pool.free_blocks < count + self._watermark:
                return
            request.blocks = self.pool.allocate(count, self.now)
            self.meters.external_queries += request.prompt
            self.meters.prefix_queries += request.prompt
            self.fetcher(request, self.now)

    # --- truth ----------------------------------------------------------------------------------------------------

    @property
    def waiting_capacity(self) -> int:
        return len(self.waiting)

    @property
    def waiting_deferred(self) -> int:
        return len(self.fetching)

    def live_tokens(self) -> int:
        """KV tokens that running requests hold (shared ones counted for each)."""
        return sum(self._computed(request) for request in self.running)

    def unused_slots(self) -> int:
        """Token slots of running requests' blocks that hold nothing."""
        size = self.config.block_tokens
        return sum(len(request.blocks) * size - self._computed(request) for request in self.running)

    def check_integrity(self) -> None:
        """The pool's books against every holder's blocks."""
        holders = [r.blocks for r in (*self.running, *self.waiting, *self.fetching)]
        self.pool.check_integrity([*holders, *self.held.values()])

    # --- one step -------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Schedule and execute one step; its duration in seconds, 0 when nothing could run."""
        self._step += 1
        preempted = self.meters.preemptions
        self._grow_decodes()
        budget = self.config.max_batched_tokens - self._decoding
        chunks = self._continue_prefills(budget)
        if self.meters.preemptions == preempted:
            self._admit(budget - sum(chunks.values()), chunks)
        prompt_tokens = sum(chunks.values())
        if not prompt_tokens and not self._decoding:
            return 0.0
        took = self._duration(prompt_tokens)
        self.now += took
        decoded = self._decoding
        self.meters.step_tokens.observe(float(prompt_tokens + decoded))
        if decoded:
            self.meters.token_gap.observe(took, decoded)
            self.meters.generation_tokens += decoded
            self._live_tokens += decoded
        self._finish_decodes()
        for request, chunk in chunks.items():
            self._computed_chunk(request, chunk)
        return took

    def _duration(self, prompt_tokens: int) -> float:
        cost = self.config.cost
        prefill = prompt_tokens * cost.prefill
        decode = self._decoding * cost.decode + self._live_tokens * cost.context
        jitter = max(0.5, self._rng.gauss(1.0, cost.noise)) * self.step_factor
        took = (cost.base + prefill + decode) * jitter
        share = prefill / (cost.base + prefill + decode)
        self.busy_prefill_s += took * share
        self.busy_decode_s += took * (1 - share)
        return took

    def _grow_decodes(self) -> None:
        """A block for every decode whose last one is full; the newest requests give way."""
        for request, epoch in self._needs_block.pop(self._step, ()):
            if request.epoch != epoch or request.stage is not Stage.DECODE:
                continue
            if not self._make_room(request, 1):
                continue
            request.blocks.extend(self.pool.allocate(1, self.now))
            self._plan_block(request)

    def _make_room(self, request: Request, count: int) -> bool:
        """Preempt newest first until ``count`` blocks are free; False when ``request`` itself had to go."""
        while self.pool.free_blocks < count:
            victim = next(reversed(self.running))
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _continue_prefills(self, budget: int) -> dict[Request, int]:
        chunks: dict[Request, int] = {}
        for request in list(self._prefilling):
            if request.stage is not Stage.PREFILL or budget <= 0:
                continue
            chunk = min(request.length - request.computed, budget)
            missing = self._blocks_for(request.computed + chunk) - len(request.blocks)
            if missing > 0:
                if not self._make_room(request, missing):
                    continue
                request.blocks.extend(self.pool.allocate(missing, self.now))
            chunks[request] = chunk
            budget -= chunk
        return {request: chunk for request, chunk in chunks.items() if request.stage is Stage.PREFILL}

    def _admit(self, budget: int, chunks: dict[Request, int]) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            first = request.first_scheduled < 0
            found: list[int] = []
            if request.computed == 0 and request.chain is not None:
                found = self.prefix.match(request.chain, request.length)
            cached = request.computed or len(found) * self.config.block_tokens
            chunk = min(request.length - cached, budget)
            missing = self._blocks_for(cached + chunk) - len(found) - len(request.blocks)
            revived = sum(1 for block in found if self.pool.refs[block] == 0)
            if self.pool.free_blocks - revived < missing + self._watermark and self.running:
                return
            if self.pool.free_blocks - revived < missing:
                return
            self.waiting.popleft()
            self._enter(request, found, cached, missing)
            if first and not request.fetch:
                self.meters.prefix_queries += request.prompt
                self.meters.prefix_hits += cached
                if request.chain is not None:
                    self.prefix.account(request.chain, request.prompt, len(found))
            chunks[request] = chunk
            budget -= chunk

    def _enter(self, request: Request, found: list[int], cached: int, missing: int) -> None:
        for block in found:
            self.pool.touch(block, self.now)
        request.blocks.extend(found)
        if missing > 0:
            request.blocks.extend(self.pool.allocate(missing, self.now))
        request.computed = cached
        request.published = len(found)
        request.stage = Stage.PREFILL
        if request.first_scheduled < 0:
            request.first_scheduled = self.now
            request.prefilled = request.prompt - cached
        self._live_tokens += cached
        self.running[request] = None
        self._prefilling[request] = None

    def _computed_chunk(self, request: Request, chunk: int) -> None:
        request.computed += chunk
        self._live_tokens += chunk
        self._publish(request, request.computed)
        if request.computed >= request.length:
            self._first_token(request)

    def _first_token(self, request: Request) -> None:
        """The prompt is computed: one token comes out, the first or the first after a preemption."""
        request.generated += 1
        count_first_token(self.meters, request, self.now)
        request.last_token = self.now
        request.stage = Stage.DECODE
        del self._prefilling[request]
        request.start_step = self._step
        request.start_computed = request.computed
        request.start_generated = request.generated
        self._decoding += 1
        if request.generated >= request.output:
            self._complete(request)
            return
        self._plan_block(request)
        last = request.start_step + request.output - request.generated
        self._finishes.setdefault(last, []).append((request, request.epoch))

    def _finish_decodes(self) -> None:
        for request, epoch in self._finishes.pop(self._step, ()):
            if request.epoch == epoch and request.stage is Stage.DECODE:
                self._complete(request)

    # --- books ----------------------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_tokens)

    def _computed(self, request: Request) -> int:
        """KV tokens in the request's blocks."""
        if request.stage is Stage.DECODE:
            return request.start_computed + self._step - request.start_step
        return request.computed

    def _plan_block(self, request: Request) -> None:
        room = len(request.blocks) * self.config.block_tokens - request.start_computed
        step = request.start_step + room + 1
        self._needs_block.setdefault(step, []).append((request, request.epoch))

    def _publish(self, request: Request, tokens: int) -> None:
        """Key every block that ``tokens`` tokens fill (those of an answer: when its request leaves the batch)."""
        full = tokens // self.config.block_tokens
        if full <= request.published or request.chain is None or not self.config.prefix_caching:
            return
        keys = request.chain.upto(full)
        for index in range(request.published, min(full, len(request.blocks))):
            self.prefix.publish(request.blocks[index], keys[index])
        request.published = full

    def _settle(self, request: Request) -> None:
        """Write down what a decode has reached, before it leaves the batch."""
        if request.stage is Stage.DECODE:
            steps = self._step - request.start_step
            request.computed = request.start_computed + steps
            request.generated = request.start_generated + steps
            request.start_step = self._step
            request.start_computed = request.computed
            request.start_generated = request.generated
            if steps:
                request.last_token = self.now
        request.epoch += 1

    def _drop_blocks(self, request: Request, leak: bool = False) -> None:
        if request.in_batch:
            self._live_tokens -= request.computed
            self._publish(request, request.computed)
        self._prefilling.pop(request, None)
        if leak:
            self.pool.leak(request.blocks)
        else:
            self.pool.release(request.blocks)
        request.blocks = []

    def _preempt(self, request: Request) -> None:
        if request.stage is Stage.DECODE:
            # The step in progress has not been executed for it.
            self._step -= 1
            self._settle(request)
            self._step += 1
            self._decoding -= 1
        else:
            request.epoch += 1
        del self.running[request]
        self._drop_blocks(request)
        request.stage = Stage.WAITING
        request.computed = 0
        request.published = 0
        request.preemptions += 1
        self.meters.preemptions += 1
        self.waiting.appendleft(request)

    def _complete(self, request: Request) -> None:
        self._settle(request)
        self._decoding -= 1
        request.last_token = self.now
        del self.running[request]
        if self.config.producer:
            self._publish(request, request.computed)
            self._live_tokens -= request.computed
            self.held[request] = request.blocks
            request.blocks = []
            self.timers.at(self.now + LEASE_S, lambda _time: self._expire(request))
        else:
            self._drop_blocks(request)
        self._end(request, "stop" if request.stop else "length")
        self.start_fetches()

    def _expire(self, request: Request) -> None:
        if request in self.held and self.meters.transfers is not None:
            self.meters.transfers.num_kv_expired_reqs += 1
        self.release_held(request)

    def _end(self, request: Request, reason: str) -> None:
        request.stage = Stage.FINISHED
        count_finished(self.meters, request, reason, self.now)
        if request.turn is not None and reason != "abort":
            request.turn(self.now, request)
