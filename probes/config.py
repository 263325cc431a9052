"""``--config FILE``: named targets with labels and credentials, the interval, and the user's objectives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from probes.settings import Config
from probes.target import Access, Target, TargetError, parse_target, recording_target, with_labels

__all__ = ["Config", "load_config"]

_TOP = ("targets", "interval", "slo")
_TARGET = (
    "url",
    "path",
    "name",
    "job",
    "labels",
    "bearer_token_file",
    "basic_auth",
    "ca_file",
    "insecure_skip_verify",
    "timeout",
)
_BASIC = ("username", "password", "password_file")
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)?$")
_UNIT_MS = {"ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0, None: 1000.0}
_LABEL = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")


def load_config(path: Path) -> Config:
    """Read and check a configuration; an unknown key is refused by name and line. Raises ``TargetError``."""
    try:
        root = yaml.compose(path.read_text("utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"config {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise TargetError(f"config {path}{where}: not YAML: {getattr(error, 'problem', error)}") from None
    except RecursionError:
        raise TargetError(f"config {path}: nested too deeply") from None
    return _Reader(path).config(root)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def config(self, root: yaml.Node | None) -> Config:
        if root is None:
            return Config()
        targets: tuple[Target, ...] = ()
        interval: int | None = None
        slo: tuple[str, ...] = ()
        for key, value in self._pairs(root, _TOP, "the configuration"):
            if key == "targets":
                targets = tuple(self._target(item) for item in self._items(value, key))
            elif key == "interval":
                interval = self._duration_ms(value, key)
            else:
                slo = tuple(self._text(item, key) for item in self._items(value, key))
        return Config(targets, interval, slo)

    def _target(self, node: yaml.Node) -> Target:
        fields = dict(self._pairs(node, _TARGET, "a target"))
        if ("url" in fields) == ("path" in fields):
            raise self._error(node, "a target needs either url or path")
        try:
            if "path" in fields:
                target = self._recording(fields["path"])
            else:
                target = parse_target(self._text(fields["url"], "url"))
        except TargetError as error:
            raise self._error(node, error.message) from None
        labels = self._labels(fields["labels"]) if "labels" in fields else {}
        if "job" in fields:
            labels["job"] = self._text(fields["job"], "job")
        if "name" in fields:
            labels["instance"] = self._text(fields["name"], "name")
        timeout = self._duration_ms(fields["timeout"], "timeout") / 1000 if "timeout" in fields else None
        return replace(with_labels(target, labels), access=self._access(fields, target.access), timeout_s=timeout)

    def _recording(self, node: yaml.Node) -> Target:
        path = (self._path.parent / Path(self._text(node, "path")).expanduser()).resolve()
        if not path.exists():
            raise TargetError(f"{path}: no such file")
        return recording_target(path)

    def _access(self, fields: dict[str, yaml.Node], access: Access) -> Access:
        if "basic_auth" in fields and "bearer_token_file" in fields:
            raise self._error(fields["bearer_token_file"], "a target has either basic_auth or bearer_token_file")
        if "basic_auth" in fields:
            basic = dict(self._pairs(fields["basic_auth"], _BASIC, "basic_auth"))
            if "username" not in basic:
                raise self._error(fields["basic_auth"], "basic_auth needs a username")
            if ("password" in basic) == ("password_file" in basic):
                raise self._error(fields["basic_auth"], "basic_auth needs either password or password_file")
            access = replace(access, user=self._text(basic["username"], "username"), password="")
            if "password" in basic:
                access = replace(access, password=self._text(basic["password"], "password"))
            if "password_file" in basic:
                access = replace(access, password_file=self._file(basic["password_file"], "password_file"))
        if "bearer_token_file" in fields:
            access = replace(access, bearer_file=self._file(fields["bearer_token_file"], "bearer_token_file"))
        if "ca_file" in fields:
            access = replace(access, ca_file=self._file(fields["ca_file"], "ca_file"))
        if "insecure_skip_verify" in fields:
            access = replace(access, verify=self._text(fields["insecure_skip_verify"], "flag").lower() != "true")
        return access

    def _file(self, node: yaml.Node, key: str) -> Path:
        path = self._path.parent / Path(self._text(node, key)).expanduser()
        if not path.is_file():
            raise self._error(node, f"{key}: {path}: no such file")
        return path

    def _labels(self, node: yaml.Node) -> dict[str, str]:
        labels = {}
        for key, value in self._pairs(node, None, "labels"):
            if not _LABEL.match(key) or key == "__name__":
                raise self._error(node, f"{key!r} is not a label name")
            labels[key] = self._text(value, key)
        return labels

    def _duration_ms(self, node: yaml.Node, key: str) -> int:
        text = self._text(node, key)
        found = _DURATION.match(text)
        if not found or float(found.group(1)) <= 0:
            raise self._error(node, f"{key}: {text!r} is not a duration such as 1s or 500ms")
        return max(1, round(float(found.group(1)) * _UNIT_MS[found.group(2)]))

    def _pairs(self, node: yaml.Node, allowed: tuple[str, ...] | None, what: str) -> Iterator[tuple[str, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{what} must be a mapping")
        seen: set[str] = set()
        for key_node, value in node.value:
            key = self._text(key_node, "key")
            if allowed is not None and key not in allowed:
                raise self._error(key_node, f"unknown key {key!r} in {what}; known: {', '.join(allowed)}")
            if key in seen:
                raise self._error(key_node, f"key {key!r} is given twice in {what}")
            seen.add(key)
            yield key, value

    def _items(self, node: yaml.Node, key: str) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, f"{key} must be a list")
        return list(node.value)

    def _text(self, node: yaml.Node, key: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"{key} must be a single value")
        return str(node.value)

    def _error(self, node: yaml.Node, message: str) -> TargetError:
        return TargetError(f"config {self._path}:{node.start_mark.line + 1}: {message}")
