"""The command line: finds the command, reads its options, turns every failure into one line and an exit code.

Each command is a module of ``tui.commands``, imported only when it is called, so that ``kvtop once`` never loads
what only the screen needs.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys

from tui.commands import COMMANDS, EXIT_FAULT, EXIT_INTERRUPTED, EXIT_OK, EXIT_OUTPUT, EXIT_USAGE, CommandError, Spec
from tui.commands.when import bind_negative, expression_first


def run(words: list[str]) -> int:
    """The exit code of a command, whatever happens in it."""
    # We call no BLAS: one thread keeps its start-up and its memory out of every command (before numpy is imported).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Start-up makes many objects and no garbage: looking for it a hundred times costs more than it frees.
    gc.set_threshold(50_000, 20, 20)
    _open_streams()
    try:
        code = _dispatch(words)
    except CommandError as error:
        code = _told(error)
    except BrokenPipeError:
        code = EXIT_OK
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _LOST:
            from tui.commands.output import unwritable

            return _flushed(_told(unwritable(error)))
        # Python's own exit code for this is 1, which would read as "a finding".
        import traceback

        traceback.print_exc()
        print("kvtop: this is a fault of kvtop itself; please report it with the lines above", file=sys.stderr)
        return EXIT_FAULT
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    return _flushed(code)


_LOST = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT, errno.EFBIG)  # writing to what is full, or not open


def _open_streams() -> None:
    """A stream that was closed (`>&-`) is read by nobody, as /dev/null: Python has None there, and an error on a closed
    stderr would go to stdout."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif mode == "w" and isinstance(stream, io.TextIOWrapper) and "utf" not in (stream.encoding or "").lower():
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 gets \u2013 for a dash, no fault


def _told(error: CommandError) -> int:
    from playbooks.printable import page

    print(f"kvtop: {page(str(error))}", file=sys.stderr)
    return error.code


def _flushed(code: int) -> int:
    """The reader of a pipe (`| head`) may have gone: not our failure, and no reason for another exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        from tui.commands.output import discard, unwritable

        discard()
        if isinstance(error, BrokenPipeError):
            return code
        return code if code == EXIT_OUTPUT else _told(unwritable(error))
    return code


def _dispatch(words: list[str]) -> int:
    if words and words[0] in ("--version", "-V"):
        from tui.commands.output import show
        from tui.version import version_line

        show(version_line())
        return EXIT_OK
    if words and words[0] in ("help", "--help", "-h"):
        return _help(words[1:])
    if words and words[0] in COMMANDS:
        return _run(COMMANDS[words[0]], words[1:])
    _refuse_lookalike(words)
    return _run(COMMANDS["top"], words)


def _run(spec: Spec, words: list[str]) -> int:
    command = spec.load()
    parser = spec.parser()
    command.add_arguments(parser)
    try:
        words = bind_negative(words)
        args = parser.parse_intermixed_args(expression_first(words) if spec.name == "query" else words)
    except SystemExit as exit_:  # argparse: help was asked for (0), or the usage is wrong (2)
        return exit_.code if isinstance(exit_.code, int) else EXIT_USAGE
    except AttributeError as error:  # argparse's way to tidy up after an interrupt hides it
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    return command.run(args)


def _help(words: list[str]) -> int:
    if words:
        if words[0] not in COMMANDS:
            raise CommandError(f"there is no command {words[0]!r}: `kvtop help` lists them")
        return _run(COMMANDS[words[0]], ["--help"])
    from tui.commands.output import show
    from tui.commands.overview import overview

    show(overview())
    return EXIT_OK


def _refuse_lookalike(words: list[str]) -> None:
    """A first word that can be no target is a mistyped command: say so, instead of "cannot connect"."""
    if not words or words[0].startswith("-"):
        return
    word = words[0]
    if not word.isidentifier() or word in ("nvml", "rdma", "host") or os.path.exists(word):
        return
    import difflib

    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean `kvtop {near[0]}`?" if near else "`kvtop help` lists the commands"
    raise CommandError(f"{word!r} is neither a command nor a target (host:port, URL or file): {hint}")
