"""What a bitmap on the device knows of itself: int32 `[STATE_WORDS]`, each word at the place named here."""

from __future__ import annotations

FREE = 0
"""Slots that nobody has asked for: lowered before bits are taken, raised after bits are set."""
CURSOR = 1
"""Where the next search begins: the sum of what was asked for, modulo 2**31."""
REFUSED = 2
"""Requests that got nothing: more than there was, or than their row of the answer holds."""
TWICE = 3
"""Slots that were given back though they were free."""
STRANGE = 4
"""Slots that were given back though they do not exist."""
SHORT = 5
"""Requests that found less than `FREE` had promised: the words and the count do not agree. They got nothing."""
STATE_WORDS = 8
"""32 bytes: one sector of the memory."""
FAULTS = {"freed twice": TWICE, "no such slot": STRANGE, "promised and not found": SHORT}
"""What may never happen."""
