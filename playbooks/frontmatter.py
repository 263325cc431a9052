"""Markdown with YAML front matter, in which every key knows its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it: ten times as fast


class FrontMatterError(ValueError):
    """A playbook that cannot be used: which file, which line, what was wrong and what to do."""

    def __init__(self, path: str, line: int, message: str) -> None:
        self.path, self.line, self.message = path, line, message
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")


@dataclass(frozen=True)
class Document:
    """``front`` is the parsed front matter, ``body`` the Markdown after it, ``lines`` the line of each key path."""

    path: str
    front: Mapping[str, Any]
    body: str
    lines: Mapping[tuple[str | int, ...], int]

    def line(self, *path: str | int) -> int:
        """Line of the deepest known part of a key path (1-based)."""
        for size in range(len(path), 0, -1):
            if path[:size] in self.lines:
                return self.lines[path[:size]]
        return 1


def read_document(path: str, text: str) -> Document:
    """Split and parse. Raises FrontMatterError for a missing, unclosed or broken front matter."""
    rows = text.split("\n")
    if not rows or rows[0].strip() != "---":
        raise FrontMatterError(path, 1, "no front matter; begin the file with a line '---'")
    end = next((i for i, row in enumerate(rows[1:], 1) if row.strip() == "---"), None)
    if end is None:
        raise FrontMatterError(path, 1, "the front matter is not closed; end it with a line '---'")
    source = "\n".join(rows[1:end])
    try:
        node = yaml.compose(source, Loader=LOADER)
        front = None if node is None else yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark
        line = mark.line + 2 if mark is not None else 1
        raise FrontMatterError(path, line, f"broken YAML: {broken.problem or broken}; mend it") from None
    if not isinstance(front, dict):
        raise FrontMatterError(path, 2, "the front matter is no mapping; write 'key: value' lines")
    lines: dict[tuple[str | int, ...], int] = {}
    _collect(node, (), lines)
    return Document(path, front, "\n".join(rows[end + 1 :]).strip() + "\n", lines)


def _collect(node: Any, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            lines[below] = key.start_mark.line + 2
            _collect(value, below, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            below = (*path, index)
            lines[below] = value.start_mark.line + 2
            _collect(value, below, lines)
