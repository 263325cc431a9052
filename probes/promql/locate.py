"""The column of a parse error, from our own tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.promql.errors import PromQLError
from probes.promql.tokens import Token

_QUOTED = re.compile(r"'([^']*)'")


def locate(text: str, tokens: Sequence[Token], message: str) -> PromQLError:
    """The parser's ``message`` as a PromQLError at the token that it is about."""
    for word in _QUOTED.findall(message):
        for token in tokens:
            if token.text == word:
                return PromQLError(message, token.column, text)
    return PromQLError(message, None, text)
