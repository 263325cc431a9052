"""How a client that cannot pass descriptors introduces itself: one JSON object each way, checked field by field.

The call is a stream that stays open and silent once the shard has answered: its end is the end of the connection, for
both sides, and comes at once when a process of either side dies.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Any

from kvstore.errors import BadRequest, StagingRejected
from kvstore.layout import Layout

PROTOCOL = 2
"""1: a pool is one arena of slots."""
MAX_HELLO = 65_536
MAX_METADATA = 32_768
MAX_STAGING_SLOTS = 1 << 24
_MAX_NAME = 64
_AGENT = re.compile(r"[a-z]{1,16}-[0-9a-f]{32}")
_END_OF_MEMORY = 1 << 63


@dataclass(frozen=True, slots=True)
class Hello:
    """A client: its layout, its staging agent, and the region that a shard may read: `slots` slots at `base`."""

    layout: Layout
    name: str
    pid: int
    agent: str
    metadata: bytes
    base: int
    slots: int

    def pack(self) -> bytes:
        return json.dumps(
            {
                "protocol": PROTOCOL,
                "layout": json.loads(self.layout.as_json()),
                "name": self.name,
                "pid": self.pid,
                "agent": self.agent,
                "metadata": base64.b64encode(self.metadata).decode(),
                "base": self.base,
                "slots": self.slots,
            }
        ).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Hello:
        """Raises `BadRequest`, `StagingRejected`."""
        said = json_object(data)
        if said.get("protocol") != PROTOCOL:
            raise BadRequest(f"the client speaks nixl protocol {said.get('protocol')!r}, this shard {PROTOCOL}")
        if not isinstance(said.get("layout"), dict):
            raise BadRequest("hello without a layout")
        layout = Layout.from_json(json.dumps(said["layout"]))
        base, slots = number(said, "base", _END_OF_MEMORY), number(said, "slots", MAX_STAGING_SLOTS)
        if base + slots * layout.slot_bytes > _END_OF_MEMORY:
            raise StagingRejected(f"a staging arena of {slots} slots does not lie in memory")
        name = str(said.get("name", ""))[:_MAX_NAME]
        return cls(
            layout, name, number(said, "pid", 1 << 31), agent_of(said), metadata_of(said, MAX_METADATA), base, slots
        )


def json_object(data: bytes) -> dict[str, Any]:
    """Raises `BadRequest`."""
    if len(data) > MAX_HELLO:
        raise BadRequest(f"a hello of {len(data)} bytes: {MAX_HELLO} are allowed")
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequest("a hello is a JSON object") from None
    if not isinstance(said, dict):
        raise BadRequest("a hello is a JSON object")
    return said


def number(said: dict[str, Any], field: str, most: int) -> int:
    """A positive integer; raises `BadRequest`."""
    value = said.get(field)
    if type(value) is not int or not 0 < value <= most:
        raise BadRequest(f"hello: {field} is a positive integer up to {most}, not {str(value)[:40]!r}")
    return value


def agent_of(said: dict[str, Any]) -> str:
    """An agent's name; raises `BadRequest`."""
    value = said.get("agent")
    if not isinstance(value, str) or not _AGENT.fullmatch(value):
        raise BadRequest("hello: agent is no name of a NIXL agent of this protocol")
    return value


def metadata_of(said: dict[str, Any], most: int = MAX_METADATA) -> bytes:
    """An agent's metadata; raises `BadRequest`."""
    value = said.get("metadata")
    if not isinstance(value, str) or len(value) > 2 * most:
        raise BadRequest(f"hello: metadata is base64 text of at most {most} bytes")
    try:
        found = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"hello: metadata is base64 text of at most {most} bytes") from None
    if not 0 < len(found) <= most:
        raise BadRequest(f"hello: metadata is base64 text of at most {most} bytes")
    return found
