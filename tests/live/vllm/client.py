"""A client of one engine: completions with prompts of token ids, and its metrics page."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_IDLE_S = 2.0
"""A connection that was idle for longer is made anew: the engine's web server drops idle ones after 5 s."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one answered completion, as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int


class Client:
    """One keep-alive connection to an engine; not shared between threads."""

    def __init__(self, url: str, timeout_s: float = 120.0) -> None:
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=timeout_s)
        self._answered = time.monotonic()

    def complete(self, prompt: Sequence[int], max_tokens: int) -> Usage:
        """Generate exactly ``max_tokens`` tokens after ``prompt`` (token ids); ``OSError`` on any other answer."""
        asked = {
            "model": "tiny",
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        status, body = self._ask("POST", "/v1/completions", json.dumps(asked).encode())
        if status != 200:
            raise OSError(f"completion answered {status}: {body[:200].decode(errors='replace')}")
        usage = json.loads(body)["usage"]
        return Usage(int(usage["prompt_tokens"]), int(usage["completion_tokens"]))

    def page(self) -> str:
        """The metrics page as the engine sends it (classic text)."""
        status, body = self._ask("GET", "/metrics")
        if status != 200:
            raise OSError(f"/metrics answered {status}")
        return body.decode()

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if time.monotonic() - self._answered > _IDLE_S:
            self._connection.close()
        try:
            self._connection.request(method, path, body=body, headers=headers)
            answer = self._connection.getresponse()
            page = answer.read()
            self._answered = time.monotonic()
            return answer.status, page
        except (http.client.HTTPException, OSError):
            self._connection.close()
            raise
