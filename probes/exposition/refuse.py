"""What a body is when it is no exposition: said in words that help."""

from __future__ import annotations

import re

from probes.exposition.line import ExpositionError

_TITLE = re.compile(rb"<title[^>]*>([^<]{0,80})", re.IGNORECASE)
_HTML = re.compile(rb"^(<\?xml|<!doctype|<html|<head|<body|<[a-z])", re.IGNORECASE)
_JSON_OPEN = (b"{", b"[")
_BINARY = frozenset(range(9)) | frozenset((11, 12)) | frozenset(range(14, 32))


def refuse_foreign(data: bytes, what: str = "answer") -> None:
    """Raise a telling ``ExpositionError`` for a body that is HTML, JSON, compressed or otherwise not text.

    ``what`` is the thing that was read, in a word.
    Asked when a page could not be read, not before: an exposition may start with ``{`` and may hold control characters.
    """
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n")
    if _HTML.match(head):
        title = _TITLE.search(data[:4096])
        named = f" titled {title.group(1).decode('utf-8', 'replace').strip()!r}" if title else ""
        raise ExpositionError(f"the {what} is an HTML page{named}, not metrics: is the path right?")
    if data[:2] == b"\x1f\x8b":
        unsaid = " without a Content-Encoding header" if what == "answer" else ""
        raise ExpositionError(f"the {what} is gzip data{unsaid}, not metrics")
    if head[:1] in _JSON_OPEN and _is_json(head):
        raise ExpositionError(f"the {what} is JSON, not metrics: is the path right?")
    if b"\0" in data or any(byte in _BINARY for byte in head):
        raise ExpositionError(f"the {what} is binary data, not metrics")


def decode(line: bytes, number: int) -> str:
    """UTF-8 text of a line, or an error that names the line."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise ExpositionError("not UTF-8 text, so not metrics", number) from None


def _is_json(head: bytes) -> bool:
    if head[:1] == b"[":
        return True
    rest = head[1:].lstrip()
    return rest[:1] == b"}" or re.match(rb'"(?:[^"\\]|\\.)*"\s*:', rest) is not None
