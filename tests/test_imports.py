"""The rooms import one way, and nothing heavy is loaded where it is not needed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("kvstore", "probes", "exporters", "playbooks", "tui")
# room → the rooms that it may import (docs/architecture.md)
ALLOWED = {
    "probes": {"probes"},
    "playbooks": {"playbooks", "probes"},
    "exporters": {"exporters", "playbooks", "probes"},
    "tui": {"tui", "playbooks", "exporters", "probes"},
    "kvstore": {"kvstore"},  # and probes.instrument
}
HEAVY = {"torch", "nixl", "nixl_cu12", "nixl_cu13", "grpc", "transformers", "lmcache", "triton", "pynvml"}
# What is nothing without a heavy package; nobody else may load it before it is used.
GATED = (
    "kvstore.integrations",
    "kvstore.calls.rpc",
    "kvstore.bench.turns",
    "kvstore.transport.device.gather_kernel",
    "kvstore.bench.steps",
    "kvstore.kernels",
    "kvstore.device",
    "playbooks.lab.live.decode",
)


def modules(room: str) -> Iterator[Path]:
    yield from sorted((ROOT / room).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every absolute module name that a tree imports, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run at import: function bodies and ``if TYPE_CHECKING`` are left out."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def breaches(room: str, tree: ast.AST) -> list[str]:
    found = []
    for name, line in imported(tree):
        other = name.split(".")[0]
        if other not in ROOMS or other in ALLOWED[room]:
            continue
        if room == "kvstore" and (name == "probes.instrument" or name.startswith("probes.instrument.")):
            continue
        if room == "playbooks" and other == "kvstore":  # the lab may drive the store; the caller checks where
            continue
        found.append(f"line {line}: {name}")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_one_way(room: str) -> None:
    wrong = {}
    for path in modules(room):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lab = path.is_relative_to(ROOT / "playbooks" / "lab")
        found = breaches(room, tree)
        if room == "playbooks" and not lab:
            found += [f"line {n}: {name}" for name, n in imported(tree) if name.split(".")[0] == "kvstore"]
        if found:
            wrong[str(path.relative_to(ROOT))] = found
    assert not wrong


def test_a_breach_is_seen() -> None:
    assert breaches("probes", ast.parse("def f():\n    from playbooks import engine\n"))
    assert breaches("kvstore", ast.parse("import probes.series"))
    assert not breaches("kvstore", ast.parse("from probes.instrument import span"))


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_loads_anything_heavy_at_import(room: str) -> None:
    wrong = []
    for path in modules(room):
        own = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if gated(own):
            continue
        for node in top_level(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                wrong += [
                    f"{own}:{n} {name}" for name, n in imported(node) if name.split(".")[0] in HEAVY or gated(name)
                ]
    assert not wrong


def gated(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in GATED)


PAGE = """\
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} %s %d
# EOF
"""

# Runs a command in-process and tells which of the named packages it loaded.
SPY = """
import sys
from tui.cli import main
code = main(sys.argv[1:])
heavy = {"textual", "rich", "torch", "jsonschema", "prometheus_client"}
print(code, *sorted(heavy & {m.split(".")[0] for m in sys.modules}), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["once", "{file}"],
        ["once", "{file}", "--json"],
        ["query", "kv:pool_usage_ratio", "{file}"],
        ["diagnose", "{file}", "--json"],
        ["rules"],
        ["playbook", "list"],
        ["help"],
    ],
    ids=" ".join,
)
def test_headless_commands_load_no_screen(words: list[str], tmp_path: Path) -> None:
    recording = tmp_path / "r.om"
    page = PAGE.removesuffix("# EOF\n").splitlines()
    lines = [page[0], *(page[1] % (0.5 + k / 1000, 1_700_000_000 + k) for k in range(0, 120, 5)), "# EOF", ""]
    recording.write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", SPY, *(word.format(file=recording) for word in words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stderr.strip().splitlines()[-1].split()
    assert last[0] in ("0", "1", "3"), done.stderr
    assert last[1:] == [], f"loaded without need: {last[1:]}"
