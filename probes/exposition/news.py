"""What a page has that was not known of the pages before it, where all its lines are written as nearly all are."""

from __future__ import annotations

import time
from collections.abc import Sequence

from probes.exposition.common import CommonParts
from probes.exposition.line import ExpositionError, Family, Metadata, parse_comment
from probes.exposition.refuse import decode
from probes.labels import Labels

CLOCK_LINES = 1024


class News:
    """The comments of a page, and its new series: the one at line ``places[i]`` has ``labels[i]``."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.labels: list[Labels] = []
        self.notes: list[int] = []
        self.families: dict[str, Family] = {}

    def read(
        self,
        lines: Sequence[bytes],
        heads: Sequence[bytes],
        unknown: Sequence[int],
        common: CommonParts,
        *,
        openmetrics: bool,
        until: float,
    ) -> bool:
        """Read the lines at ``unknown``; ``heads`` are the lines up to their last space.

        False for a page with any line but comments and ``name{labels} value``, or that is wrong: it is to be read
        line by line. ``ExpositionError`` only when the moment ``until`` has passed.
        """
        metadata = Metadata(self.families)
        for count, at in enumerate(unknown):
            if count % CLOCK_LINES == 0:
                check_clock(until, at, lines)
            labels = common.labels(heads[at])
            if labels is not None:
                self.places.append(at)
                self.labels.append(labels)
                continue
            line = lines[at]
            if line[:1] == b"#":
                self.notes.append(at)
                try:
                    ends = parse_comment(decode(line, at + 1), metadata, at + 1)
                except ExpositionError:
                    return False
                if ends and openmetrics:
                    return not any(rest.strip() for rest in lines[at + 1 :])
            elif line and not line.isspace():
                return False
        return not openmetrics


def check_clock(until: float, at: int, lines: Sequence[bytes]) -> None:
    """``ExpositionError`` where the moment ``until`` has passed before line ``at``."""
    if time.monotonic() > until:
        raise ExpositionError(f"no time left to read the page: line {at + 1} of {len(lines)}", 0, "timeout")
