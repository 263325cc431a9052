"""Every error that the user can mend, as one line and an exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tui.commands import CommandError


@contextlib.contextmanager
def plain_errors(what: str = "") -> Iterator[None]:
    """Turn the rooms' own errors into ``CommandError``; ``what`` goes in front ("expression", a file's name)."""
    from playbooks.frontmatter import FrontMatterError
    from playbooks.objective import ObjectiveError
    from probes.exposition import ExpositionError
    from probes.promql.errors import PromQLError
    from probes.rules import RuleError
    from probes.target import TargetError

    head = f"{what}: " if what else ""
    try:
        yield
    except PromQLError as error:
        raise CommandError(head + error.render(caret=True)) from None
    except (TargetError, RuleError, FrontMatterError, ObjectiveError, ExpositionError) as error:
        raise CommandError(head + str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{head}{name}{(error.strerror or str(error)).lower()}") from None
