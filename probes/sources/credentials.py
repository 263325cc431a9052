"""The Authorization header of a target. What a credentials file holds is never part of any message."""

from __future__ import annotations

from pathlib import Path

from probes.printable import has_control
from probes.target import Access


class CredentialsError(Exception):
    """Credentials that cannot be read or sent: which file, and what is wrong with it, without its content."""


def authorization(access: Access) -> list[tuple[str, str]]:
    """The header, its file read anew each time; raises ``CredentialsError``."""
    if access.bearer_file is not None:
        return [("Authorization", f"Bearer {_secret(access.bearer_file, ascii_only=True)}")]
    if access.bearer is not None:
        return [("Authorization", f"Bearer {access.bearer}")]
    if access.user is None:
        return []
    password = access.password or ""
    if access.password_file is not None:
        password = _secret(access.password_file)
    import base64

    pair = base64.b64encode(f"{access.user}:{password}".encode()).decode()
    return [("Authorization", f"Basic {pair}")]


def _secret(path: Path, *, ascii_only: bool = False) -> str:
    """The one line of a file, without the white space around it. Only ASCII can stand in a header as it is."""
    try:
        text = path.read_text("utf-8").strip()
    except UnicodeDecodeError:
        raise CredentialsError(f"the credentials file {path} is not UTF-8 text") from None
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise CredentialsError(f"the credentials file {path} cannot be read: {words}") from None
    if not text:
        raise CredentialsError(f"the credentials file {path} is empty")
    if len(text.splitlines()) > 1:
        raise CredentialsError(f"the credentials file {path} holds more than one line; it must hold the secret alone")
    if has_control(text) or (ascii_only and not text.isascii()):
        raise CredentialsError(f"the credentials file {path} holds a character that no header can carry")
    return text
