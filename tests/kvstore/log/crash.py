"""kill -9 on a disk that forgets: run the writer, cut the power, recover, compare with what was acknowledged."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from kvstore.log import LiveEntry, Log
from tests.kvstore.log.crash_writer import SHAPE, TAIL, config, content
from tests.kvstore.shims.forgetful import ForgetfulDisk

ROOT = Path(__file__).resolve().parents[3]
Key = tuple[int, ...]


@dataclass
class Operation:
    """One append of the writer, as its lines tell."""

    clock: int
    kind: str
    keys: list[Key]
    valid: int
    acknowledged: bool = False


@dataclass
class Tally:
    """What a number of kills showed."""

    kills: int = 0
    acknowledged: int = 0
    replayed: int = 0
    recovered: int = 0
    violations: list[str] = field(default_factory=list)


State = dict[Key, tuple[int, int]]
"""key → (clock, valid) of what is there."""


class CrashRun:
    """Rounds on one directory; what one round left is what the next one starts from."""

    def __init__(self, root: Path, seed: int, *, early: bool = False, delay_ms: int = 0, leak: int = 20) -> None:
        self.disk = ForgetfulDisk(root)
        self.random = Random(seed)
        self.early = early
        self.environment = self.disk.environment(leak=leak, delay_ms=delay_ms)
        self.state: State = {}
        self.tally = Tally()

    def kill_once(self, acknowledgements: int) -> None:
        """One round: kill after so many acknowledgements, recover, check."""
        self.tally.kills += 1
        command = [sys.executable, "-m", "tests.kvstore.log.crash_writer", str(self.disk.live), str(self.tally.kills)]
        command.append("early" if self.early else "honest")
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=self.environment, cwd=ROOT) as process:
            assert process.stdout is not None
            lines, seen = [], 0
            for line in process.stdout:
                lines.append(line)
                seen += line.startswith(b"A")
                if seen == acknowledgements:
                    break
            process.kill()
            lines += process.stdout.readlines()
        operations = parse(lines)
        self.tally.acknowledged += sum(operation.acknowledged for operation in operations)
        self.disk.power_cut()
        self._check(operations)
        self.disk.remember()

    def _check(self, operations: list[Operation]) -> None:
        with Log(self.disk.live, config()) as log:
            found = {tuple(np.frombuffer(entry.key, np.uint64).tolist()): entry for entry in log.recovered()}
            self.tally.replayed += log.replayed_records
            if log.damaged_blocks:
                self.violations(f"{log.damaged_blocks} damaged blocks")
        self.tally.recovered += len(found)
        touched: dict[Key, list[Operation]] = {}
        for operation in operations:
            for key in operation.keys:
                touched.setdefault(key, []).append(operation)
        for key in set(touched) | set(self.state) | set(found):
            self._check_key(key, touched.get(key, []), found.get(key))
        for operation in operations:
            present = [key in found and found[key].clock == operation.clock for key in operation.keys]
            if not operation.acknowledged and operation.kind == "PUT" and any(present) and not all(present):
                self.violations(f"put {operation.clock} is half there")
        self.state = {key: (entry.clock, entry.valid) for key, entry in found.items()}

    def _check_key(self, key: Key, operations: list[Operation], entry: LiveEntry | None) -> None:
        """The key must be as its last acknowledged operation left it, or as one that was still under way would."""
        state = self.state.get(key)
        allowed = [state]
        for operation in operations:
            state = (operation.clock, operation.valid) if operation.valid else None
            allowed = [state] if operation.acknowledged else [*allowed, state]
        have = (entry.clock, entry.valid) if entry else None
        if have not in allowed:
            self.violations(f"key {key}: {have} was recovered, {allowed} may be")
        elif entry is not None:
            whole = content(key, 0 if key[3] == TAIL else entry.clock)
            if not np.array_equal(SHAPE.gather(entry.payload, 0, entry.valid), SHAPE.gather(whole, 0, entry.valid)):
                self.violations(f"key {key}: other bytes than were put")

    def violations(self, text: str) -> None:
        self.tally.violations.append(f"kill {self.tally.kills}: {text}")

    def run(self, kills: int, least: int = 10, most: int = 250) -> Tally:
        for _ in range(kills):
            self.kill_once(self.random.randint(least, most))
        return self.tally


def parse(lines: list[bytes]) -> list[Operation]:
    """The writer's lines; one that the kill cut short is left out."""
    found: dict[int, Operation] = {}
    for line in lines:
        if not line.endswith(b"\n"):
            continue
        words = line.decode().split()
        if words[0] == "I":
            keys = [tuple(int(part) for part in name.split(".")) for name in words[3].split(",")]
            found[int(words[1])] = Operation(int(words[1]), words[2], keys, int(words[4]))
        elif words[0] == "A":
            found[int(words[1])].acknowledged = True
    return list(found.values())
