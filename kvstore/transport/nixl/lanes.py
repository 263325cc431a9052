"""Which lane UCX really reads over: from what it says when it chooses, not from what was asked of it.

With `UCX_PROTO_INFO=y` UCX prints, for every new kind of endpoint, a table for each operation on it:

    | intra-node cfg#1                                                 |
    | remote memory read by ucp_get*(multi) into host memory from host |
    | 0..inf | zero-copy | 52% on tcp/lo and 48% on tcp/eth0           |

Reads of blocks are `ucp_get`; each `TRANSPORT/DEVICE` in its table is a lane. Endpoints to oneself (`self cfg`) do not
count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LANE = re.compile(r"\b([a-z][a-z0-9_]*)/([A-Za-z0-9_.:-]+)")
_KNOWN = re.compile(
    r"(tcp|cma|knem|xpmem|posix|sysv|mm|self|rc_verbs|rc_mlx5|dc_mlx5|ud_verbs|ud_mlx5|gga_mlx5|cuda_ipc|cuda_copy|"
    r"gdr_copy|rocm_ipc|rocm_copy|ze_ipc|ze_copy|gaudi_gdr|efa|srd)"
)
MAX_LANES = 16


@dataclass(frozen=True, order=True, slots=True)
class Lane:
    """A way that reads take: UCX's transport (`tcp`, `cma`, `rc_verbs`, …) and its device (`lo`, `mlx5_0:1`, …)."""

    lane: str
    device: str


def lanes_of(log: str) -> list[Lane]:
    """The lanes that reads were said to take in UCX's log, sorted; at most `MAX_LANES`."""
    found: set[Lane] = set()
    config = reading = ""
    for line in log.splitlines():
        _, bar, row = line.partition("|")
        if not bar:
            if "+-" not in line:
                config = reading = ""
            continue
        if "cfg#" in row:
            config, reading = row, ""
        elif "remote memory read" in row:
            reading = row
        elif reading and config and "self cfg" not in config:
            found |= {Lane(lane, "" if device == "memory" else device) for lane, device in _lanes_in(row)}
    return sorted(found)[:MAX_LANES]


def _lanes_in(row: str) -> list[tuple[str, str]]:
    return [(lane, device) for lane, device in _LANE.findall(row) if _KNOWN.fullmatch(lane)]
