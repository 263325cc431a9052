"""kill -9 on a disk that forgets whatever was not synced, many times over: `python benchmarks/crash.py [--kills 100]`.

Every put acknowledged under `log+sync`, and not evicted, expired or removed since, must be there and equal;
none may be half there. Exits 1 when one is not. With `--early` the log answers before it flushes: that must be found.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playbooks.lab.shims.build import ShimError
from tests.kvstore.log.crash import CrashRun
from tests.kvstore.log.serve_crash import ServeCrashRun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leak", type=int, default=20, help="percent of unsynced sectors that reach the disk anyway")
    parser.add_argument("--early", action="store_true", help="seeded fault: acknowledge before the flush")
    parser.add_argument("--serve", action="store_true", help="through `kvstore serve` and a client, not the log alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        try:
            kind = ServeCrashRun if options.serve else CrashRun
            run = kind(Path(directory), options.seed, early=options.early, leak=options.leak)
        except ShimError as error:
            print(error)
            return 0
        tally = run.run(options.kills)
    answer = {
        "kills": tally.kills,
        "acknowledged_operations": tally.acknowledged,
        "replayed_records": tally.replayed,
        "recovered_blocks": tally.recovered,
        "violations": tally.violations[:20],
        "seconds": round(time.monotonic() - began, 1),
    }
    if options.json:
        print(json.dumps(answer))
    else:
        print(
            f"{tally.kills} kills, {tally.acknowledged} acknowledged operations, {tally.replayed} records replayed, "
            f"{tally.recovered} blocks recovered, {len(tally.violations)} violations in {answer['seconds']} s"
        )
        print("\n".join(tally.violations[:20]), end="\n" if tally.violations else "")
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
