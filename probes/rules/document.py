"""A YAML file whose every part knows its line, for errors that say where."""

from __future__ import annotations

from typing import Any, Protocol

import yaml

from probes.rules.errors import RuleError

Position = yaml.nodes.Node
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where it is there: ten times as fast


class Readable(Protocol):
    """A ``Path`` or a packaged resource."""

    @property
    def name(self) -> str: ...

    def read_text(self, encoding: str = ...) -> str: ...


class Document:
    """One YAML document as a tree of nodes with lines. Errors: ``RuleError`` for what is no YAML or cannot be read."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.text = text
        self._lines = text.splitlines()
        try:
            self.root: Position | None = yaml.compose(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise RuleError(f"no YAML: {error.problem}", file=file, line=mark.line + 1 if mark else 0) from None
        except yaml.YAMLError as error:
            raise RuleError(f"no YAML: {' '.join(str(error).split())}", file=file) from None

    @classmethod
    def read(cls, source: Readable, name: str) -> Document:
        """Read ``source``; errors call it ``name``."""
        try:
            return cls(source.read_text(encoding="utf-8"), name)
        except OSError as error:
            raise RuleError(f"cannot be read: {error.strerror}", file=name) from None
        except UnicodeDecodeError:
            raise RuleError("is not UTF-8 text", file=name) from None

    def error(self, message: str, at: Position | None = None, rule: str = "") -> RuleError:
        return RuleError(message, file=self.file, line=at.start_mark.line + 1 if at else 0, rule=rule)

    def plain(self, at: Position) -> Any:
        """The Python value of a node."""
        try:
            return yaml.constructor.SafeConstructor().construct_document(at)
        except yaml.YAMLError as error:
            raise self.error(f"no plain YAML value: {' '.join(str(error).split())}", at) from None

    def mapping(self, at: Position | None) -> dict[str, Position]:
        """Key to node; a key that stands twice, or is no text, is an error."""
        if not isinstance(at, yaml.MappingNode):
            raise self.error("expected a mapping", at)
        found: dict[str, Position] = {}
        for key, value in at.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.error("expected a plain key", key)
            if key.value in found:
                raise self.error(f"{key.value} stands there twice: remove one", key)
            found[key.value] = value
        return found

    def sequence(self, at: Position | None, what: str) -> list[Position]:
        if not isinstance(at, yaml.SequenceNode):
            raise self.error(f"{what} must be a list", at)
        return list(at.value)

    def text_of(self, at: Position, what: str) -> str:
        if not isinstance(at, yaml.ScalarNode) or not at.value.strip():
            raise self.error(f"{what} must be text", at)
        return str(at.value)

    def comment_above(self, at: Position) -> str:
        """The comment lines that stand directly above a node, joined to one line."""
        found: list[str] = []
        line = at.start_mark.line - 1
        while line >= 0 and self._lines[line].lstrip().startswith("#"):
            found.append(self._lines[line].lstrip().lstrip("#").strip())
            line -= 1
        return " ".join(reversed(found))
