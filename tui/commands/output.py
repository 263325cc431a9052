"""JSON on stdout: one document, human-sized, with no number that JSON does not have."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any


def print_json(document: Any) -> None:
    """NaN and infinities, which JSON lacks, become null and the strings "+Inf" and "-Inf"."""
    json.dump(_plain(document), sys.stdout, ensure_ascii=False, indent=2, allow_nan=False, default=str)
    print()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
