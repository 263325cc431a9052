"""What a person types to go to a moment."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tui.cursor import Cursor

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?$")
_AGO = re.compile(r"-\s*(?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?$")


class SeekError(ValueError):
    """Not a moment; the text says what is."""


def moment_of(text: str, cursor: Cursor) -> int:
    """``10:02`` or ``10:02:15`` (UTC, on the day of the end or the day before: the one within the data, else nearest),
    ``-1h5m30s`` (before the end), ``start``, ``end``; milliseconds since the epoch. Raises `SeekError`."""
    said = text.strip().lower()
    if said in ("start", "end"):
        return cursor.start_ms if said == "start" else cursor.end_ms
    ago = _AGO.match(said)
    if ago:
        hours, minutes, seconds = (int(part or 0) for part in ago.groups())
        return cursor.end_ms - 1000 * (hours * 3600 + minutes * 60 + seconds)
    found = _CLOCK.match(said)
    if found is None:
        raise SeekError(f"{text!r} is no moment: HH:MM:SS (10:02:15) or -5m")
    end = datetime.fromtimestamp(cursor.end_ms / 1000, UTC)
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    try:
        moment = end.replace(hour=hours, minute=minutes, second=seconds, microsecond=0)
    except ValueError:
        raise SeekError(f"{text!r} is no time of day: 10:02:15") from None
    days = [int((moment - timedelta(days=back)).timestamp() * 1000) for back in (0, 1)]
    return min(days, key=lambda ms: max(cursor.start_ms - ms, ms - cursor.end_ms, 0))
