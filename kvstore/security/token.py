"""A secret that every call carries."""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path

from kvstore.errors import BadRequest

HEADER = "authorization"
_SCHEME = "Bearer "
_FEWEST = 16
_MOST = 4096


class Token:
    """Shown as `authorization: Bearer …`. Neither its text nor its `repr` gives it away."""

    __slots__ = ("_shown",)

    def __init__(self, secret: str) -> None:
        if not _FEWEST <= len(secret) <= _MOST or not all(33 <= ord(sign) <= 126 for sign in secret):
            raise BadRequest(f"a token is {_FEWEST} to {_MOST} printable ASCII characters without spaces")
        self._shown = _SCHEME + secret

    @classmethod
    def read(cls, path: Path) -> Token:
        """The token of a file that is its owner's alone. Raises `BadRequest`."""
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                secret = file.read(_MOST + 2)
        except OSError as error:
            raise BadRequest(f"token file {path}: {error.strerror}") from None
        if stat.S_ISREG(mode) and mode & 0o077:
            raise BadRequest(f"token file {path} can be read by others: chmod 600 it")
        try:
            return cls(secret.decode("ascii").strip())
        except UnicodeDecodeError:
            raise BadRequest(f"token file {path}: a token is printable ASCII") from None
        except BadRequest as error:
            raise BadRequest(f"token file {path}: {error}") from None

    @property
    def metadata(self) -> tuple[str, str]:
        """What a call carries."""
        return (HEADER, self._shown)

    def agrees(self, shown: str | bytes) -> bool:
        """Whether `shown` is this token's header; in constant time."""
        theirs = shown if isinstance(shown, bytes) else shown.encode("utf-8", "replace")
        return hmac.compare_digest(self._shown.encode("ascii"), theirs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and self.agrees(other._shown)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "Token(…)"
