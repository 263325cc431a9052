"""As much of protocol buffers' wire format as etcd's messages need (protobuf.dev/programming-guides/encoding).

A message is `{field number: value}`: int, bytes or str, or a list of such for a repeated field; messages within it are
bytes that were packed before. Read, every field is a list, since only the schema knows which are repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Value = int | bytes | str
Fields = dict[int, list[int | bytes]]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def pack(message: Mapping[int, Value | Sequence[Value]]) -> bytes:
    """Zeros, as everywhere in proto3, are left out; an empty message within a message is not."""
    out = bytearray()
    for number, value in message.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, str):
                one = one.encode()
            if isinstance(one, bytes):
                out += _varint(number << 3 | _BYTES) + _varint(len(one)) + one
            elif one:
                assert isinstance(one, int)
                out += _varint(number << 3 | _VARINT) + _varint(one & 0xFFFFFFFFFFFFFFFF)
    return bytes(out)


def unpack(data: bytes) -> Fields:
    """Raises `ValueError` for bytes that are no message."""
    found: Fields = {}
    at = 0
    while at < len(data):
        tag, at = _read(data, at)
        value: int | bytes
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
            if kind == _BYTES:
                size, at = _read(data, at)
            if size is None or at + size > len(data):
                raise ValueError("no protocol buffer")
            value, at = data[at : at + size], at + size
        found.setdefault(tag >> 3, []).append(value)
    return found


def number(fields: Fields, field: int) -> int:
    """A signed 64-bit number, 0 where it was left out."""
    value = fields.get(field, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value - (1 << 64) if value >= 1 << 63 else value


def text(fields: Fields, field: int) -> bytes:
    """Bytes, empty where they were left out."""
    value = fields.get(field, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {field} holds no bytes")
    return value


def messages(fields: Fields, field: int) -> list[Fields]:
    """The messages of a repeated field."""
    return [unpack(value) for value in fields.get(field, []) if isinstance(value, bytes)]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("no protocol buffer")
