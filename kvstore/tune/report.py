"""A tuning as text, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvstore.printable import printable
from kvstore.tune.choice import BLOCKWISE, COPIES, IN_RUNS, METADATA, TAIL, Bound, choose, reason
from kvstore.tune.costs import Assumptions, Costs
from kvstore.tune.lengths import Lengths
from kvstore.tune.setting import Setting

SCHEMA = "kvscope.tune/1"


@dataclass(frozen=True, slots=True)
class Column:
    """`heading` and `unit` of a column, how a size's figure reads, and the bound that marks it."""

    heading: str
    unit: str
    text: Callable[[Costs], str]
    bound: Bound | None = None


COLUMNS = (
    Column("block", "tokens", lambda costs: f"{costs.block_tokens}"),
    Column("block", "KiB", lambda costs: f"{costs.block_bytes / 1024:g}"),
    Column("pool", "blocks", lambda costs: f"{costs.blocks}"),
    Column("at once", "requests", lambda costs: f"{costs.requests}"),
    Column("table", "MiB", lambda costs: f"{costs.table_bytes / 2**20:.2f}"),
    Column("metadata", "% memory", lambda costs: _percent(costs.metadata_share), METADATA),
    Column("empty", "% slots", lambda costs: _percent(costs.tail_waste), TAIL),
    Column("lost", "% prefix", lambda costs: "–" if costs.prefix_loss is None else _percent(costs.prefix_loss)),
    Column("copies", "a window", lambda costs: f"{costs.window_copies}"),
    Column("paging", "% time", lambda costs: _percent(costs.paging_time)),
    Column("tails", "% time", lambda costs: _percent(costs.tail_time)),
    Column("copying", "% time", lambda costs: _percent(costs.copy_time), COPIES),
    Column("in runs", "% time", lambda costs: _percent(costs.run_copy_time)),
)


def _percent(share: float) -> str:
    """Two digits that say something, as `0.042`, `0.42`, `4.2` and `42`."""
    value = 100 * share
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def head(setting: Setting, lengths: Lengths, given: Assumptions) -> list[str]:
    """What was tuned for: card, model, lengths, room, assumptions."""
    card, model = setting.card, setting.model
    ranks = "1 rank" if setting.ranks == 1 else f"{setting.ranks} ranks (tensor parallel)"
    lines = [
        f"GPU     {card.name}: {card.memory_bytes / 1e9:g} GB at {card.bytes_per_s / 1e9:g} GB/s, "
        f"{ranks}; {printable(card.source)}",
        f"model   {model.name}, KV in {setting.dtype}: {model.layers} layers, {setting.heads} KV heads of "
        f"{model.head_dim} a rank, {setting.token_bytes / 1024:g} KiB a token; {model.source}",
        f"pool    {setting.pool_bytes / 1e9:.1f} GB a rank: {setting.used_share:g} of the memory, less "
        f"{setting.weight_bytes / setting.ranks / 1e9:.1f} GB of weights",
        f"lengths {printable(lengths.name)}: {len(lengths.prompts)} requests, prompts of "
        f"{lengths.prompts.mean():.0f} tokens (longest {lengths.prompts.max()}), outputs of "
        f"{lengths.outputs.mean():.0f}",
    ]
    if lengths.shared is not None:
        share = lengths.shared.tokens / float(lengths.prompts.sum())
        lines[-1] += f"; {share:.0%} of the prompts' tokens were there before"
    moved = {
        "prefix": "shared prefixes are copied in",
        "prompt": "whole prompts are copied in",
        "nothing": "nothing is copied in",
    }[given.moved]
    lines.append(f"assumed {moved}, {given.copy_s * 1e6:g} µs a copy; {given.allocate_s * 1e6:g} µs an allocation")
    return lines


def rows(table: Sequence[Costs]) -> list[list[str]]:
    """Cells of the table: two rows of headings, then one a size. A figure over its bound has a `!`."""
    cells = [[column.heading for column in COLUMNS], [column.unit for column in COLUMNS]]
    for costs in table:
        cells.append([_cell(column, costs) for column in COLUMNS])
    return cells


def _cell(column: Column, costs: Costs) -> str:
    text, bound = column.text(costs), column.bound
    if bound is None or bound.kept(costs):
        return text
    return bound.percent(costs, len(text.partition(".")[2])) + "!"


def as_text(setting: Setting, lengths: Lengths, given: Assumptions, table: Sequence[Costs]) -> str:
    """For a terminal."""
    cells = rows(table)
    widths = [max(len(row[place]) for row in cells) for place in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([*head(setting, lengths, given), "", *lines, "", f"take {reason(table)}"])


def as_markdown(table: Sequence[Costs]) -> str:
    """The table alone, the chosen size in bold."""
    chosen = choose(table).block_tokens
    first, second, *rest = rows(table)
    headings = [f"{heading}, {unit}" for heading, unit in zip(first, second, strict=True)]
    lines = ["| " + " | ".join(headings) + " |", "|" + "---:|" * len(headings)]
    for costs, row in zip(table, rest, strict=True):
        bold = [
            f"**{cell}**" if costs.block_tokens == chosen and place == 0 else cell for place, cell in enumerate(row)
        ]
        lines.append("| " + " | ".join(bold) + " |")
    return "\n".join(lines)


def as_json(setting: Setting, lengths: Lengths, given: Assumptions, table: Sequence[Costs]) -> dict[str, Any]:
    """Everything, in bytes, seconds and shares."""
    chosen, in_runs = choose(table), choose(table, IN_RUNS)
    return {
        "schema": SCHEMA,
        "recommended": chosen.block_tokens,
        "recommended_in_runs": in_runs.block_tokens,
        "keeps_all_bounds": not chosen.broken,
        "broken": [bound.name for bound in chosen.broken],
        "reason": reason(table),
        "gpu": asdict(setting.card),
        "model": asdict(setting.model),
        "dtype": setting.dtype,
        "tensor_parallel": setting.ranks,
        "kv_token_bytes": setting.token_bytes,
        "pool_bytes": setting.pool_bytes,
        "lengths": {
            "name": lengths.name,
            "requests": len(lengths.prompts),
            "prompt_tokens_mean": float(lengths.prompts.mean()),
            "output_tokens_mean": float(lengths.outputs.mean()),
            "shared_tokens": None if lengths.shared is None else lengths.shared.tokens,
        },
        "assumptions": asdict(given),
        "bounds": [{"name": bound.name, "limit": bound.limit, "basis": bound.basis} for bound in BLOCKWISE],
        "sizes": [
            asdict(costs) | {"copy_time": costs.copy_time, "run_copy_time": costs.run_copy_time} for costs in table
        ],
    }
