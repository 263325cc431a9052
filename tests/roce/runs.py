"""What is tried between the guests: one shard in a, one client in b, and something that happens to the wire or to a."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.roce.guests import ADDRESS, GuestError, Guests, Job

START_S = 600.0
"""For a shard or client to start: two seconds on a real processor, a quarter of a minute under emulation, more on a
machine that is busy with something else."""
SNAP_S = 2
SERVE = "exec python3 -m kvstore.cli serve --nixl --insecure --blocks 512 --model roce --heads 4 --head-dim 64"


@dataclass(frozen=True)
class Run:
    """``fault`` is a script for guest a that acts ``after_s`` into the loop, with ``$shard`` the shard's process;
    ``netem`` the impairment of a guest's egress during the whole loop; ``settings`` the environment on both sides."""

    name: str
    says: str
    seconds: float = 40.0
    netem: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    after_s: float = 6.0
    settings: Mapping[str, str] = field(default_factory=dict)
    lane: str = "rc"


NOTE = 'note() { echo "$1" > /dev/udp/$PEER/7001; }\n'
RUNS = (
    Run("healthy", "nothing is done"),
    Run("loss-requests", "2 % loss on what the client sends (netem on b)", 60.0, {"b": "loss 2%"}),
    Run("loss-answers", "2 % loss on what the shard sends (netem on a)", 60.0, {"a": "loss 2%"}),
    Run("delay", "2 ms delay on what the client sends (netem on b)", netem={"b": "delay 2ms"}),
    Run(
        "link-down",
        "`ip link set down` in a for 3 s, then up",
        fault="note down; ip link set $DEV down; sleep 3; ip link set $DEV up; sleep 0.3; note up",
    ),
    Run(
        "frozen",
        "the shard is stopped (SIGSTOP) for 12 s",
        fault="note stop; kill -STOP $shard; sleep 12; kill -CONT $shard; note cont",
    ),
    Run("killed", "the shard is killed (SIGKILL)", 30.0, fault="note kill; kill -KILL $shard"),
    Run(
        "tcp",
        "UCX_TLS=tcp on both sides",
        settings={"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"},
        lane="tcp",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """``client`` is what the loop in b says; ``grew`` what each counter of each guest grew by; ``lanes`` the lanes that
    the shard's page shows."""

    run: Run
    client: Mapping[str, Any]
    grew: Mapping[str, Mapping[str, int]]
    lanes: tuple[str, ...]
    folder: Path

    def counter(self, role: str, name: str) -> int:
        """Growth of a counter of the port, or of a statistic of the interface (``tx_bytes``)."""
        return next((by for path, by in self.grew[role].items() if path.endswith(f"/{name}")), 0)


class Stage:
    """Plays runs one after another in the same two guests, each with a shard and a client of its own."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._port = 7600

    def play(self, run: Run) -> Result:
        self._port += 2
        settings = "".join(f"export {name}={value}\n" for name, value in run.settings.items())
        snaps = [self._snap(role, run) for role in "ab"]
        shard = self._serve(run, settings)
        try:
            client = self._client(run, settings)
            self._act(run, shard)
            client.wait(run.seconds + START_S)
            time.sleep(3 * SNAP_S)  # the page is fetched every third time
        finally:
            self._tidy(run, shard, snaps)
        said = json.loads((self._guests.folder / "b" / f"{run.name}.json").read_text())
        grew = {role: growth(self._guests.folder / role / "snap" / run.name) for role in "ab"}
        return Result(run, said, grew, self._lanes(run), self._guests.folder)

    def _snap(self, role: str, run: Run) -> Job:
        page = f"{ADDRESS['a']} {self._port + 1}" if role == "a" else ""
        script = f"echo $$ > /out/{run.name}.snap.pid\nexec bash /ctl/work/snap.sh /out/snap/{run.name} {SNAP_S} {page}"
        return self._guests.job(role, script, f"snap-{run.name}")

    def _serve(self, run: Run, settings: str) -> Job:
        listen = f"--listen {ADDRESS['a']}:{self._port} --metrics-listen {ADDRESS['a']}:{self._port + 1}"
        script = f"{settings}echo $$ > /out/{run.name}.pid\n{SERVE} {listen}"
        return self._guests.job("a", script, f"shard-{run.name}")

    def _client(self, run: Run, settings: str) -> Job:
        target = f"{ADDRESS['a']}:{self._port}"
        words = f"{target} /out/{run.name}.json --seconds {run.seconds:g} --started /out/{run.name}.started"
        client = self._guests.job("b", f"{settings}exec python3 /ctl/work/client.py {words}", f"client-{run.name}")
        started = self._guests.folder / "b" / f"{run.name}.started"
        end = time.monotonic() + START_S
        while not started.exists():
            if client.rc is not None or time.monotonic() > end:
                raise GuestError(f"run {run.name}: the client has not begun\n{client.tail()}")
            time.sleep(0.2)
        return client

    def _act(self, run: Run, shard: Job) -> None:
        for role, spec in run.netem.items():
            self._guests.call(role, f"tc qdisc add dev $DEV root netem {spec}")
        if run.fault:
            time.sleep(run.after_s)
            if shard.rc is not None:
                raise GuestError(f"run {run.name}: the shard has ended before its time\n{shard.tail()}")
            self._guests.call("a", f"{NOTE}shard=$(cat /out/{run.name}.pid)\n{run.fault}")

    def _tidy(self, run: Run, shard: Job, snaps: list[Job]) -> None:
        for role in run.netem:
            self._guests.call(role, "tc -s qdisc show dev $DEV; tc qdisc del dev $DEV root")
        self._guests.call("a", f"kill -CONT $(cat /out/{run.name}.pid); kill -KILL $(cat /out/{run.name}.pid); true")
        for snap in snaps:
            self._guests.call(snap.role, f"kill $(cat /out/{run.name}.snap.pid); true")

    def _lanes(self, run: Run) -> tuple[str, ...]:
        pages = sorted((self._guests.folder / "a" / "snap" / run.name).glob("*.page"))
        found = re.findall(
            r"^kv_transport_info\{(.*)\} 1", pages[-1].read_text(errors="replace") if pages else "", re.M
        )
        words = [dict(re.findall(r'(\w+)="([^"]*)"', labels)) for labels in found]
        return tuple(sorted({f"{word['lane']} {word['device']}" for word in words if word["transport"] == "nixl"}))


def growth(folder: Path) -> dict[str, int]:
    """What the counters in the first and the last of a folder's snapshots differ by, without those that stood still."""
    first, *_, last = (values_of(path) for path in sorted(folder.glob("*.txt")))
    wanted = {path for path in last if "counters/" in path or "/statistics/" in path or path.endswith("_count")}
    numbers = {path for path in wanted if last[path].isdigit() and first.get(path, "").isdigit()}
    grew = {path: int(last[path]) - int(first[path]) for path in sorted(numbers)}
    return {path: by for path, by in grew.items() if by}


def values_of(snapshot: Path) -> dict[str, str]:
    lines = (line.partition(" ") for line in snapshot.read_text().splitlines())
    return {path: value for path, _, value in lines}
