"""Messages survive the way as bytes; bytes that are no message are refused, whatever they are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore import messages as m
from kvstore import wire
from kvstore.clock import MAX_CLOCK
from kvstore.errors import BadRequest, StoreError, kinds

N = 3
KEYS = np.arange(N * 4, dtype=np.uint64).reshape(N, 4)
I64 = np.arange(N, dtype=np.int64)
U64 = np.arange(N, dtype=np.uint64) + np.uint64(1 << 63)
DIGESTS = np.arange(5 * 24, dtype=np.uint8).reshape(5, 24)
CHAINS = np.arange(N * 24, dtype=np.uint8).reshape(N, 24)
FLAGS = np.array([True, False, True])
LOCATED = m.Located(I64 - 1, U64, U64, I64, I64, lease=1 << 63, lease_until_ms=-5)

MESSAGES: list[Any] = [
    m.Lookup(KEYS, 250, 1 << 63, prefix=True, touch=False),
    m.Lookup(KEYS[:0]),
    LOCATED,
    m.Put(KEYS, I64, U64, I64 + 1, CHAINS, 9, m.Durability.LOG_SYNC, one_run=True),
    m.Append(7, KEYS, I64, U64, 5, U64, DIGESTS, KEYS[::-1].copy(), m.Durability.LOG),
    m.Append(7, KEYS, I64, U64, 5, U64, DIGESTS, None),
    m.Published(I64, U64, U64, FLAGS),
    m.TailMatch(3, KEYS, DIGESTS, 100),
    m.TailMatched(4, LOCATED),
    m.Lease(U64, 100, -1),
    m.Leased(I64),
    m.Touch(I64, U64, m.ReadReport(1, 2, 3, 4, 5, 6, 7, 8, (0.5, 0.25))),
    m.OpenSession(5, "chat:v1", 1000, create=True),
    m.SessionState(5, True, 6, 7),
    m.CloseSession(5, forget=True),
    m.Remove(KEYS, m.Durability.LOG),
    m.Removed(FLAGS),
    m.Ping(),
    m.Measured(2, 1 << 40),
    m.Pong(3, 1 << 40),
    wire.Cancel(U64),
    wire.Cancelled(U64),
]
REQUESTS = [message for message in MESSAGES if type(message) in wire.METHODS]
ENVELOPE = m.Envelope(MAX_CLOCK, 5000, "00-" + "a" * 32 + "-" + "b" * 16 + "-01", 1 << 63, 12)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if hasattr(a, "__slots__") and not isinstance(a, int):
        return type(a) is type(b) and all(same(getattr(a, name), getattr(b, name)) for name in a.__slots__)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_way(message: Any) -> None:
    envelope, there = wire.unpack_request(wire.pack_request(ENVELOPE, message))
    assert envelope == ENVELOPE
    assert same(there, message)
    clock, back = wire.unpack_reply(wire.pack_reply(77, message))
    assert clock == 77
    assert same(back, message)


def test_every_message_of_the_contract_has_a_form() -> None:
    contract = {
        kind
        for name, kind in vars(m).items()
        if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and kind.__module__ == m.__name__
    }
    assert contract - {m.Envelope, m.ReadReport} <= {type(message) for message in MESSAGES}


def test_columns_are_views_of_the_message() -> None:
    data = wire.pack_request(ENVELOPE, m.Lookup(KEYS))
    _, there = wire.unpack_request(data)
    assert np.shares_memory(there.keys, np.frombuffer(data, np.uint8))
    assert there.keys.flags.aligned
    assert not there.keys.flags.writeable


@pytest.mark.parametrize("kind", [kind for kind in kinds().values() if kind.code != 1])
def test_an_error_arrives_as_its_own_kind(kind: type[StoreError]) -> None:
    clock, error = wire.unpack_reply(wire.pack_error(3, kind("one line\nand another")))
    assert clock == 3
    assert type(error) is kind
    assert "one line and another" in str(error)


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_a_cut_or_longer_message_is_refused(message: Any) -> None:
    data = wire.pack_request(ENVELOPE, message)
    for end in range(len(data)):
        with pytest.raises(BadRequest):
            wire.unpack_request(data[:end])
    with pytest.raises(BadRequest):
        wire.unpack_request(data + bytes(8))


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(REQUESTS), st.data())
def test_damaged_bytes_are_a_message_or_a_bad_request(message: Any, data: st.DataObject) -> None:
    damaged = bytearray(wire.pack_request(ENVELOPE, message))
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadRequest):
        wire.unpack_request(bytes(damaged))


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    for unpack in (wire.unpack_request, wire.unpack_reply):
        with suppress(BadRequest):
            unpack(bytes([wire.VERSION]) + data)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (m.Put(KEYS, I64[:2], U64, I64, CHAINS), "rows"),
        (m.Put(KEYS, I64, U64, I64, CHAINS[:, :20]), "shape"),
        (m.Lookup(KEYS, lease_ms=-1), "Lookup"),
        (m.Lookup(np.zeros((wire.MAX_ROWS + 1, 4), np.uint64)), "more than"),
        (m.Append(7, KEYS, I64, U64, 5, U64, DIGESTS, KEYS[:1]), "rows"),
    ],
)
def test_what_does_not_fit_is_not_sent(message: Any, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        wire.pack_request(ENVELOPE, message)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (m.Put(KEYS, I64 - 1, U64, I64 + 1, CHAINS), "negative"),
        (m.Put(KEYS, I64, U64, I64, CHAINS), "valid token"),
        (m.Append(7, KEYS, I64, U64, 4, U64, DIGESTS), "digests"),
        (m.OpenSession(0, "two words"), "session_class"),
        (m.OpenSession(0, ""), "session_class"),
        (m.OpenSession(0, "x" * 65), "session_class"),
        (m.OpenSession(0, "x", 0), "ttl_ms"),
        (m.Lease(U64, 0, 2), "pin"),
        (m.Touch(I64, U64, m.ReadReport(seconds=(float("nan"),))), "finite"),
        (m.Touch(I64, U64, m.ReadReport(seconds=(-1.0,))), "finite"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_receiver(message: Any, why: str) -> None:
    data = wire.pack_request(ENVELOPE, message)
    with pytest.raises(BadRequest, match=why):
        wire.unpack_request(data)


@pytest.mark.parametrize("deadline", [0, (1 << 32) - 1])
def test_a_deadline_out_of_range_is_refused(deadline: int) -> None:
    with pytest.raises(BadRequest, match="deadline"):
        wire.unpack_request(wire.pack_request(m.Envelope(deadline_ms=deadline), m.Ping()))


@pytest.mark.parametrize("clock", [MAX_CLOCK + 1, (1 << 64) - 1])
def test_a_clock_that_no_store_reaches_is_refused_on_either_side(clock: int) -> None:
    with pytest.raises(BadRequest, match="clock"):
        wire.unpack_request(wire.pack_request(m.Envelope(clock), m.Ping()))
    for reply in (wire.pack_reply(clock, m.Ping()), wire.pack_error(clock, StoreError("no"))):
        with pytest.raises(BadRequest, match="clock"):
            wire.unpack_reply(reply)


@pytest.mark.parametrize("trace", ["", "nonsense", "00-zz-01", "00-" + "A" * 32 + "-" + "b" * 16 + "-01", "é" * 40])
def test_a_trace_context_that_does_not_parse_is_ignored(trace: str) -> None:
    envelope, _ = wire.unpack_request(wire.pack_request(m.Envelope(traceparent=trace), m.Ping()))
    assert envelope.traceparent == ""
