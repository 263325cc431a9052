"""What lies in etcd about a store: its layout, its founders, and every change since.

PREFIX/NAME/members     the document: one JSON object, changed by comparing and swapping
PREFIX/NAME/next        the next shard's number
PREFIX/NAME/live/3      what shard 3 says of itself, for as long as its lease lasts
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from kvstore.errors import BadRequest
from kvstore.layout import Layout
from kvstore.membership.homes import Homes, number_of

PREFIX = "/kvstore"
SCHEMA = "kvstore.members/1"


@dataclass(frozen=True, slots=True)
class Document:
    """Immutable; `join` and `leave` give the next one. `founders`: how many shards it takes until there is a store."""

    layout: Layout
    placement: str
    founders: int
    first: tuple[str, ...] = ()
    changes: tuple[str, ...] = field(default=())

    @property
    def epoch(self) -> int:
        """0 until the founders are complete, then 1 and one more with every change."""
        return 1 + len(self.changes) if len(self.first) >= self.founders else 0

    @property
    def live(self) -> list[str]:
        """Names of the members, in the order in which they came."""
        found = list(self.first)
        for change in self.changes:
            if change[0] == "+":
                found.append(change[1:])
            else:
                found.remove(change[1:])
        return found

    def knows(self, name: str) -> bool:
        """Whether there is or was a member of that name."""
        return name in self.first or f"+{name}" in self.changes

    def join(self, name: str) -> Document:
        """With one member more."""
        if self.epoch:
            return replace(self, changes=(*self.changes, f"+{name}"))
        return replace(self, first=(*self.first, name))

    def leave(self, name: str) -> Document:
        """With one member less. The last one stays in the book until another comes: keys must have a home."""
        live = self.live
        if name not in live:
            return self
        if not self.epoch:
            return replace(self, first=tuple(one for one in self.first if one != name))
        return self if len(live) == 1 else replace(self, changes=(*self.changes, f"-{name}"))

    def name_of(self, number: int) -> str | None:
        """The name under which shard `number` is a member; None: it is none."""
        return next((name for name in self.live if number_of(name) == number), None)

    def homes(self, before: Homes | None = None) -> Homes:
        """Of this epoch; sooner computed from those of an epoch `before`."""
        return Homes(self.placement, self.layout, self.first, self.changes, before)

    def require_same(self, layout: Layout, placement: str) -> None:
        """Raise `LayoutMismatch` or `BadRequest` for a shard or client that does not fit this store."""
        self.layout.require_same(layout)
        if placement and placement != self.placement:
            raise BadRequest(f"this store's placement is {self.placement}, not {placement}")

    def as_bytes(self) -> bytes:
        return json.dumps(
            {
                "schema": SCHEMA,
                "layout": json.loads(self.layout.as_json()),
                "placement": self.placement,
                "founders": self.founders,
                "first": self.first,
                "changes": self.changes,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Document:
        """Raises `BadRequest`."""
        try:
            said = json.loads(data)
            if said["schema"] != SCHEMA:
                raise BadRequest(f"the store's document in etcd is a {said['schema']!r}, not a {SCHEMA}")
            layout = Layout.from_json(json.dumps(said["layout"]))
            first, changes = tuple(map(str, said["first"])), tuple(map(str, said["changes"]))
            return cls(layout, str(said["placement"]), int(said["founders"]), first, changes)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadRequest(f"the store's document in etcd cannot be read: {error}") from None


def folder_of(cluster: str) -> str:
    """The prefix of a store's keys. Raises `BadRequest` for a name that is none."""
    if not 1 <= len(cluster) <= 64 or not all(sign.isascii() and (sign.isalnum() or sign in "-_.") for sign in cluster):
        raise BadRequest(f"{cluster!r} is no name of a store: 1 to 64 letters, digits, '-', '_', '.'")
    return f"{PREFIX}/{cluster}/"
