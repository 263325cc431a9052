"""Panels are data: a PromQL expression over canonical ``kv:*`` names and a way to draw its answer.

No textual here: the screen, ``kvtop once`` and the dashboard read the same list. An expression answers one row per
entity (labels ``instance`` and, where an engine has ranks, ``engine``, or a store ``shard``); ``$window`` is filled in
before parsing.
Ratios are merged by numerator and denominator, quantiles by buckets: ``fleet`` says how; sums and maxima need no
expression of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from probes.records import dataclass


class Draw(StrEnum):
    """How a panel is drawn: a filled bar, a line over time, a plain number, or only a table column."""

    BAR = "bar"
    SPARK = "spark"
    NUMBER = "number"
    COLUMN = "column"


class Merge(StrEnum):
    """How a fleet's number comes from its entities' numbers."""

    SUM = "sum"
    MAX = "max"
    TOKENS = "tokens"  # weighted with the pool's token capacity: used tokens over all tokens
    EXPR = "expr"  # the panel's own fleet expression
    NONE = "none"


class Of(StrEnum):
    """Whose number a panel is; only of those is a missing one worth a word."""

    ENGINE = "engine"
    SHARD = "shard"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Panel:
    """One number of the screen.

    ``name`` is its key in a reading: the canonical series' own name, or that name with what was made of it
    (``kv:ttft_seconds:p99``). ``unit`` is the unit of the answer. ``needs`` are the canonical families without which
    there is no answer. ``warn`` and ``bad`` colour a value at or above them; most panels have none, because a
    number without an objective is neither good nor bad. ``every`` is the number of ticks between two questions on a
    live screen, for what changes slowly.
    """

    name: str
    title: str
    short: str
    unit: str
    expr: str
    needs: tuple[str, ...]
    meaning: str
    draw: Draw = Draw.SPARK
    merge: Merge = Merge.SUM
    fleet: str = ""
    warn: float | None = None
    bad: float | None = None
    windowed: bool = False
    every: int = 1
    of: Of = Of.ENGINE

    def at(self, window: str, *, fleet: bool = False) -> str:
        """The expression with ``$window`` filled in (a PromQL duration such as ``1m``)."""
        return (self.fleet if fleet else self.expr).replace("$window", window)


_BY = "by (shard, instance, engine)"


def _gauge(name: str, title: str, short: str, unit: str, meaning: str, **more: object) -> Panel:
    how = "max" if more.get("merge") in (Merge.MAX, Merge.TOKENS) else "sum"
    return Panel(name, title, short, unit, f"{how} {_BY} ({name})", (name,), meaning, **more)  # type: ignore[arg-type]


def _rate(series: str, title: str, short: str, unit: str, meaning: str, **more: object) -> Panel:
    name = series.removesuffix("_total") + ":rate"
    family = series.removesuffix("_sum")
    expr = f"sum {_BY} (rate({series}[$window]))"
    return Panel(name, title, short, unit, expr, (family,), meaning, windowed=True, **more)  # type: ignore[arg-type]


def _quantile(family: str, q: float, title: str, short: str, meaning: str, **more: object) -> Panel:
    def asks(by: str) -> str:
        return f"histogram_quantile({q:g}, sum by ({by}) (rate({family}_bucket[$window])))"

    return Panel(
        f"{family}:p{round(q * 100)}",
        title,
        short,
        "seconds",
        asks("le, shard, instance, engine"),
        (family,),
        meaning,
        merge=Merge.EXPR,
        fleet=asks("le"),
        windowed=True,
        **more,  # type: ignore[arg-type]
    )


def _share(
    name: str, title: str, short: str, hits: str, queries: str, meaning: str, only: str = "", of: Of = Of.ENGINE
) -> Panel:
    """``only`` selects those of ``hits`` that count as such."""

    def asks(by: str) -> str:
        return f"sum{by} (rate({hits}{only}[$window])) / sum{by} (rate({queries}[$window]))"

    return Panel(
        name,
        title,
        short,
        "ratio",
        asks(f" {_BY}"),
        tuple(dict.fromkeys((hits, queries))),
        meaning,
        merge=Merge.EXPR,
        fleet=asks(""),
        windowed=True,
        of=of,
    )


_MEDIAN = {"draw": Draw.NUMBER, "every": 3}

_OF_STORE = {"of": Of.SHARD}

# What a shard of a store tells. A refusal is an answer (the caller computes the KV again), but never a good one.
STORE: tuple[Panel, ...] = (
    _share(
        "kv:lookup_hit_ratio",
        "Blocks found",
        "FOUND",
        "kv:lookup_blocks_total",
        "kv:lookup_blocks_total",
        "Share of the blocks looked up in the store that it had, within the window",
        only='{result="hit"}',
        of=Of.SHARD,
    ),
    _rate("kv:operations_total", "Operations", "OPS", "per_second", "Operations a second, of all kinds", **_OF_STORE),
    _quantile(
        "kv:operation_seconds", 0.99, "Operation p99", "OP99", "One operation, slowest of a hundred", **_OF_STORE
    ),
    _gauge(
        "kv:operations_inflight", "In flight", "INFL", "operations", "Operations without an answer yet", **_OF_STORE
    ),
    _rate(
        "kv:busy_seconds_total",
        "Busy",
        "BUSY",
        "ratio",
        "Share of time in which the shard's one thread worked on operations",
        merge=Merge.MAX,
        warn=0.9,
        **_OF_STORE,
    ),
    _rate("kv:put_refusals_total", "Puts refused", "REFUSED", "per_second", "Puts refused", warn=1e-9, **_OF_STORE),
    _rate("kv:evicted_blocks_total", "Evictions", "EVICTED", "per_second", "Blocks evicted a second", **_OF_STORE),
    Panel(
        "kv:tail_waste_ratio",
        "Tail waste",
        "WASTE",
        "ratio",
        f'sum {_BY} (kv:pool_token_slots{{state="tail_waste"}}) / sum {_BY} (kv:pool_token_slots)',
        ("kv:pool_token_slots",),
        "Share of the published blocks' token slots that are empty behind the last token",
        merge=Merge.EXPR,
        fleet='sum (kv:pool_token_slots{state="tail_waste"}) / sum (kv:pool_token_slots)',
        of=Of.SHARD,
    ),
    _gauge(
        "kv:pool_largest_free_run_blocks",
        "Longest free run",
        "RUN",
        "blocks",
        "Blocks of the longest run of free ones",
        merge=Merge.MAX,
        draw=Draw.NUMBER,
        **_OF_STORE,
    ),
    _gauge("kv:sessions", "Sessions", "SESS", "sessions", "Live sessions, active and idle", **_OF_STORE),
    _quantile(
        "kv:wal_flush_seconds",
        0.99,
        "Log flush p99",
        "FLUSH99",
        "One flush of the log, slowest of a hundred",
        **_OF_STORE,
    ),
    _rate(
        "kv:read_bytes_total",
        "One-sided reads",
        "READ",
        "bytes_per_second",
        "Bytes that clients read without the shard, as they report them",
        **_OF_STORE,
    ),
)

# The thresholds: a pool at its physical end (1.0) preempts or queues; 0.9 leaves the margin in which that begins to
# show. A failed or expired transfer is bad at any rate. All else has no colour of its own.
PANELS: tuple[Panel, ...] = (
    _gauge(
        "kv:pool_usage_ratio",
        "Pool in use",
        "POOL",
        "ratio",
        "Share of the device pool's blocks that live requests reference; cached blocks without a reference are free",
        draw=Draw.BAR,
        merge=Merge.TOKENS,
        warn=0.90,
        bad=0.97,
        of=Of.BOTH,
    ),
    Panel(
        "kv:pool_tokens",
        "Pool capacity",
        "TOKENS",
        "tokens",
        f"max {_BY} (kv:pool_tokens) or max {_BY} (kv:pool_blocks) * max {_BY} (kv:block_tokens)",
        ("kv:pool_blocks",),
        "Token capacity of the device pool; an engine that does not say: its blocks times the tokens of one (of a "
        "store: token slots, for each layer and head group apart)",
        draw=Draw.NUMBER,
        every=10,
        of=Of.BOTH,
    ),
    _gauge("kv:requests_running", "Running", "RUN", "requests", "Requests in the running batch"),
    _gauge("kv:requests_waiting", "Waiting", "WAIT", "requests", "Requests that wait to be scheduled"),
    _rate(
        "kv:preemptions_total",
        "Preemptions",
        "PREEMPT",
        "per_second",
        "Requests preempted for want of blocks and computed again",
        warn=1e-9,
    ),
    _share(
        "kv:prefix_hit_ratio",
        "Prefix hits",
        "HITS",
        "kv:prefix_cache_hits_total",
        "kv:prefix_cache_queries_total",
        "Share of looked-up prompt tokens found in the local prefix cache within the window",
    ),
    _share(
        "kv:external_prefix_hit_ratio",
        "External hits",
        "EXT",
        "kv:external_prefix_cache_hits_total",
        "kv:external_prefix_cache_queries_total",
        "Share of the prompt tokens asked of the KV connector that it had, within the window",
    ),
    _rate("kv:prompt_tokens_total", "Prompt tokens", "IN", "tokens_per_second", "Prompt tokens admitted a second"),
    _rate("kv:generation_tokens_total", "Generated tokens", "OUT", "tokens_per_second", "Tokens generated a second"),
    _quantile("kv:ttft_seconds", 0.5, "TTFT p50", "TTFT50", "Time to first token, median", **_MEDIAN),
    _quantile("kv:ttft_seconds", 0.99, "TTFT p99", "TTFT99", "Time to first token, slowest of a hundred"),
    _quantile(
        "kv:inter_token_seconds", 0.5, "ITL p50", "ITL50", "Time between two tokens of a request, median", **_MEDIAN
    ),
    _quantile("kv:inter_token_seconds", 0.99, "ITL p99", "ITL99", "Time between two tokens, slowest of a hundred"),
    _quantile("kv:queue_seconds", 0.99, "Queue time p99", "QUEUE99", "Time in the waiting phase, slowest of a hundred"),
    _rate(
        "kv:transfer_bytes_sum",
        "KV transfers",
        "XFER",
        "bytes_per_second",
        "KV bytes moved between engines a second",
    ),
    _quantile("kv:transfer_seconds", 0.99, "Transfer p99", "XFER99", "One KV transfer, slowest of a hundred"),
    _rate(
        "kv:transfer_failures_total",
        "Transfer failures",
        "XFAIL",
        "per_second",
        "KV transfers that failed, hand-shakes included",
        bad=1e-9,
    ),
    _rate(
        "kv:transfer_expired_total",
        "Expired leases",
        "EXPIRED",
        "per_second",
        "Requests whose KV lease ended on the producer before it was read",
        bad=1e-9,
    ),
    _rate(
        "kv:offload_load_bytes_total",
        "Offload loads",
        "LOAD",
        "bytes_per_second",
        "Bytes from an offload tier to the device a second",
    ),
    _rate(
        "kv:offload_store_bytes_total",
        "Offload stores",
        "STORE",
        "bytes_per_second",
        "Bytes from the device to an offload tier a second",
    ),
    Panel(
        "kv:restarts",
        "Restarts (15 m)",
        "RST",
        "restarts",
        "sum by (instance) (changes(kv:process_start_time_seconds[15m]))",
        ("kv:process_start_time_seconds",),
        "How often the target's process started anew in the last 15 minutes",
        draw=Draw.COLUMN,
        warn=1.0,
        every=5,
        of=Of.BOTH,
    ),
    *STORE,
)

BY_NAME: Mapping[str, Panel] = {panel.name: panel for panel in PANELS}

CHARTED: tuple[str, ...] = tuple(p.name for p in PANELS if p.draw in (Draw.BAR, Draw.SPARK))


# One cell, one quantile, one bit or one 1 of many says nothing by itself; the states of a pool only beside each other.
_NO_NUMBER = frozenset(
    (
        "kv:block_map",
        "kv:gpu_clock_event_reasons",
        "kv:gpu_clock_violation_seconds_total",
        "kv:gpu_ecc_errors_total",
        "kv:gpu_nvlink_up",
        "kv:gpu_process_memory_bytes",
        "kv:pool_state_blocks",
        "kv:pool_token_slots",
        "kv:pool_free_blocks_by_run",
        "kv:session_idle_seconds",
        "kv:store_info",
        "kv:transport_info",
        "kv:wal_segments",
    )
)


def raw_panels(vocabulary: Mapping[str, Mapping[str, object]]) -> tuple[Panel, ...]:
    """One panel a canonical gauge or counter as it stands, for a reading without a window.

    ``vocabulary`` is ``canonical.yml`` as loaded: name to ``{type, unit, meaning, …}``. A counter's own value says
    little, but one scrape has nothing better, and it is honest.
    """
    found = []
    for name, entry in vocabulary.items():
        kind, unit = str(entry.get("type", "")), str(entry.get("unit", ""))
        if kind not in ("gauge", "counter") or name in BY_NAME or name in _NO_NUMBER:
            continue
        how, by = ("sum" if kind == "counter" else "max"), "shard, instance, engine, gpu, device"
        found.append(
            Panel(
                name,
                name.removeprefix("kv:"),
                name.removeprefix("kv:"),
                unit,
                f"{how} by ({by}) ({name})",
                (name,),
                str(entry.get("meaning", "")),
                draw=Draw.NUMBER,
                merge=Merge.NONE,
            )
        )
    return tuple(found)
