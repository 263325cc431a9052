"""The TARGET forms of the command line: what to attach to, and how it is shown without its credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from probes.printable import has_control, one_line
from probes.records import dataclass
from probes.regular import kind

DEFAULT_JOB = "kvscope"
"""The job of a target that no configuration names: all of them are one job, so that peers can be compared."""

RDMA_JOB = "rdma"
NVML_JOB = "nvml"

Kind = Literal["http", "prometheus", "recording", "file_sd", "http_sd", "rdma", "nvml"]

_LATER = {
    "host": "host pressure readings",
    "log": "engine log files",
}
_HOST_PORT = re.compile(r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})(/\S*)?$")
_QUERY_VALUE = re.compile(r"=[^&;#]*")
_PATH_VALUE = re.compile(r"(;[^=;/#]*=)[^;/#]*")
_WEB_SCHEME = re.compile(r"^(?:http_sd:|prometheus\+)?https?://", re.IGNORECASE)
_FORMS = (
    "http://host:port/metrics, host:port, prometheus+http://host:9090, a recording's path, "
    "file_sd:FILE, http_sd:URL, rdma, nvml"
)


class TargetError(ValueError):
    """A target or a configuration that cannot be used: one line that says what, where and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message := one_line(message))
        self.message = message


@dataclass(frozen=True, slots=True)
class Access:
    """How to get in: credentials (never shown) and TLS settings.

    ``bearer_file`` is read at every scrape, so that a rotated token is taken up.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    bearer: str | None = field(default=None, repr=False)
    bearer_file: Path | None = None
    ca_file: Path | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to attach to. ``shown`` has no credentials; ``url`` neither (they are in ``access``)."""

    kind: Kind
    shown: str
    url: str = ""
    path: Path | None = None
    job: str = ""
    instance: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    access: Access = Access()
    timeout_s: float | None = None


def parse_target(text: str) -> Target:
    """Read one TARGET as the command line takes it; raises ``TargetError``."""
    if not text.strip():
        raise TargetError(f"an empty target; a target is one of: {_FORMS}")
    if has_control(text):
        raise TargetError(f"target {hide(text)}: has a line break or another control character in it")
    text = _WEB_SCHEME.sub(lambda found: found[0].lower(), text)
    scheme, colon, rest = text.partition(":")
    if text in _LATER or (scheme == "log" and colon):
        raise TargetError(f"target {text}: {_LATER[scheme]} are not supported by this version of kvscope")
    if text.startswith(("http://", "https://")):
        return _web(text, "http")
    if text.startswith(("prometheus+http://", "prometheus+https://")):
        return _web(text.removeprefix("prometheus+"), "prometheus")
    if scheme == "rdma":
        return _rdma(rest if colon else None)
    if scheme == "nvml":
        if colon:
            raise TargetError(f"target {hide(text)}: nvml takes no argument: it is the GPUs of this host")
        return Target("nvml", "nvml", job=NVML_JOB)
    if scheme == "file_sd" and colon:
        return _file_sd(rest)
    if scheme == "http_sd" and colon:
        if not rest.startswith(("http://", "https://")):
            raise TargetError(f"target {hide(text)}: http_sd: needs a URL, as in http_sd:http://host/targets.json")
        return _web(rest, "http_sd")
    return _local(text)


def recording_target(path: Path, text: str | None = None) -> Target:
    if path.is_dir():
        raise TargetError(f"target {path}: is a directory; name the recording itself")
    if path.exists() and (found := kind(path.stat().st_mode)):
        raise TargetError(f"target {path}: is {found}; a recording is a file")
    return Target("recording", text or str(path), path=path)


def hide(url: str) -> str:
    """A target as it may be shown: nothing of what stands before an ``@``, no values of parameters in path and query.

    Any of them may be a secret. Control characters are escaped, so that it is one line.
    """
    head, at, tail = url.rpartition("@")
    if at:
        scheme, slashes, _ = head.partition("//")
        url = scheme + slashes + tail if slashes else f"…@{tail}"
    return _without_values(url)


def _without_values(url: str) -> str:
    base, mark, query = url.partition("?")
    return one_line(_PATH_VALUE.sub(r"\1…", base) + mark + _QUERY_VALUE.sub("=…", query))


def with_labels(target: Target, labels: Mapping[str, str]) -> Target:
    """The target with further labels; ``job`` and ``instance`` among them replace the defaults."""
    rest = {k: v for k, v in labels.items() if k not in ("job", "instance")}
    return replace(
        target,
        job=labels.get("job", target.job),
        instance=labels.get("instance", target.instance),
        labels={**target.labels, **rest},
    )


def _local(text: str) -> Target:
    path = Path(text).expanduser()
    if path.exists():
        return recording_target(path, text)
    found = _HOST_PORT.match(text)
    if found and int(found.group(2)) <= 65535:
        return _web(f"http://{text}", "http")
    if "://" in text:
        raise TargetError(f"target {hide(text)}: unknown scheme; a target is one of: {_FORMS}")
    if "@" in text and _HOST_PORT.match(text.rpartition("@")[2]):
        raise TargetError(f"target {hide(text)}: user and password need a URL, as in http://user:password@host:port")
    if found:
        raise TargetError(f"target {hide(text)}: port {found.group(2)} is out of range")
    if "/" in text or "." in text:
        raise TargetError(f"target {hide(text)}: no such file (and no host:port)")
    raise TargetError(f"target {hide(text)}: no such file; a server needs its port, as in {hide(text)}:8000")


def _rdma(rest: str | None) -> Target:
    """The ports of this host, or of the sysfs tree at a path; its job is that of a host's exporter: it is no engine."""
    if rest is None:
        return Target("rdma", "rdma", job=RDMA_JOB)
    path = Path(rest).expanduser()
    if not rest or not path.is_dir():
        raise TargetError(f"target rdma:{hide(rest)}: no such folder; it stands for /sys, as in rdma:/host/sys")
    return Target("rdma", f"rdma:{rest}", path=path, job=RDMA_JOB)


def _file_sd(rest: str) -> Target:
    path = Path(rest).expanduser()
    if not rest or not path.is_file():
        raise TargetError(f"target file_sd:{hide(rest)}: no such file")
    return Target("file_sd", f"file_sd:{rest}", path=path)


def _web(url: str, kind: Kind) -> Target:
    shown = hide(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        said = str(error).partition(": ")[0]  # what follows may quote more of the URL than may be shown
        raise TargetError(f"target {shown}: {said}") from None
    if not parts.hostname or any(c.isspace() or ord(c) < 32 for c in url):
        raise TargetError(f"target {shown}: not a URL with a host")
    if port == 0:
        raise TargetError(f"target {shown}: port 0 is out of range (1 to 65535)")
    path = parts.path
    if kind == "http" and path in ("", "/"):
        path = "/metrics"
    access = Access()
    if parts.username is not None:
        access = Access(user=unquote(parts.username), password=unquote(parts.password or ""))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    clean = urlunsplit(SplitResult(parts.scheme, netloc, path, parts.query, ""))
    prefix = {"prometheus": "prometheus+", "http_sd": "http_sd:"}.get(kind, "")
    job = DEFAULT_JOB if kind == "http" else ""
    instance = f"{host}:{port or (443 if parts.scheme == 'https' else 80)}"
    return Target(kind, prefix + _without_values(clean), url=clean, job=job, instance=instance, access=access)
