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
    """``fault`` is a script for guest a that acts ``after_s`` into the loop, with ``$shard`` the shard's process.

    ``netem`` is the impairment of a guest's egress during the whole loop, ``settings`` the environment on both sides;
    ``ends``: no other run can follow in the same pair.
    """

    name: str
    says: str
    seconds: float = 40.0
    netem: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""
    after_s: float = 6.0
    settings: Mapping[str, str] = field(default_factory=dict)
    lane: str = "rc"
    ends: bool = False


NOTE = 'note() { echo "$1" > /dev/udp/$PEER/7001; }\n'
RUNS = (
    Run("healthy", "nothing is done"),
    Run("loss-requests", "2 % loss on what the client sends (netem on b)", 60.0, {"b": "loss 2%"}),
    Run("loss-answers", "2 % loss on what the shard sends (netem on a)", 60.0, {"a": "loss 2%"}),
    Run(
        "link-down",
        "`ip link set down` in a for 3 s, then up",
        50.0,
        fault="note down; ip link set $DEV down; sleep 3; ip link set $DEV up; sleep 0.3; note up",
    ),
    Run(
        "link-lost",
        "`ip link set down` in a for 12 s, longer than a queue pair's retries last, then up",
        70.0,
        fault="note down; ip link set $DEV down; sleep 12; ip link set $DEV up; sleep 0.3; note up",
    ),
    Run(
        "frozen",
        "the shard is stopped (SIGSTOP) for 15 s",
        70.0,
        fault="note stop; kill -STOP $shard; sleep 15; kill -CONT $shard; note cont",
    ),
    Run("delay", "2 ms delay on what the client sends (netem on b)", netem={"b": "delay 2ms"}),
    Run("killed", "the shard is killed (SIGKILL)", 50.0, fault="note kill; kill -KILL $shard", after_s=15.0, ends=True),
    Run(
        "tcp",
        "UCX_TLS=tcp on both sides",
        60.0,
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


@dataclass
class Pair:
    """A shard in a and a client in b that one run after another is played with."""

    name: str
    settings: Mapping[str, str]
    port: int
    shard: Job
    client: Job
    orders: int = 0
    lanes: tuple[str, ...] = ()


class Stage:
    """Plays runs one after another in the same two guests; a pair is kept for as long as it lives and is asked for."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._pairs = 0
        self._pair: Pair | None = None

    def play(self, run: Run) -> Result:
        pair = self._paired(run.settings)
        snaps: list[Job] = []
        try:
            self._order(pair, run)
            snaps += [self._snap(role, run, pair) for role in "ab"]
            self._act(run, pair)
            self._until(self._guests.folder / "b" / f"{run.name}.json", pair, run.seconds + START_S)
            time.sleep(2 * SNAP_S)
        finally:
            self._tidy(run, snaps)
        if run.ends:
            self._part()
        said = json.loads((self._guests.folder / "b" / f"{run.name}.json").read_text())
        grew = {role: growth(self._guests.folder / role / "snap" / run.name) for role in "ab"}
        pair.lanes = self._lanes(run) or pair.lanes
        return Result(run, said, grew, pair.lanes, self._guests.folder)

    def _paired(self, settings: Mapping[str, str]) -> Pair:
        if self._pair is not None and self._pair.settings == settings:
            return self._pair
        if self._pair is not None:
            self._part()
        self._pairs += 1
        name, port = f"pair{self._pairs}", 7600 + 2 * self._pairs
        (self._guests.folder / "ctl" / name).mkdir()
        sets = "".join(f"export {key}={value}\n" for key, value in settings.items())
        listen = f"--listen {ADDRESS['a']}:{port} --metrics-listen {ADDRESS['a']}:{port + 1}"
        shard = self._guests.job("a", f"{sets}echo $$ > /out/{name}.pid\n{SERVE} {listen}", f"shard-{name}")
        words = f"{ADDRESS['a']}:{port} /ctl/{name}"
        script = f"{sets}echo $$ > /out/{name}.pid\nexec python3 /ctl/work/client.py {words}"
        self._pair = Pair(name, settings, port, shard, self._guests.job("b", script, f"client-{name}"))
        return self._pair

    def _part(self) -> None:
        if self._pair is not None:
            for role in "ab":
                pid = f"$(cat /out/{self._pair.name}.pid)"
                self._guests.call(role, f"kill -CONT {pid}; kill -KILL {pid}; true")
        self._pair = None

    def _order(self, pair: Pair, run: Run) -> None:
        """Ask for a run, and wait until its loop begins."""
        pair.orders += 1
        path = self._guests.folder / "ctl" / pair.name / f"{pair.orders:03d}.json"
        path.with_suffix(".part").write_text(json.dumps({"run": run.name, "seconds": run.seconds}))
        path.with_suffix(".part").rename(path)
        self._until(self._guests.folder / "b" / f"{run.name}.started", pair, START_S)

    def _until(self, path: Path, pair: Pair, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not path.exists():
            if pair.client.rc is not None:
                self._pair = None
                raise GuestError(f"the client has ended before there was {path.name}\n{pair.client.tail()}")
            if time.monotonic() > end:
                raise GuestError(
                    f"not seen within {seconds:g} s: {path.name}\n{pair.shard.tail()}\n{pair.client.tail()}"
                )
            time.sleep(0.2)

    def _snap(self, role: str, run: Run, pair: Pair) -> Job:
        page = f"{ADDRESS['a']} {pair.port + 1}" if role == "a" else ""
        script = f"echo $$ > /out/{run.name}.snap.pid\nexec bash /ctl/work/snap.sh /out/snap/{run.name} {SNAP_S} {page}"
        return self._guests.job(role, script, f"snap-{run.name}")

    def _act(self, run: Run, pair: Pair) -> None:
        for role, spec in run.netem.items():
            self._guests.call(role, f"tc qdisc add dev $DEV root netem {spec}")
        if run.fault:
            time.sleep(run.after_s)
            if pair.shard.rc is not None:
                raise GuestError(f"run {run.name}: the shard has ended before its time\n{pair.shard.tail()}")
            self._guests.call("a", f"{NOTE}shard=$(cat /out/{pair.name}.pid)\n{run.fault}")

    def _tidy(self, run: Run, snaps: list[Job]) -> None:
        for role in run.netem:
            self._guests.call(role, "tc -s qdisc show dev $DEV; tc qdisc del dev $DEV root")
        for snap in snaps:
            self._guests.call(snap.role, f"kill $(cat /out/{run.name}.snap.pid); true")

    def _lanes(self, run: Run) -> tuple[str, ...]:
        """The lanes of the run's last page that has any; none where the shard was killed before it served one."""
        for page in sorted((self._guests.folder / "a" / "snap" / run.name).glob("*.page"), reverse=True):
            found = re.findall(r"^kv_transport_info\{(.*)\} 1", page.read_text(errors="replace"), re.MULTILINE)
            words = [dict(re.findall(r'(\w+)="([^"]*)"', labels)) for labels in found]
            lanes = {f"{word['lane']} {word['device']}" for word in words if word["transport"] == "nixl"}
            if lanes:
                return tuple(sorted(lanes))
        return ()


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
