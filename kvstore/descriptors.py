"""Open files: how many a shard may have, and how many clients they do for."""

from __future__ import annotations

import contextlib
import resource

MAX_CLIENTS = 1024
MOST_WANTED = 16_384
"""Nothing here needs more; a child process that closes all it might have inherited should not have to close a million
(policy)."""
RESERVED = 160
"""For all but clients: the log's segments, scrapers, gRPC, visitors at the door (policy)."""
A_CLIENT = 3
"""Its connections to door and calls, and the map of its staging arena."""


def raise_limit() -> int:
    """Raise this process's soft limit as far as it may; the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_WANTED if hard == resource.RLIM_INFINITY else min(hard, MOST_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_WANTED if soft == resource.RLIM_INFINITY else soft


def most_clients(open_files: int) -> int:
    """How many clients a shard with this limit lets in, at least one."""
    return max(1, min(MAX_CLIENTS, (open_files - RESERVED) // A_CLIENT))
