"""Scenarios of a device's links: PCIe trained down, filled by offloading or noisy; NVLink with errors on one port."""

from __future__ import annotations

from .hardware import GPUS
from .offload import Offload
from .scenarios import Cast, Stage, Truth, scenario
from .scenes_gpu import Detailed, detailed
from .scenes_healthy import healthy, plain


def offloading(cast: Cast, share: float = 0.06) -> tuple[Detailed, Offload]:
    """Pods that keep KV in host memory; on the one at fault copies in each direction take ``share`` of its link."""
    made = detailed(cast, plain(cast))
    for pod, device in zip(made.pods, made.devices, strict=True):
        pod.more = Offload(pod.model, cast.stream_rng(pod, "offload"), speed=0.75 * device.pcie.rate)
    fill(made, loads=share, stores=share)
    offload = made.pod.more
    assert isinstance(offload, Offload)
    return made, offload


def fill(made: Detailed, loads: float, stores: float) -> None:
    """Copies of the connector on the device at fault, as shares of the link; a copy carries its headers."""
    offload, device = made.pod.more, made.device
    assert isinstance(offload, Offload)
    offload.loads, offload.stores = loads * device.pcie.rate * 0.94, stores * device.pcie.rate * 0.94
    device.copies_in, device.copies_out = loads * device.pcie.rate, stores * device.pcie.rate


def saturated(cast: Cast, loads: float, stores: float, why: str) -> Stage:
    made, _offload = offloading(cast)
    factor = cast.rng.uniform(1.8, 2.2)

    def flood(_now: float) -> None:
        fill(made, loads, stores)
        made.device.waits = cast.rng.uniform(0.25, 0.4)
        made.slower(factor)

    made.fleet.events.at(cast.onset, flood)
    truth = made.truth(
        "pcie-saturated-by-offload", cast.onset, why,
        must_not=("healthy", "pcie-downtrained", "pcie-signal-errors", "pageable-copies"),
    )  # fmt: skip
    return made.stage(truth)


@scenario("pcie-saturated-by-offload")
def loads_saturate(cast: Cast) -> Stage:
    """From the onset on nearly every prompt is fetched from host memory."""
    return saturated(cast, cast.rng.uniform(0.74, 0.82), 0.06, "More comes from host memory than PCIe carries.")


@scenario("pcie-saturated-by-stores")
def stores_saturate(cast: Cast) -> Stage:
    """From the onset on every block is copied out to host memory."""
    return saturated(cast, 0.06, cast.rng.uniform(0.74, 0.82), "Every block is written to host memory at once.")


@scenario("healthy-offload")
def offload_light(cast: Cast) -> Stage:
    made, _offload = offloading(cast, cast.rng.uniform(0.15, 0.3))
    return made.stage(healthy("Copies to and from host memory, with room on the link."))


@scenario("pcie-full-of-something-else")
def others_saturate(cast: Cast) -> Stage:
    """The link is as full, and the offload counters tell of next to nothing: some other copies are on it."""
    made, _offload = offloading(cast)

    def flood(_now: float) -> None:
        made.device.copies_in = cast.rng.uniform(0.74, 0.82) * made.device.pcie.rate
        made.device.waits = 0.3
        made.slower(2.2)

    made.fleet.events.at(cast.onset, flood)
    return made.stage(Truth("unknown", must_not=("pcie-saturated-by-offload",), why="Whose bytes they are is open."))


def trained_down(made: Detailed, cast: Cast) -> None:
    if cast.rng.random() < 0.5:
        made.device.pcie.generation = cast.rng.choice((1, 2, 3))
    else:
        made.device.pcie.lanes = cast.rng.choice((4, 8))


@scenario("pcie-downtrained")
def downtrained(cast: Cast) -> Stage:
    """One card's link came up slower or narrower than it could, and stays so under load."""
    made = detailed(cast, plain(cast), spare=True)
    trained_down(made, cast)
    return made.stage(made.truth("pcie-downtrained", None, "The card sits badly in its slot."))


@scenario("pcie-downtrained-offload")
def downtrained_offload(cast: Cast) -> Stage:
    """The same, and the usual offload traffic fills what is left of the link from the onset on."""
    made, _offload = offloading(cast)
    made.device.pcie.lanes = 4
    fill(made, 0.06, 0.06)

    def more(_now: float) -> None:
        fill(made, 0.8, 0.06)
        made.device.waits = 0.3
        made.slower(1.9)

    made.fleet.events.at(cast.onset, more)
    return made.stage(made.truth("pcie-downtrained", None, "A quarter of the lanes is full of what all would carry."))


@scenario("pcie-signal-errors")
def replays(cast: Cast) -> Stage:
    """From the onset on packets arrive damaged and are sent again."""
    made = detailed(cast, plain(cast))
    if cast.rng.random() < 0.5:
        made.over_nvml()

    def noisy(_now: float) -> None:
        made.device.replays = cast.rng.uniform(2.5, 6.0)

    made.fleet.events.at(cast.onset, noisy)
    return made.stage(made.truth("pcie-signal-errors", cast.onset, "A riser has a bad contact."))


@scenario("pcie-signal-errors-trained-down")
def replays_trained_down(cast: Cast) -> Stage:
    """The same all along, and the link has come down a generation for it."""
    made = detailed(cast, plain(cast))
    made.device.replays = cast.rng.uniform(2.5, 6.0)
    made.device.pcie.generation -= 1
    return made.stage(made.truth("pcie-signal-errors", None, "The link came down to where it holds, nearly."))


@scenario("healthy-pcie-replays-once")
def replays_once(cast: Cast) -> Stage:
    """A link is trained anew, once: some hundred packets are sent again at that moment."""
    made = detailed(cast, plain(cast))
    for when in (cast.onset, 245.0):
        made.fleet.events.at(when, lambda _now: made.device.burst(300))
    return made.stage(healthy("Twice within five minutes a link was trained anew: events, no trouble."))


def nvlinked(cast: Cast) -> Detailed:
    cast.gpu = cast.rng.choice(GPUS[:3])
    return detailed(cast, plain(cast))


def bad_port(made: Detailed, cast: Cast, kind: str, rate: float) -> Stage:
    port = cast.rng.randrange(12)

    def fail(_now: float) -> None:
        assert made.device.nvlink is not None
        made.device.nvlink.errors[port, kind] = rate

    made.fleet.events.at(cast.onset, fail)
    return made.stage(made.truth("nvlink-errors", cast.onset, f"Its NVLink port {port} counts {kind} errors."))


@scenario("nvlink-errors")
def nvlink(cast: Cast) -> Stage:
    """Packets of one port are sent again, told as a sum over the ports."""
    return bad_port(nvlinked(cast), cast, cast.rng.choice(("replay", "recovery")), cast.rng.uniform(0.25, 0.8))


@scenario("nvlink-errors-by-link")
def nvlink_by_link(cast: Cast) -> Stage:
    """One port damages hundreds of flits a second; the target `nvml` tells which."""
    made = nvlinked(cast)
    made.over_nvml()
    return bad_port(made, cast, "crc_flit", cast.rng.uniform(200, 900))


@scenario("healthy-nvlink-reset")
def nvlink_reset(cast: Cast) -> Stage:
    """The ports are trained anew at one moment."""
    made = nvlinked(cast)

    def reset(_now: float) -> None:
        for device in made.devices:
            assert device.nvlink is not None
            for port in range(device.nvlink.count):
                device.nvlink.counted[port, "recovery"] += 1

    made.fleet.events.at(245.0, reset)
    return made.stage(healthy("The fabric manager was restarted: every port recovered once.", 245.0))
