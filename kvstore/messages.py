"""What clients and shards say to each other: columns, one row a block.

Requests carry a Lamport clock and a deadline; `wire.py` packs them, `shard.py` answers them. Slots and
generations come from `pool.py`; times are milliseconds of CLOCK_MONOTONIC of the shard's host unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvstore.keys import Keys

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


MAX_LEASE_MS = 60_000
"""Longer ones are granted for this long: a reader that dies must not keep a slot for ever (policy)."""
MAX_LEASES_AT_ONCE = 256
"""Of one message: each costs some array operations on all its blocks (policy)."""


class Miss(IntEnum):
    """Why a key was not found."""

    NONE = 0
    ABSENT = 1
    EVICTED = 2
    EXPIRED = 3
    REMOVED = 4


class Durability(IntEnum):
    """When a put is acknowledged: published; written to the log; flushed to the log's device."""

    NONE = 0
    LOG = 1
    LOG_SYNC = 2


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every request carries."""

    clock: int = 0
    deadline_ms: int = 5_000
    """From the moment of sending; the shard answers `DeadlineExceeded` rather than later."""
    traceparent: str = ""
    client: int = 0
    """Who asks: the number that the shard's door gave it."""
    ticket: int = 0
    """One a put or append of that client: what a cancel names."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where are these keys? `keys` `[n, 4]`; `lease_ms` > 0 leases what is found; `session` marks it as used by one.

    `prefix`: stop at the first miss (rows after it are neither leased nor counted). `touch`: counts as a use.
    """

    keys: Keys
    lease_ms: int = 0
    session: int = 0
    prefix: bool = False
    touch: bool = True


@dataclass(frozen=True, slots=True)
class Located:
    """The answer, a row a key: `slot` −1 where `miss` says why; `lease` ends at `lease_until_ms` (0: none)."""

    slot: Ints
    generation: Words
    clock: Words
    valid: Ints
    miss: Ints
    lease: int = 0
    lease_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Put:
    """Publish blocks that lie in the caller's staging arena.

    `keys` `[n, 4]`; `staging` `[n]` slot numbers in that arena; `data_sums` `[n]` xxh3-64 of each block's data;
    `valid` `[n]` tokens (block_tokens for a full block); `chains` `[n, 24]` digest after the last valid token.
    `one_run`: refuse (`NoRun`) rather than scatter. A key that is already there is kept as it is (immutable) and counts
    as published. `session` ≠ 0: the blocks are held by it.
    """

    keys: Keys
    staging: Ints
    data_sums: Words
    valid: Ints
    chains: npt.NDArray[np.uint8]
    session: int = 0
    durability: Durability = Durability.NONE
    one_run: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """New versions of a session's tails: a row a (layer, head group), all for the same tokens.

    `keys` `[n, 4]` are tail keys (`keys.tail_digest(parent, session)`); `staging`, `data_sums` as in `Put` (the whole
    block, old tokens and new); `valid` tokens it now has; `expected` the version's clock that it continues (0: none
    yet), else `TailConflict`; `digests` `[valid, 24]` the chain digest after each token of the tail (shared by all
    rows). When `valid` is `block_tokens` the block is also published under `full_keys` `[n, 4]` and the tail ends.
    """

    session: int
    keys: Keys
    staging: Ints
    data_sums: Words
    valid: int
    expected: Words
    digests: npt.NDArray[np.uint8]
    full_keys: Keys | None = None
    durability: Durability = Durability.NONE


@dataclass(frozen=True, slots=True)
class Published:
    """The answer to `Put` and `Append`, a row a block; `existed` marks keys that were there before."""

    slot: Ints
    generation: Words
    clock: Words
    existed: Flags

    @property
    def need(self) -> int:
        """The `min_clock` of a get that must see this append, one number for all its shards; 0 without rows.

        Clocks of one append differ from shard to shard. But each of them follows the message, which followed every
        version that the append continued, on whichever shard (Lamport): so the least of them is later than all that
        was there before, and none of them is earlier.
        """
        return int(self.clock.min()) if len(self.clock) else 0


@dataclass(frozen=True, slots=True)
class TailMatch:
    """How many tokens of a session's tail agree with `digests` `[m, 24]` (the asker's own chain)?"""

    session: int
    keys: Keys
    digests: npt.NDArray[np.uint8]
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class TailMatched:
    """`agree` tokens of the tail may be used (0: none); where its blocks are, as in `Located`."""

    agree: int
    located: Located


@dataclass(frozen=True, slots=True)
class Lease:
    """Renew (`lease_ms` > 0) or release (0) the asker's leases by id; `pin`: +1 / −1 turns one into a pin and back.

    At most `MAX_LEASES_AT_ONCE`, each once. Another client's leases are to the asker as if they had ended.
    """

    leases: Words
    lease_ms: int = 0
    pin: int = 0


@dataclass(frozen=True, slots=True)
class Leased:
    """End of each lease after the call, 0 where it had ended already."""

    until_ms: Ints


@dataclass(frozen=True, slots=True)
class Touch:
    """Recency and what one-sided reads did since the last report: slots used (with generations), and counts."""

    slots: Ints
    generations: Words
    reads: ReadReport


@dataclass(frozen=True, slots=True)
class ReadReport:
    """One-sided reads of one client on one shard since its last report. Seconds per batch get in `seconds`."""

    batches: int = 0
    blocks_ok: int = 0
    blocks_torn: int = 0
    blocks_recycled: int = 0
    blocks_corrupt: int = 0
    blocks_expired: int = 0
    bytes: int = 0
    descriptors: int = 0
    seconds: tuple[float, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A new session (`session` 0) or one that must still live; idle longer than `ttl_ms` ends it.

    `create`: open it under this very handle if it does not live here, since one session spans several shards (a handle
    that expired here is still counted as such, and `alive` is then False though it lives again from now on).
    """

    session: int = 0
    session_class: str = "default"
    ttl_ms: int = 1_800_000
    create: bool = False


@dataclass(frozen=True, slots=True)
class SessionState:
    """`alive` False: its TTL had ended (or it never was). `blocks` held, `age_ms` since opened."""

    session: int
    alive: bool
    blocks: int = 0
    age_ms: int = 0


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End it; what only it held becomes evictable, or goes at once with `forget`."""

    session: int
    forget: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Take keys out of the index (their slots follow when leases end)."""

    keys: Keys
    durability: Durability = Durability.NONE


@dataclass(frozen=True, slots=True)
class Removed:
    found: Flags


@dataclass(frozen=True, slots=True)
class Ping:
    """A heartbeat."""


@dataclass(frozen=True, slots=True)
class Measured:
    """How fast the asker reads this shard's pool, by one copy when it connected. `lane`: a place in
    `transport.probe.LANES`."""

    lane: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class Pong:
    shard: int = 0
    now_ms: int = 0
