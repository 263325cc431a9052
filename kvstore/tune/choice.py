"""The rule that picks one size of a table, and says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.tune.costs import Costs

KERNEL_PAGE = 16
LARGEST_PAGE = 128
_MOST_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Bound:
    """What a size has to keep: `value` of its costs within `limit`; `basis` says where the limit is from."""

    name: str
    value: Callable[[Costs], float]
    limit: float
    basis: str

    def kept(self, costs: Costs) -> bool:
        return self.value(costs) <= self.limit

    def percent(self, costs: Costs, digits: int) -> str:
        """The value in percent; with more than `digits` behind the point where they would hide that it is broken."""
        text = f"{100 * self.value(costs):.{digits}f}"
        hidden = not self.kept(costs) and float(text) <= 100 * self.limit
        return self.percent(costs, digits + 1) if hidden and digits < _MOST_DIGITS else text


PAGE = Bound(
    "the kernels' page",
    lambda costs: max(KERNEL_PAGE - costs.block_tokens, costs.block_tokens - LARGEST_PAGE),
    0,
    "paged kernels take pages of 16 to 128 tokens (FlashInfer: 16, 32, 64, 128; kvscope::paged_decode: no more than "
    "128): a tensor core's tile has 16 rows",
)
METADATA = Bound("metadata", lambda costs: costs.metadata_share, 0.05, "policy: 5 % of the device's memory")
COPIES = Bound("copies", lambda costs: costs.copy_time, 0.10, "policy: 10 % of the attention time")
RUN_COPIES = Bound("copies", lambda costs: costs.run_copy_time, 0.10, COPIES.basis)
TAIL = Bound("empty slots", lambda costs: costs.tail_waste, 0.04, "Kwon et al., SOSP 2023: PagedAttention's under 4 %")

BLOCKWISE = (PAGE, METADATA, COPIES, TAIL)
"""Every block is a copy: pools whose blocks lie scattered."""

IN_RUNS = (PAGE, METADATA, RUN_COPIES, TAIL)
"""A window is a copy: this store, while its pool has whole runs to give."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`costs` of the recommended size; `broken` are the bounds that it does not keep (none of the sizes keeps all)."""

    costs: Costs
    broken: tuple[Bound, ...]

    @property
    def block_tokens(self) -> int:
        return self.costs.block_tokens


def choose(table: Sequence[Costs], bounds: Sequence[Bound] = BLOCKWISE) -> Choice:
    """The smallest size that keeps all bounds: what grows with the size (empty slots, lost prefixes, rewritten tails)
    is least there. If none does, of the sizes that kernels take the one that goes over the other bounds by the least
    factor in all; a page is never traded for them. Of sizes of which kernels take none, the nearest to a page."""
    for costs in sorted(table, key=lambda each: each.block_tokens):
        if all(bound.kept(costs) for bound in bounds):
            return Choice(costs, ())
    pages = [costs for costs in table if PAGE.kept(costs)] or [min(table, key=_off_page)]
    soft = [bound for bound in bounds if bound is not PAGE]
    nearest = min(pages, key=lambda costs: sum(_excess(bound, costs) for bound in soft))
    return Choice(nearest, tuple(bound for bound in bounds if not bound.kept(nearest)))


def _off_page(costs: Costs) -> float:
    """By which factor a size is smaller or larger than a page."""
    return max(KERNEL_PAGE / costs.block_tokens, costs.block_tokens / LARGEST_PAGE)


def _excess(bound: Bound, costs: Costs) -> float:
    """By which factor a bound is broken, less one."""
    return max(0.0, bound.value(costs) / bound.limit - 1)


def reason(table: Sequence[Costs]) -> str:
    """One sentence on the choice among scattered blocks, and what it would be in runs."""
    chosen = choose(table)
    costs = chosen.costs
    smaller = [each for each in table if each.block_tokens < costs.block_tokens]
    if chosen.broken:
        text = f"{costs.block_tokens}: {_least_bad(table, chosen)}"
    elif not smaller:
        text = f"{costs.block_tokens}: the smallest of these sizes, and it keeps all bounds"
    else:
        last = max(smaller, key=lambda each: each.block_tokens)
        over = " and ".join(_said(bound, last) for bound in BLOCKWISE if not bound.kept(last))
        text = (
            f"{costs.block_tokens}: the smallest block that keeps all bounds (at {last.block_tokens} {over}); larger "
            "ones only add empty slots, lost prefixes and rewritten tails"
        )
    in_runs = choose(table, IN_RUNS)
    if in_runs.block_tokens != costs.block_tokens and not in_runs.broken:
        text += f"; where a window stays one run, {in_runs.block_tokens} will do"
    return text + "."


def _least_bad(table: Sequence[Costs], chosen: Choice) -> str:
    """Why a size was chosen that breaks bounds, and which."""
    soft = [bound for bound in chosen.broken if bound is not PAGE]
    over = " and ".join([f"{_said(bound, chosen.costs)} (bound: {bound.limit:.0%})" for bound in soft])
    if PAGE in chosen.broken:
        text = (
            f"the nearest of these sizes, and kernels take none of them: a page has {KERNEL_PAGE} to {LARGEST_PAGE} "
            "tokens"
        )
        return f"{text}; {over}" if over else text
    others = any(not PAGE.kept(costs) for costs in table)
    sizes = f"no size from {KERNEL_PAGE} to {LARGEST_PAGE}" if others else "no size"
    return f"{sizes} keeps all bounds, and this is the nearest: {over}"


def _said(bound: Bound, costs: Costs) -> str:
    if bound is PAGE:
        return f"a page has {KERNEL_PAGE} tokens"
    if bound in (COPIES, RUN_COPIES):
        return f"copies would take {bound.percent(costs, 1)}% of the attention time"
    return f"{bound.name} would be {bound.percent(costs, 1)}%"
