"""Every kernel of the store on the GPU that is here: is it right, how fast is it, what does that bring?

    python3 benchmarks/gpu_check.py [--out DIR] [--wheels DIR] [--only SECTION,…]     at most six minutes, one GPU
    python3 benchmarks/gpu_check.py --cpu                                             the same without a GPU, tiny

Needs torch, triton and numpy; what else is missing comes from a folder of wheels that `make gpu-wheels` fills, without
a network. Results go to DIR ($OUT, else benchmarks/results; with --cpu nowhere unless told), a short table comes last.
Ends with 0 when nothing is wrong (an aim that is missed is marked, not wrong), 1 when a number is wrong, a section
failed or one was not begun or not finished in its time, or everything was skipped (the last line says which), 2 for
what cannot be asked or run here.
`--wrong KERNEL` breaks one kernel, to see that it is found.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MOST_S = 24 * 3600.0
MOST_SEED = (1 << 32) - 1
sys.path[:0] = [str(HERE), str(ROOT)]

from gpu import ops, wheels  # noqa: E402 - a script's neighbours
from gpu.results import exit_code, line, table, write  # noqa: E402
from gpu.runner import LIMIT_S, Orders, Runner  # noqa: E402
from gpu.sections import named  # noqa: E402


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_check.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="tiny shapes under Triton's interpreter, without a GPU")
    parser.add_argument("--only", default="", metavar="SECTION,…", help="some sections only")
    parser.add_argument("--out", type=Path, help="folder of the results (default: $OUT, else benchmarks/results)")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="folder of wheels (default: wheels)")
    parser.add_argument("--seed", type=int, help="of the random inputs, 0 … 2**32 - 1 (default: a new one)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="seconds for all (%(default)g)")
    parser.add_argument("--wrong", choices=ops.NAMES, default="", metavar="KERNEL", help="break one kernel on purpose")
    return parser.parse_args(words)


def folder(given: argparse.Namespace) -> Path | None:
    """Where results go, if anywhere."""
    if given.out:
        return Path(given.out)
    if os.environ.get("OUT"):
        return Path(os.environ["OUT"])
    return None if given.cpu or given.wrong else HERE / "results"


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    signal.signal(signal.SIGTERM, told_to_end)
    try:
        return check(given)
    except (ValueError, OSError) as error:
        print(f"gpu_check.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gpu_check.py: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def told_to_end(number: int, frame: FrameType | None) -> None:
    """Leave, so that the worker is ended, too; once: `timeout` sends the signal twice."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def check(given: argparse.Namespace) -> int:
    """The run that was asked for; its exit code. Raises `ValueError` and `OSError` for what cannot be asked."""
    began = time.monotonic()
    if not 0 < given.limit <= MOST_S:
        raise ValueError(f"--limit {given.limit:g}: seconds are expected, more than 0 and at most {MOST_S:g}")
    if given.seed is not None and not 0 <= given.seed <= MOST_SEED:
        raise ValueError(f"--seed {given.seed}: 0 … {MOST_SEED} can be")
    sections = named(given.only)
    with tempfile.TemporaryDirectory(prefix="kvscope-wheels-") as unpacked:
        taken = wheels.use(given.wheels, Path(unpacked))
        seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4), "little")
        out = folder(given)
        if out:
            out.mkdir(parents=True, exist_ok=True)
        left = given.limit - (time.monotonic() - began)
        orders = Orders(given.cpu, seed, given.wrong, out, left, (unpacked,) if taken else ())
        found = Runner(orders, lambda row: print(line(row), flush=True)).run(sections)
    if found.refused:
        print(f"gpu_check.py: {found.refused}", file=sys.stderr)
        return 2
    found.facts |= {"seed": seed, "wheels": taken, "seconds": round(time.monotonic() - began, 1)}
    if out:
        for path in write(found, out):
            print(f"written: {path}")
    print(table(found))
    return exit_code(found)


if __name__ == "__main__":
    sys.exit(main())
