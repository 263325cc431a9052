"""The four workloads: what each sends, and what the engine must count because of how it is built.

Prompts are random token ids from a fixed seed, so that the length is exact, no tokenizer comes in between, and prefix
hits can be computed: vLLM counts whole blocks, and a block is found when every token up to its end was seen before.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.live.vllm.client import Client

BLOCK_TOKENS = 32
_FIRST_TOKEN, _LAST_TOKEN = 3, 300


@dataclass(frozen=True)
class Request:
    """One prompt, how much to generate, and how many of its tokens the prefix cache has already seen."""

    prompt: list[int]
    max_tokens: int
    expected_hits: int = 0


@dataclass(frozen=True)
class Workload:
    """A closed loop of ``workers`` clients, each pausing ``think_s`` after an answer.

    ``opening`` is sent one by one before the clock starts (it fills the cache); ``requests`` then yields without end.
    ``exact_hits`` is False where requests compete for blocks, so that hits cannot be foretold.
    """

    name: str
    blocks: int
    max_seqs: int
    workers: int
    think_s: float
    opening: Callable[[random.Random], list[Request]]
    requests: Callable[[random.Random, list[Request]], Iterator[Request]]
    exact_hits: bool = True


def _tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randint(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(count)]


def _nothing(chance: random.Random) -> list[Request]:
    return []


def _silence(chance: random.Random, opened: list[Request]) -> Iterator[Request]:
    return iter(())


def _three_prefixes(chance: random.Random) -> list[Request]:
    return [Request(_tokens(chance, 12 * BLOCK_TOKENS), 4) for _ in range(3)]


def _shared(chance: random.Random, opened: list[Request]) -> Iterator[Request]:
    while True:
        prefix = chance.choice(opened).prompt
        question = _tokens(chance, chance.randint(8, 60))
        yield Request(prefix + question, chance.randint(12, 32), expected_hits=len(prefix))


def _unique(chance: random.Random, opened: list[Request]) -> Iterator[Request]:
    while True:
        yield Request(_tokens(chance, chance.randint(200, 440)), chance.randint(12, 32))


def _long_answers(chance: random.Random, opened: list[Request]) -> Iterator[Request]:
    while True:
        yield Request(_tokens(chance, chance.randint(48, 96)), chance.randint(300, 420))


IDLE = Workload("idle", 512, 4, 0, 0.0, _nothing, _silence)
SHARED_PREFIXES = Workload("shared-prefixes", 512, 4, 2, 0.15, _three_prefixes, _shared)
UNIQUE_PREFIXES = Workload("unique-prefixes", 512, 4, 2, 0.15, _nothing, _unique)
SMALL_POOL = Workload("small-pool", 40, 6, 8, 0.0, _nothing, _long_answers, exact_hits=False)
ALL = (IDLE, SHARED_PREFIXES, UNIQUE_PREFIXES, SMALL_POOL)


@dataclass
class Ledger:
    """What was sent and answered: the client's side of the truth (tokens, requests)."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    expected_hits: int = 0
    errors: list[str] = field(default_factory=list)


class Load:
    """Drives one workload against one engine from ``start`` to ``stop``."""

    def __init__(self, url: str, workload: Workload, seed: int = 1) -> None:
        self.ledger = Ledger()
        self._url = url
        self._workload = workload
        self._chance = random.Random(f"{workload.name}/{seed}")
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._stream: Iterator[Request] = iter(())

    def start(self) -> None:
        opened = self._workload.opening(self._chance)
        client = Client(self._url)
        for request in opened:
            self._send(client, request)
        client.close()
        self._stream = self._workload.requests(self._chance, opened)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._workload.workers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> Ledger:
        """Send nothing more, wait for the answers under way, and give the ledger."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return self.ledger

    def _work(self) -> None:
        client = Client(self._url)
        while not self._over.is_set():
            with self._lock:
                request = next(self._stream)
            try:
                self._send(client, request)
            except OSError as error:
                self.ledger.errors.append(str(error))
                time.sleep(0.5)
            self._over.wait(self._workload.think_s)
        client.close()

    def _send(self, client: Client, request: Request) -> None:
        usage = client.complete(request.prompt, request.max_tokens)
        with self._lock:
            self.ledger.requests += 1
            self.ledger.prompt_tokens += usage.prompt_tokens
            self.ledger.completion_tokens += usage.completion_tokens
            self.ledger.expected_hits += request.expected_hits
