"""Standard output: text that cannot steer the terminal, or one JSON document; what cannot be written is an error."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from playbooks.printable import page
from tui.commands import EXIT_OUTPUT, CommandError

# Outside of ASCII, what a terminal may obey and what no encoding has; in JSON only strings can hold them.
_ESCAPED = re.compile("[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def unwritable(error: Exception) -> CommandError:
    """The answer is lost (full disk, broken file): not a finding, not the user's words, not our fault."""
    words = getattr(error, "strerror", None) or str(error)
    return CommandError(f"standard output cannot be written: {words.lower()}", EXIT_OUTPUT)


def discard() -> None:
    """Nothing more is written: Python would otherwise try again, and complain, when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(text: str, end: str = "\n") -> None:
    """Print text and see it off; ``CommandError`` (74) when it cannot be written.

    A reader that has gone (``| head``) is no error, and what the exit code says must not depend on it.
    """
    try:
        print(page(text), end=end, flush=True)
    except BrokenPipeError:
        discard()
    except OSError as error:
        raise unwritable(error) from None


def print_json(document: Any) -> None:
    """NaN and infinities, which JSON lacks, become null and the strings "+Inf" and "-Inf"; strings stay exact."""
    text = json.dumps(_plain(document), ensure_ascii=False, indent=2, allow_nan=False, default=str)
    show(_ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
