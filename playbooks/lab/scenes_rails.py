"""Scenarios of the wire between a prefill and a decode pod: RDMA ports that carry the KV, lose it, or stand idle.

The decode side reads: requests go from it to the prefill side, and the KV comes back. Marks a second are those that a
lab with Soft-RoCE counted (README of tests/roce), scaled to an adapter's rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from .hardware import Node
from .rails import Rail
from .scenarios import Cast, Stage, Truth, scenario
from .scenes_disagg import Disaggregated, disaggregated

RATES = (12.5e9, 25e9, 50e9)
"""Line rates in bytes a second: 100, 200 and 400 Gb/s."""


@dataclass
class Wired:
    """A hand-over with a port at each end: ``source`` sends the KV, ``reader`` asks for it."""

    cast: Cast
    stage: Disaggregated
    source: Rail
    reader: Rail
    nodes: tuple[Node, Node]

    @property
    def onset(self) -> float:
        return self.cast.onset

    def over_rails(self) -> None:
        def moved(volume: float) -> None:
            self.source.carry(sent=volume)
            self.reader.carry(received=volume)

        self.stage.hand_over.moved = moved

    def over_tcp(self) -> None:
        def moved(volume: float) -> None:
            self.nodes[0].carry(sent=volume)
            self.nodes[1].carry(received=volume)

        self.stage.hand_over.moved = moved

    def slower(self, factor: float) -> None:
        self.stage.hand_over.gib_s *= factor

    def play(self, truth: Truth) -> Stage:
        return Stage(self.stage.fleet, truth)

    def lossy(self, source: dict[str, float], reader: dict[str, float], slow: float) -> None:
        """Marks at each end, and transfers so much slower, from the onset on."""

        def begin(_now: float) -> None:
            self.source.rates.update(source)
            self.reader.rates.update(reader)
            self.slower(slow)

        self.stage.fleet.events.at(self.onset, begin)


def wired(cast: Cast, software: bool = False) -> Wired:
    """Two nodes, each with a port of the same kind."""
    rng = cast.rng
    stage = disaggregated(cast, rng.uniform(0.5, 0.8), rng.uniform(1800, 3000), fit=rng.uniform(300, 400))
    device = "rxe0" if software else f"mlx5_{rng.randrange(4)}"
    rate = 1.25e9 if software else rng.choice(RATES)
    by_name = {node.name: node for node in stage.fleet.nodes}
    first, second = by_name[stage.prefill.gpu.node], by_name[stage.decode.gpu.node]
    source, reader = (Rail(node.name, device, rate, cast.stream_rng(stage.decode, node.name), software)
                      for node in (first, second))  # fmt: skip
    first.beside.append(source)
    second.beside.append(reader)
    made = Wired(cast, stage, source, reader, (first, second))
    if software:
        stage.hand_over.gib_s = rng.uniform(1.02, 1.1)
    made.over_rails()
    return made


def _at(rail: Rail, onset_s: float | None, cause: str, why: str) -> Truth:
    return Truth(cause, {"instance": dict(rail.target)["instance"], "device": rail.device}, onset_s, why=why)


@scenario("healthy-rails")
def healthy(cast: Cast) -> Stage:
    """The KV goes over RDMA; a few marks come and go, as they do."""
    made = wired(cast)
    made.reader.rates.update(adaptive=0.02, marks=0.5)
    made.source.rates.update(gaps=0.03, repeats=0.01, cuts=0.4)
    return made.play(Truth("healthy"))


@scenario("healthy-rails-slow-wire")
def delayed(cast: Cast) -> Stage:
    """From the onset on every packet takes longer, and none is lost."""
    made = wired(cast)
    made.lossy({}, {}, 0.8)
    return made.play(Truth("healthy"))


@scenario("roce-loss-requests")
def requests(cast: Cast) -> Stage:
    """What the reader sends gets lost: the other end sees gaps, the reader sends again."""
    made = wired(cast)
    made.lossy({"gaps": 30.0, "repeats": 6.0}, {"naks": 29.0, "timeouts": 5.0, "adaptive": 8.0}, 0.5)
    return made.play(_at(made.reader, made.onset, "roce-loss", "Requests are lost on the way to the KV's source."))


@scenario("roce-loss-answers")
def answers(cast: Cast) -> Stage:
    """The KV itself gets lost: its source is asked for the rest again and again."""
    made = wired(cast)
    made.lossy({"repeats": 90.0}, {"lost_answers": 40.0, "timeouts": 4.0}, 0.2)
    return made.play(_at(made.source, made.onset, "roce-loss", "The KV is lost on its way to the reader."))


@scenario("roce-loss-software")
def software(cast: Cast) -> Stage:
    """The same on Soft-RoCE, whose counters are other ones; the seed picks which direction loses."""
    made = wired(cast, software=True)
    if cast.rng.random() < 0.5:
        made.lossy({"gaps": 1.4}, {"retries": 1.4}, 0.95)
        return made.play(_at(made.reader, made.onset, "roce-loss", "Requests are lost."))
    made.lossy({"repeats": 55.0}, {"retries": 5.0}, 0.95)
    return made.play(_at(made.source, made.onset, "roce-loss", "Answers are lost."))


@scenario("roce-flap")
def flap(cast: Cast) -> Stage:
    """One port's link goes down for a moment, again and again: marks of loss, and the mark of a link."""
    made = wired(cast)

    def down(now: float) -> None:
        made.source.flap()
        made.reader.counts["timeouts"] += 12
        made.reader.counts["naks"] += 15
        made.source.counts["gaps"] += 15
        if now < 290:
            made.stage.fleet.events.at(now + 20, down)

    made.stage.fleet.events.at(made.onset, down)
    return made.play(Truth("unknown", why="Not packets but the link is lost: no cause of the set says so."))


@scenario("roce-peer-dead")
def peer_dead(cast: Cast) -> Stage:
    """The reader asks a peer that is gone: time-outs at one end, nothing at the other."""
    made = wired(cast)
    made.lossy({}, {"timeouts": 2.0}, 0.9)
    return made.play(Truth("unknown", why="Nobody answers; a lost packet would leave a mark at the other end, too."))


@scenario("roce-congested")
def congested(cast: Cast) -> Stage:
    """A switch marks, the sender cuts its rate; nothing is lost but for a packet now and then."""
    made = wired(cast)
    made.source.rate = made.reader.rate = min(RATES)
    packets = 0.5 * 2500 * 131_072 / 4096
    made.lossy({"cuts": 900.0, "naks": 0.3}, {"marks": packets * 0.2, "gaps": 0.3}, 0.5)
    return made.play(Truth("unknown", also_acceptable=("roce-congestion",), why="Marked, not lost."))


@scenario("wrong-transport")
def wrong_transport(cast: Cast) -> Stage:
    """All KV crosses the hosts' network interfaces by TCP, the RDMA ports stand idle."""
    made = wired(cast)
    made.over_tcp()
    made.stage.hand_over.gib_s = cast.rng.uniform(0.42, 0.62)
    truth = Truth(
        "wrong-transport", {"instance": made.stage.decode.instance}, None,
        must_not=("roce-loss", "roce-congestion", "wrong-rail", "descriptor-explosion", "healthy"),
        why="The transfer library took TCP although both hosts have an RDMA port.",
    )  # fmt: skip
    return made.play(truth)


@scenario("tcp-without-rails")
def no_rails(cast: Cast) -> Stage:
    """The same speed on hosts whose ports are down: TCP is what there is."""
    made = wired(cast)
    made.over_tcp()
    made.stage.hand_over.gib_s = cast.rng.uniform(0.42, 0.62)
    made.source.active = made.reader.active = False
    return made.play(Truth("unknown", why="There is no RDMA to be had."))


@scenario("descriptor-explosion")
def tiny(cast: Cast) -> Stage:
    """Each descriptor carries a few kilobytes, and the time goes per descriptor: the ports idle."""
    made = wired(cast)
    rng = cast.rng
    made.stage.hand_over.piece = rng.choice((4096, 8192, 16_384))
    made.stage.hand_over.gib_s = min(rng.uniform(1.3, 2.4), made.source.rate * 0.15 / 2**30)
    truth = Truth(
        "descriptor-explosion", {"instance": made.stage.decode.instance}, None,
        must_not=("roce-loss", "roce-congestion", "wrong-transport", "registration-on-path", "healthy"),
        why="The hand-over is cut into pieces so small that moving them costs less than naming them.",
    )  # fmt: skip
    return made.play(truth)
