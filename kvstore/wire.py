"""Messages as packed bytes: a fixed little head, then raw columns.

No pickle and no generated code: gRPC carries these bytes as they are. A request is

    version u8 · kind u8 · trace length u16 · deadline_ms u32 · clock u64 · client u64 · ticket u64 · trace · body

a reply `version u8 · kind u8 · error code u16 · epoch u32 · clock u64 · body` (or, for an error, its text), and a body
`scalars · row counts u32 · columns`, each part padded to eight bytes, so that a column is a view of the message
(`np.frombuffer`). Whatever does not fit to the last byte is a `BadRequest`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from kvstore import messages as m
from kvstore.clock import require_clock
from kvstore.errors import BadRequest, StoreError, decode

VERSION = 1
MAX_ROWS = 1 << 18
MAX_TEXT = 256
MAX_TTL_MS = 366 * 24 * 3_600_000
MAX_BYTES = 64 << 20
"""The largest message either side accepts: 2**18 keys with everything that a put says about them is 24 MiB."""

_REQUEST = struct.Struct("<BBHIQQQ")
_REPLY = struct.Struct("<BBHIQ")
_LANES = 3
"""Of `transport.probe.LANES`."""
_ABSENT = 0xFFFFFFFF
_MAX_DEADLINE_MS = 24 * 3_600_000
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TEXT = re.compile(r"[A-Za-z0-9_.:/-]+")


@dataclass(frozen=True, slots=True)
class Cancel:
    """The asker has given up these puts: none of them may read its staging arena any more (`tickets` `[n]`)."""

    tickets: m.Words


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The pulls of these tickets have ended or will never begin: their staging runs are the client's again."""

    tickets: m.Words


@dataclass(frozen=True)
class _Column:
    name: str
    dtype: np.dtype[Any]
    width: int  # columns of a row; 0: one-dimensional
    group: str  # columns of one group have the same number of rows
    optional: bool  # None, or as many rows as its group


@dataclass(frozen=True)
class _Shape:
    """How one message class lies in bytes."""

    kind: int
    message: type[Any]
    head: struct.Struct
    scalars: tuple[tuple[str, str], ...]
    columns: tuple[_Column, ...]
    nested: dict[str, type[Any]]
    getters: tuple[Callable[[Any], Any], ...]


_SCALAR_CODES = {"u8": "B", "u32": "I", "u64": "Q", "i64": "q", "bool": "?", "durability": "B"}
_COLUMN_TYPES: dict[str, tuple[str, int]] = {
    "key": ("<u8", 4),
    "u64": ("<u8", 0),
    "i64": ("<i8", 0),
    "digest": ("u1", 24),
    "flag": ("u1", 0),
    "text": ("u1", 0),
    "f64": ("<f8", 0),
}


def _shape(kind: int, message: type[Any], fields: str, **nested: type[Any]) -> _Shape:
    """From `"session:u64 keys:key/n full_keys:key/n?"`: a slash makes a column and names its group of rows."""
    scalars: list[tuple[str, str]] = []
    columns: list[_Column] = []
    for word in fields.split():
        name, _, kind_text = word.partition(":")
        base, slash, group = kind_text.partition("/")
        if not slash:
            scalars.append((name, base))
            continue
        dtype, width = _COLUMN_TYPES[base]
        made = np.dtype(dtype) if base != "flag" else np.dtype(np.bool_)
        columns.append(_Column(name, made, width, group.rstrip("?"), group.endswith("?")))
    codes = "".join(_SCALAR_CODES[base] for _, base in scalars) + "I" * len(columns)
    getters = tuple(attrgetter(name) for name in [n for n, _ in scalars] + [c.name for c in columns])
    return _Shape(kind, message, struct.Struct("<" + codes), tuple(scalars), tuple(columns), nested, getters)


_LOCATED = "slot:i64/n generation:u64/n clock:u64/n valid:i64/n miss:i64/n lease:u64 lease_until_ms:i64"
_READS = ("batches", "blocks_ok", "blocks_torn", "blocks_recycled", "blocks_corrupt", "blocks_expired", "bytes")

_SHAPES = (
    _shape(1, m.Lookup, "lease_ms:u32 session:u64 prefix:bool touch:bool keys:key/n"),
    _shape(2, m.Located, _LOCATED),
    _shape(
        3,
        m.Put,
        "session:u64 durability:durability one_run:bool keys:key/n staging:i64/n data_sums:u64/n valid:i64/n "
        "chains:digest/n",
    ),
    _shape(
        4,
        m.Append,
        "session:u64 valid:u32 durability:durability keys:key/n staging:i64/n data_sums:u64/n expected:u64/n "
        "digests:digest/m full_keys:key/n?",
    ),
    _shape(5, m.Published, "slot:i64/n generation:u64/n clock:u64/n existed:flag/n"),
    _shape(6, m.TailMatch, "session:u64 lease_ms:u32 keys:key/n digests:digest/m"),
    _shape(
        7,
        m.TailMatched,
        "agree:u32 " + " ".join(f"located.{word}" for word in _LOCATED.split()),
        located=m.Located,
    ),
    _shape(8, m.Lease, "lease_ms:u32 pin:i64 leases:u64/n"),
    _shape(9, m.Leased, "until_ms:i64/n"),
    _shape(
        10,
        m.Touch,
        "slots:i64/n generations:u64/n reads.descriptors:u64 reads.seconds:f64/s "
        + " ".join(f"reads.{name}:u64" for name in _READS),
        reads=m.ReadReport,
    ),
    _shape(11, m.OpenSession, "session:u64 ttl_ms:i64 create:bool session_class:text/t"),
    _shape(12, m.SessionState, "session:u64 alive:bool blocks:u64 age_ms:i64"),
    _shape(13, m.CloseSession, "session:u64 forget:bool"),
    _shape(14, m.Remove, "durability:durability keys:key/n"),
    _shape(15, m.Removed, "found:flag/n"),
    _shape(16, m.Ping, ""),
    _shape(17, m.Pong, "shard:u32 now_ms:i64"),
    _shape(18, Cancel, "tickets:u64/n"),
    _shape(19, Cancelled, "tickets:u64/n"),
    _shape(20, m.Measured, "lane:u32 bytes_per_second:u64"),
)
_BY_CLASS = {shape.message: shape for shape in _SHAPES}
_BY_KIND = {shape.kind: shape for shape in _SHAPES}

METHODS: dict[type[Any], str] = {
    shape.message: shape.message.__name__
    for shape in _SHAPES
    if shape.message
    in (m.Lookup, m.Put, m.Append, m.TailMatch, m.Lease, m.Touch, m.OpenSession, m.CloseSession, m.Remove, m.Ping)
    or shape.message in (Cancel, m.Measured)
}
"""The requests, each a gRPC method of its own: class → method name."""

SERVICE = "kvstore.Shard"


def method_path(message: type[Any]) -> str:
    return f"/{SERVICE}/{METHODS[message]}"


def pack_request(envelope: m.Envelope, message: Any) -> bytes:
    """Bytes of a request; raises `BadRequest` when a column or number does not fit."""
    trace = envelope.traceparent.encode("ascii", "replace")
    shape = _BY_CLASS[type(message)]
    try:
        head = _REQUEST.pack(
            VERSION, shape.kind, len(trace), envelope.deadline_ms, envelope.clock, envelope.client, envelope.ticket
        )
    except struct.error as error:
        raise BadRequest(f"envelope: {error}") from None
    return b"".join((head, _padded(trace), *_pack_body(shape, message)))


def unpack_request(data: bytes) -> tuple[m.Envelope, Any]:
    """Envelope and message; columns are read-only views of `data`. Raises `BadRequest`."""
    if len(data) < _REQUEST.size:
        raise BadRequest(f"a request of {len(data)} bytes is shorter than its head")
    version, kind, trace_length, deadline_ms, clock, client, ticket = _REQUEST.unpack_from(data)
    _check_version(version)
    if not 1 <= deadline_ms <= _MAX_DEADLINE_MS:
        raise BadRequest(f"deadline_ms {deadline_ms} is not between 1 and {_MAX_DEADLINE_MS}")
    at = _REQUEST.size
    require_clock(clock)
    if trace_length > MAX_TEXT or at + trace_length > len(data):
        raise BadRequest("trace context is longer than the message")
    trace = data[at : at + trace_length].decode("ascii", "replace")
    # W3C: a traceparent that does not parse is ignored, the request is not.
    trace = trace if _TRACEPARENT.fullmatch(trace) else ""
    message = _unpack_body(kind, data, at + _align(trace_length))
    return m.Envelope(clock, deadline_ms, trace, client, ticket), message


def asker(data: bytes) -> int:
    """The client that a packed request says it is from; 0 for what is no request."""
    return int(_REQUEST.unpack_from(data)[5]) if len(data) >= _REQUEST.size else 0


def pack_reply(clock: int, message: Any, epoch: int = 0) -> bytes:
    """`epoch`: of the shard's membership, 0 where that never changes."""
    shape = _BY_CLASS[type(message)]
    return b"".join((_REPLY.pack(VERSION, shape.kind, 0, epoch, clock), *_pack_body(shape, message)))


def pack_error(clock: int, error: StoreError, epoch: int = 0) -> bytes:
    text = " ".join(str(error).split())[:1024] or type(error).__name__
    return _REPLY.pack(VERSION, 0, error.code, epoch, clock) + text.encode()


def epoch_of(reply: bytes) -> int:
    """The epoch that a reply was made in; 0 for static membership, or for bytes that are no reply."""
    return int(_REPLY.unpack_from(reply)[3]) if len(reply) >= _REPLY.size else 0


def unpack_reply(data: bytes) -> tuple[int, Any]:
    """The shard's clock and its message, or a `StoreError` of its kind in the message's place (not raised, so that
    the clock is not lost). Raises `BadRequest` for bytes that are no reply."""
    if len(data) < _REPLY.size:
        raise BadRequest(f"a reply of {len(data)} bytes is shorter than its head")
    version, kind, code, _, clock = _REPLY.unpack_from(data)
    _check_version(version)
    require_clock(clock)
    if code:
        return clock, decode(code, data[_REPLY.size :].decode("utf-8", "replace"))
    return clock, _unpack_body(kind, data, _REPLY.size)


def _check_version(version: int) -> None:
    if version != VERSION:
        raise BadRequest(f"protocol version {version}: this side speaks {VERSION}")


def _align(size: int) -> int:
    return -(-size // 8) * 8


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _pack_body(shape: _Shape, message: Any) -> list[bytes]:
    values = [get(message) for get in shape.getters]
    split = len(shape.scalars)
    counts: dict[str, int] = {}
    columns: list[bytes] = []
    numbers: list[Any] = values[:split]
    for column, value in zip(shape.columns, values[split:], strict=True):
        if value is None and column.optional:
            numbers.append(_ABSENT)
            continue
        rows = _as_rows(column, value)
        numbers.append(len(rows))
        _same_group(shape, column, len(rows), counts)
        columns.append(_padded(rows.tobytes()))
    try:
        head = shape.head.pack(*numbers)
    except struct.error as error:
        raise BadRequest(f"{shape.message.__name__}: {error}") from None
    return [_padded(head), *columns]


def _as_rows(column: _Column, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, str):
        value = np.frombuffer(value.encode(), np.uint8)
    rows = np.asarray(value, column.dtype)
    if rows.ndim != (2 if column.width else 1) or (column.width and rows.shape[1] != column.width):
        raise BadRequest(f"column {column.name!r} has shape {rows.shape}")
    if len(rows) > MAX_ROWS:
        raise BadRequest(f"column {column.name!r} has {len(rows)} rows, more than {MAX_ROWS}")
    return rows


def _same_group(shape: _Shape, column: _Column, rows: int, counts: dict[str, int]) -> None:
    if counts.setdefault(column.group, rows) != rows:
        raise BadRequest(
            f"{shape.message.__name__}: column {column.name!r} has {rows} rows, others {counts[column.group]}"
        )


def _unpack_body(kind: int, data: bytes, start: int) -> Any:
    shape = _BY_KIND.get(kind)
    if shape is None:
        raise BadRequest(f"unknown message kind {kind}")
    if len(data) < start + shape.head.size:
        raise BadRequest(f"{shape.message.__name__}: cut off after {len(data)} bytes")
    numbers = shape.head.unpack_from(data, start)
    values: dict[str, Any] = {}
    for (name, base), number in zip(shape.scalars, numbers, strict=False):
        values[name] = _scalar(base, number)
    at = start + _align(shape.head.size)
    counts: dict[str, int] = {}
    for column, rows in zip(shape.columns, numbers[len(shape.scalars) :], strict=True):
        if rows == _ABSENT and column.optional:
            values[column.name] = None
            continue
        if rows > MAX_ROWS:
            raise BadRequest(f"column {column.name!r} has {rows} rows, more than {MAX_ROWS}")
        _same_group(shape, column, rows, counts)
        values[column.name], at = _column(column, rows, data, at)
    if at != len(data):
        raise BadRequest(f"{shape.message.__name__}: {len(data)} bytes where its columns take {at}")
    message = _build(shape, values)
    _check(message)
    return message


def _scalar(base: str, number: Any) -> Any:
    if base != "durability":
        return number
    try:
        return m.Durability(number)
    except ValueError:
        raise BadRequest(f"durability {number} is none of 0, 1, 2") from None


def _column(column: _Column, rows: int, data: bytes, at: int) -> tuple[Any, int]:
    items = rows * (column.width or 1)
    size = items * column.dtype.itemsize
    if at + size > len(data):
        raise BadRequest(f"column {column.name!r} is cut off")
    if column.dtype == np.bool_:
        raw = np.frombuffer(data, np.uint8, items, at)
        if rows and raw.max() > 1:
            raise BadRequest(f"column {column.name!r} holds bytes that are neither 0 nor 1")
        return raw.view(np.bool_), at + _align(size)
    flat = np.frombuffer(data, column.dtype, items, at)
    return (flat.reshape(rows, column.width) if column.width else flat), at + _align(size)


def _build(shape: _Shape, values: dict[str, Any]) -> Any:
    for name, message in shape.nested.items():
        prefix = name + "."
        inner = {key.removeprefix(prefix): values.pop(key) for key in list(values) if key.startswith(prefix)}
        if message is m.ReadReport:
            seconds = inner["seconds"]
            if not np.isfinite(seconds).all() or (seconds < 0).any():
                raise BadRequest("a read report's seconds are finite and not negative")
            inner["seconds"] = tuple(seconds.tolist())
        values[name] = message(**inner)
    if shape.message is m.OpenSession:
        values["session_class"] = values["session_class"].tobytes().decode("ascii", "replace")
    return shape.message(**values)


def _check(message: Any) -> None:
    """What lengths alone do not say."""
    if isinstance(message, m.Append) and len(message.digests) != message.valid:
        raise BadRequest(f"append: {len(message.digests)} digests for {message.valid} valid tokens")
    if isinstance(message, m.Put | m.Append) and len(message.staging) and int(message.staging.min()) < 0:
        raise BadRequest("a staging slot is negative")
    if isinstance(message, m.Put) and len(message.valid) and int(message.valid.min()) < 1:
        raise BadRequest("a block with no valid token is not a block")
    if isinstance(message, m.OpenSession):
        if not _TEXT.fullmatch(message.session_class) or len(message.session_class) > 64:
            raise BadRequest("session_class is 1 to 64 of A-Z a-z 0-9 _ . : / -")
        if not 1 <= message.ttl_ms <= MAX_TTL_MS:
            raise BadRequest(f"ttl_ms {message.ttl_ms} is not between 1 ms and a year")
    if isinstance(message, m.Measured) and not (message.lane < _LANES and message.bytes_per_second):
        raise BadRequest(f"lane {message.lane} at {message.bytes_per_second} bytes per second is no measurement")
    if isinstance(message, m.Lease) and message.pin not in (-1, 0, 1):
        raise BadRequest(f"pin {message.pin} is none of -1, 0, 1")
