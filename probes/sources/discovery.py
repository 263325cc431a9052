"""Prometheus' discovery formats: a file or a URL that lists targets, read again as it changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from probes.apart import told_apart
from probes.sources.base import Source, SourceStatus
from probes.sources.fetch import Fetcher, FetchError
from probes.target import Access, Target, TargetError, parse_target, with_labels

REFRESH_MS = 30_000
"""How often an ``http_sd:`` URL is read again (Prometheus' default is one minute; policy)."""
_TIMEOUT_S = 5.0
_LIMIT = 4 << 20


class Discovery:
    """A list of targets. ``members`` are the sources of the targets listed now; ``retired`` those to be closed."""

    def __init__(self, target: Target, make: Callable[[Target], Source], *, timeout_s: float = _TIMEOUT_S) -> None:
        """``timeout_s`` is the deadline of a member; a first answer needs that after the list's own."""
        self.timeout_s = _TIMEOUT_S + timeout_s
        self._target = target
        self._make = make
        self._known: dict[str, Source] = {}
        self.retired: list[Source] = []
        self._due_ms = 0
        self._stamp: tuple[int, int] | None = None
        self._status = SourceStatus(target.shown, "stale", "not read yet", kind=target.kind)
        self._fetcher: Fetcher | None = None
        if target.kind == "http_sd":
            self._fetcher = Fetcher(target.url, target.access, timeout_s=_TIMEOUT_S, max_bytes=_LIMIT)

    @property
    def target(self) -> str:
        return self._target.shown

    @property
    def status(self) -> SourceStatus:
        return self._status

    @property
    def members(self) -> list[Source]:
        return list(self._known.values())

    async def collect(self, now_ms: int) -> SourceStatus:
        """Read the list if it is due; a list that cannot be read leaves the targets as they are."""
        start = time.monotonic()
        try:
            text = await self._read(now_ms)
            if text is not None:
                self._take(list(targets_of(text, self._target)))
        except FetchError as error:
            self._failed(now_ms, error.message, error)
        except TargetError as error:
            self._failed(now_ms, error.message, None)
        else:
            count = len(self._known)
            self._status = replace(
                self._status,
                state="fresh" if count else "empty",
                error=None if count else "lists no target",
                time_ms=now_ms,
                last_ok_ms=now_ms,
                duration_s=time.monotonic() - start,
                detail=f"{count} targets",
            )
        return self._status

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()

    def expire(self, now_ms: int) -> None:
        """A list has no series of its own."""

    async def _read(self, now_ms: int) -> str | None:
        """The list as text, or None when it is as it was."""
        if self._fetcher is not None:
            if now_ms < self._due_ms:
                return None
            self._due_ms = now_ms + REFRESH_MS
            response = await self._fetcher.get("application/json")
            if response.status != 200:
                raise FetchError("http-error", f"HTTP {response.status} {response.reason}".strip())
            return response.body.decode("utf-8", "replace")
        path = self._target.path
        assert path is not None
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp == self._stamp:
                return None
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            words = getattr(error, "strerror", None) or str(error)
            raise FetchError("gone", f"cannot be read: {words.lower()}") from None
        self._stamp = stamp
        return text

    def _failed(self, now_ms: int, message: str, error: FetchError | None) -> None:
        state = error.state if error is not None else "not-exposition"
        self._status = replace(self._status, state=state, error=message, time_ms=now_ms)

    def _take(self, targets: list[Target]) -> None:
        wanted = {
            f"{one.shown} {sorted(one.labels.items())} {one.job} {one.instance}": one for one in told_apart(targets)
        }
        made = {key: self._make(one) for key, one in wanted.items() if key not in self._known}
        for key in [key for key in self._known if key not in wanted]:
            self.retired.append(self._known.pop(key))
        self._known |= made


def targets_of(text: str, origin: Target) -> Iterator[Target]:
    """The targets of a list in the file or HTTP discovery format; raises ``TargetError``.

    ``__scheme__``, ``__metrics_path__`` and ``__param_<name>`` are honoured, other ``__`` labels dropped, as a
    Prometheus without relabelling does.
    """
    for number, group in enumerate(_groups(text), 1):
        listed, labels = (group.get("targets"), group.get("labels") or {}) if isinstance(group, dict) else (None, {})
        if not isinstance(listed, list) or not isinstance(labels, dict):
            raise TargetError(f"group {number} is not {{targets: [host:port, …], labels: {{…}}}}")
        plain = {str(k): str(v) for k, v in labels.items()}
        for address in listed:
            if not isinstance(address, str):
                raise TargetError(f"group {number}: target {address!r} is not text in the form host:port")
            yield _target(address, plain, origin.access if origin.kind == "file_sd" else Access())


def _groups(text: str) -> list[Any]:
    import yaml

    try:
        found = json.loads(text) if text.lstrip()[:1] in ("[", "{") else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise TargetError(f"the target list is neither JSON nor YAML: {str(error).splitlines()[0]}") from None
    if found is None:
        return []
    if not isinstance(found, list):
        raise TargetError("the target list is not a list of {targets, labels} groups")
    return found


def _target(address: str, labels: dict[str, str], access: Access) -> Target:
    scheme = labels.get("__scheme__", "http")
    path = labels.get("__metrics_path__", "/metrics")
    query = "&".join(f"{k.removeprefix('__param_')}={v}" for k, v in labels.items() if k.startswith("__param_"))
    url = address if "://" in address else f"{scheme}://{address}{path}" + (f"?{query}" if query else "")
    target = parse_target(url)
    if target.kind != "http":
        raise TargetError(f"target list: {target.shown} is not host:port")
    if not target.access.user:
        target = replace(target, access=access)
    return with_labels(target, {k: v for k, v in labels.items() if not k.startswith("__")})
