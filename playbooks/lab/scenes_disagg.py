"""A prefill pod and a decode pod with a NIXL-like hand-over between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .config import EngineConfig
from .fleet import Fleet, Pod
from .request import Request
from .scenarios import Cast
from .scheduler import Engine
from .workload import Lengths, SharedPrefixes, Stream

KV_BYTES_PER_TOKEN = 131_072
"""32 layers x 8 KV heads x 128 x 2 (K and V) x 2 bytes: an 8B model in bf16."""


@dataclass
class Disaggregated:
    """The two pods, the hand-over between them, and the switch that makes it hang from now on."""

    fleet: Fleet
    prefill: Pod
    decode: Pod
    hang: Callable[[float], None]
    hand_over: HandOver


class HandOver:
    """Sends finished prompts from a prefill pod to a decode pod, at ``gib_s`` GiB a second.

    ``piece`` is what a descriptor carries, in bytes (0: a block of a layer, as the connector lays them out); ``moved``
    hears of the bytes of every transfer.
    """

    def __init__(self, cast: Cast, prefill: Pod, decode: Pod, output: Lengths, gib_s: float) -> None:
        self.prefill = prefill
        self.decode = decode
        self.output = output
        self.gib_s = gib_s
        self.hanging = False
        self.piece = 0
        self.moved: Callable[[float], None] = lambda _volume: None
        self._rng = cast.stream_rng(decode, "hand-over")
        self._sources: dict[Request, Request] = {}
        decode.on_start = self._serve

    def send(self, now: float, source: Request) -> None:
        """The prefill pod has computed this prompt."""
        engine = self.decode.engine
        if engine is None:
            return
        wanted = self.output.draw(self._rng)
        request = Request(
            segments=list(source.segments[:-1]), prompt=source.prompt, output=wanted, max_tokens=2048,
            arrival=source.arrival, stop=True, fetch=True,
        )  # fmt: skip
        self._sources[request] = source
        engine.timers.at(now + 0.004, lambda _time: engine.submit(request))

    def _serve(self, engine: Engine) -> None:
        engine.fetcher = lambda request, now: self._fetch(engine, request, now)

    def _fetch(self, engine: Engine, request: Request, now: float) -> None:
        if self.hanging:
            return
        volume = request.prompt * KV_BYTES_PER_TOKEN
        post = abs(self._rng.gauss(0.0016, 0.0005))
        took = post + volume / (self.gib_s * 2**30) * abs(self._rng.gauss(1.0, 0.12))

        def arrived(_time: float) -> None:
            if self.hanging and self._rng.random() < 0.9:
                return
            meters = engine.meters.transfers
            if meters is not None:
                meters.xfer_time_seconds.observe(took)
                meters.post_time_seconds.observe(post)
                meters.bytes_transferred.observe(float(volume))
                pieces = volume // self.piece if self.piece else -(-request.prompt // 16) * 2
                meters.num_descriptors.observe(float(pieces))
            self.moved(float(volume))
            source = self._sources.pop(request, None)
            if source is not None and self.prefill.engine is not None:
                self.prefill.engine.release_held(source)
            engine.fetched(request)

        engine.timers.at(now + took, arrived)


def disaggregated(cast: Cast, rate: float, prompt: float, fit: float) -> Disaggregated:
    """Prefill and decode on two nodes; ``rate`` requests a second with prompts of about ``prompt`` tokens.

    The prefill pool holds ``fit`` such prompts, the decode pool somewhat more.
    """
    rng = cast.rng
    blocks = int(fit * prompt / 16)
    producer = EngineConfig(num_blocks=blocks, transfers=True, producer=True, cost=cast.cost)
    consumer = EngineConfig(num_blocks=int(blocks * rng.uniform(1.1, 1.4)), transfers=True, cost=cast.cost)
    prefill, decode = cast.pods(producer, consumer, names=(f"{cast.prefix}-prefill-0", f"{cast.prefix}-decode-0"))
    prefill.gpu.node, decode.gpu.node, decode.gpu.index = f"{cast.node}1", f"{cast.node}2", 0
    output = Lengths(rng.uniform(150, 260), 0.6, 4, 1200)
    hand_over = HandOver(cast, prefill, decode, output, rng.uniform(18, 36))
    family = SharedPrefixes(rng, rng.randint(3, 6), Lengths(prompt * 0.3, 0.3), Lengths(prompt * 0.7, 0.4))
    stream = Stream(rate, family, Lengths(1, 0.01, 1, 1), cast.stream_rng(prefill), max_tokens=1)
    stream.on_done = hand_over.send
    cast.load(prefill, stream)

    def hang(_now: float) -> None:
        hand_over.hanging = True

    return Disaggregated(cast.fleet([prefill, decode]), prefill, decode, hang, hand_over)
