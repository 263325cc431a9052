"""NVLink: state, rate, bytes and errors of every link."""

from __future__ import annotations

from collections.abc import Mapping

from probes.nvml.asker import Asker, Reply
from probes.nvml.faults import FieldState
from probes.nvml.names import (
    LINK_BYTES,
    LINK_COUNT,
    LINK_COUNTS,
    LINK_DATA,
    LINK_ERRORS,
    LINK_SPEED,
    LINK_SPEED_COMMON,
)
from probes.nvml.samples import Samples

LINKS_MOST = 36
"""NVML_NVLINK_MAX_LINKS."""
_SPEED_MOST_MB = 1_000_000


def read(ask: Asker, out: Samples) -> None:
    """All links of a device; one without NVLink lacks ``nvlink_up``."""
    count = _count(ask)
    if count == 0:
        ask.lack("nvlink_up", "unsupported")
        return
    up = {link: ask.reply("nvmlDeviceGetNvLinkState", link) for link in range(count)}
    for link, state in up.items():
        if state.state is None:
            out.add("nvlink_up", ask.checked("nvlink_up", state.value, most=1), link=str(link))
    _lack_all(ask, "nvlink_up", [one.state for one in up.values()])
    # A link that is down answers no further question; its counters would only end with an error.
    active = [link for link, state in up.items() if state.state is None and state.value == 1]
    if active:
        _rates(ask, active, out)
        _bytes(ask, active, out)
        _errors(ask, active, out)


def _count(ask: Asker) -> int:
    value, state = ask.fields([(LINK_COUNT, 0)])[LINK_COUNT, 0]
    return value if state is None and 0 <= value <= LINKS_MOST else 0


def _rates(ask: Asker, links: list[int], out: Samples) -> None:
    told = ask.fields([(LINK_SPEED_COMMON, 0), *((LINK_SPEED, link) for link in links)])
    name, states = "nvlink_rate_bytes_per_second", []
    for link in links:
        speed = told[LINK_SPEED, link]
        if speed.state is not None:  # before Hopper there is one for all links
            speed = told[LINK_SPEED_COMMON, 0]
        states.append(speed.state)
        if speed.state is None:
            out.add(name, ask.checked(name, speed.value, 1e6, least=1, most=_SPEED_MOST_MB), link=str(link))
    _lack_all(ask, name, states)


def _bytes(ask: Asker, links: list[int], out: Samples) -> None:
    fields = {**dict.fromkeys(LINK_DATA, 1024.0), **dict.fromkeys(LINK_BYTES, 1.0)}
    told = ask.fields([(field, link) for field in fields for link in links])
    for way in ("transmit", "receive"):
        name, states = f"nvlink_{way}_bytes_total", []
        for link in links:
            found = _first(told, link, [f for f, its in {**LINK_DATA, **LINK_BYTES}.items() if its == way])
            states.append(found[1].state)
            if found[1].state is None:
                out.add(name, ask.checked(name, found[1].value, fields[found[0]]), link=str(link))
        _lack_all(ask, name, states)


def _first(told: Mapping[tuple[int, int], Reply], link: int, fields: list[int]) -> tuple[int, Reply]:
    """The first of several fields that has an answer for a link, else the last."""
    return next(
        ((f, told[f, link]) for f in fields if told[f, link].state is None), (fields[-1], told[fields[-1], link])
    )


def _errors(ask: Asker, links: list[int], out: Samples) -> None:
    """By the function for NVLink 1 to 4, by fields from NVLink 5 on: a device has one or the other."""
    name, states = "nvlink_errors_total", []
    counts = ask.fields([(field, link) for field in LINK_COUNTS for link in links])
    for link in links:
        older = [(error, ask.reply("nvmlDeviceGetNvLinkErrorCounter", link, n)) for n, error in LINK_ERRORS.items()]
        newer = [(error, counts[field, link]) for field, error in LINK_COUNTS.items()]
        told = older if any(reply.state is None for _, reply in older) else newer
        for error, reply in told:
            states.append(reply.state)
            if reply.state is None:
                out.add(name, ask.checked(f"{name}/{error}", reply.value), link=str(link), error=error)
    _lack_all(ask, name, states)


def _lack_all(ask: Asker, field: str, states: list[FieldState | None]) -> None:
    """The field is missing if no link had it."""
    if states and all(states):
        ask.lack(field, next(state for state in states if state))
