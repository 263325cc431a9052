"""Every error that the user can mend, as one line and an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from playbooks.printable import name_text, printable
from tui.commands import CommandError

# Errors that these rooms define are written for people: what, where, what to do. None is imported here, so that a
# command loads only what it uses.
_ROOMS = ("probes", "playbooks", "exporters")


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the rooms' own errors, and those of files, into ``CommandError``."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f"{name_text(str(error.filename))}: " if error.filename else ""
        raise CommandError(f"{name}{printable(error.strerror or str(error)).lower()}") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in _ROOMS:
            raise
        render = getattr(error, "render", None)
        # Only an expression with its caret has lines of its own.
        raise CommandError(render(caret=True) if render else printable(str(error))) from None
