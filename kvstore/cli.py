"""``kvstore``: finds the command, turns every failure into one line and an exit code.

Exit codes: 0 done; 1 it ran and failed (a log that cannot be flushed, a shard that died, a benchmark that missed its
point); 2 it could not start as it was told to; 70 a fault of kvstore itself; 74 standard output could not be written;
130 after Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from kvstore.output import OutputError, discard, watched
from kvstore.printable import printable

EXIT_USAGE = 2
EXIT_FAULT = 70
EXIT_OUTPUT = 74
"""EX_IOERR of sysexits.h, as kvtop has it."""
EXIT_INTERRUPTED = 130

USAGE = """\
usage: kvstore COMMAND [options]        (kvstore COMMAND --help says more)

  serve      one shard: a process with a pool, a port and a page of metrics
  cluster    several shards on this host, and a cluster file
  certs      a CA, certificates and a token, to try encryption between hosts out
  replay     play a trace of requests against a store
  bench      NAME: measure it (see kvstore bench)
  topology   how the GPUs of this host reach each other
  tune       choose a block size for a GPU, a model and the lengths of its requests
  simulate   placement and load       (comes with a later release)
"""
_LATER = ("simulate",)
_NEEDS = {
    "grpc": ("grpcio", "store"),
    "xxhash": ("xxhash", "store"),
    "prometheus_client": ("prometheus-client", "store"),
    "cryptography": ("cryptography", "certs"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``kvstore``; the exit code."""
    # We call no BLAS: one thread keeps its start-up and its memory out of every shard (before numpy is imported).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what went wrong is said in one line, and by us
    words = list(sys.argv[1:] if argv is None else argv)
    code = 0
    try:
        with watched():
            code = _main(words)
    except BrokenPipeError:  # a reader that has gone (`| head`) is no error
        discard()
    except OutputError as lost:
        discard()
        print(f"kvstore: standard output cannot be written: {lost}", file=sys.stderr)
        return EXIT_OUTPUT
    return code


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if words else EXIT_USAGE
    if words[0] in ("version", "--version", "-V"):
        from importlib.metadata import version

        print(f"kvstore {version('kvscope')}")
        return 0
    command, rest = words[0], words[1:]
    try:
        return _run(command, rest)
    except SystemExit as ended:  # argparse: 0 after --help, 2 after bad usage
        return ended.code if isinstance(ended.code, int) else EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (BrokenPipeError, OutputError):
        raise
    except ModuleNotFoundError as error:
        package, extra = _NEEDS.get((error.name or "").split(".")[0], ("", ""))
        if not package:
            raise
        return _told(command, f"{package} is not installed: pip install '.[{extra}]' in kvscope's checkout")
    except Exception as error:
        line = _one_line(error)
        if line is not None:
            return _told(command, line)
        import traceback

        traceback.print_exc()
        print("kvstore: this is a fault of kvstore itself; please report it with the lines above", file=sys.stderr)
        return EXIT_FAULT


def _run(command: str, words: list[str]) -> int:
    if command in _LATER:
        return _told(command, "comes with a later release")
    if command == "bench":
        return _bench(words)
    modules = {
        "serve": "kvstore.serve_command",
        "cluster": "kvstore.cluster_command",
        "certs": "kvstore.certs_command",
        "replay": "kvstore.replay.cli",
        "topology": "kvstore.topology.cli",
        "tune": "kvstore.tune.cli",
    }
    if command not in modules:
        return _told(command, f"no such command; there are {', '.join(sorted([*modules, 'bench', *_LATER]))}")
    code: int = importlib.import_module(modules[command]).run(words)
    return code


def _bench(words: list[str]) -> int:
    """`kvstore bench NAME …`: `kvstore/bench/NAME.py` has `run(argv) -> int`."""
    import pkgutil

    import kvstore.bench

    names = sorted(found.name for found in pkgutil.iter_modules(kvstore.bench.__path__) if _is_bench(found.name))
    if not words or words[0] in ("-h", "--help"):
        print("usage: kvstore bench NAME [options]\n\nNAME: " + ", ".join(names))
        return 0 if words else EXIT_USAGE
    name = words[0].replace("-", "_")
    if name not in names:
        return _told("bench", f"no benchmark {words[0]!r}; there are {', '.join(names)}")
    code: int = importlib.import_module(f"kvstore.bench.{name}").run(words[1:])
    return code


def _is_bench(name: str) -> bool:
    """A module of the folder that has `run`; found without importing what only a run needs."""
    import ast
    from pathlib import Path

    import kvstore.bench

    path = Path(next(iter(kvstore.bench.__path__))) / f"{name}.py"
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in tree.body)


def _one_line(error: Exception) -> str | None:
    """What to say of a failure that is nobody's fault of ours; None for one that is."""
    from kvstore.errors import StoreError

    if isinstance(error, StoreError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return None


def _told(command: str, line: str) -> int:
    print(f"kvstore {printable(command)}: {printable(line)}", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
