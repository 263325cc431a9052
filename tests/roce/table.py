"""The table of a `make test-roce`: what was done, what the client got and when, and what the ports counted."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.roce.runs import Result

HEAD = """\
# Between two hosts over RoCE verbs

Written by `make test-roce` on {date}: {machine}. Two guests under QEMU's plain emulation
(no KVM), Debian's kernel with `rdma_rxe`, a shard in a, a client in b: 16 scattered blocks of 16 KiB are read again and
again. `get` looks them up and reads them, `read` goes to known places under a lease; every answer is compared byte by
byte, and every operation has a deadline of 8 s. Absolute times say nothing about hardware; what is said and when does.

"""
WORDS = ("wrong bytes", "get ok · p50 / p99 ms", "read ok · p50 / p99 ms", "errors (longest wait)", "after the fault")


def write(results: Sequence[Result], path: Path) -> None:
    """The whole page."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    kernel = ".".join(platform.release().split(".")[:2])
    machine = f"{platform.system()} {kernel}, {os.cpu_count()} processors, load {os.getloadavg()[2]:.0f}"
    lines = [HEAD.format(date=date, machine=machine)]
    lines.append("| run | done | lanes | " + " | ".join(WORDS) + " |\n|" + "---|" * (3 + len(WORDS)) + "\n")
    lines += [_row(result) for result in results]
    said = [f"- {r.run.name}, {kind}: {text}\n" for r in results for kind, text in sorted(r.client["says"].items())]
    lines += ["\nWhat the first error of each kind said:\n\n", *said] if said else []
    lines.append("\nCounters of the two ports and interfaces, after minus before (what did not move is left out):\n\n")
    lines.append("| run | a (shard) | b (client) |\n|---|---|---|\n")
    lines += [f"| {r.run.name} | {_counters(r, 'a')} | {_counters(r, 'b')} |\n" for r in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")


def _row(result: Result) -> str:
    client = result.client
    cells = [result.run.name, result.run.says, ", ".join(result.lanes) or "–", str(client["wrong"])]
    cells += [_times(client["get"]), _times(client["read"])]
    cells += [_errors(client), _after(client)]
    return "| " + " | ".join(cells) + " |\n"


def _times(said: dict[str, Any]) -> str:
    return f"{said['ok']} · {said['p50_ms']} / {said['p99_ms']}" if said["ok"] else "0"


def _errors(client: Any) -> str:
    found = []
    for operation in ("get", "read", "put"):
        said = client[operation]
        if said["errors"]:
            named = ", ".join(f"{count} {name}" for name, count in sorted(said["errors"].items()))
            found.append(f"{operation}: {named} ({said['waited_s']} s)")
    return "; ".join(found) or "none"


def _after(client: Any) -> str:
    """When the first error came, when the first good answer, and how long nothing good came, counted from the fault."""
    if not client["notices"]:
        return "–"
    found = []
    for operation in ("get", "read"):
        said = client[operation]
        error = said.get("first_error")
        parts = [f"{error[0]} after {error[1]} s"] if error else ["no error"]
        parts.append(f"ok again after {said['first_ok_s']} s" if "first_ok_s" in said else "never ok again")
        found.append(f"{operation}: {', '.join(parts)}, longest gap {said['longest_gap_s']} s")
    return "; ".join(found)


def _counters(result: Result, role: str) -> str:
    grew = {path.rpartition("/")[2]: by for path, by in result.grew[role].items()}
    return ", ".join(f"{name} +{by:,}" for name, by in sorted(grew.items())) or "nothing"
