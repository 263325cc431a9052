"""Which functions and aggregations the engine knows, and what they answer with."""

from __future__ import annotations

OVER_RANGE = frozenset(
    {
        "rate",
        "increase",
        "delta",
        "irate",
        "idelta",
        "changes",
        "resets",
        "deriv",
        "predict_linear",
        "avg_over_time",
        "min_over_time",
        "max_over_time",
        "sum_over_time",
        "count_over_time",
        "last_over_time",
        "stddev_over_time",
        "stdvar_over_time",
        "quantile_over_time",
        "present_over_time",
        "absent_over_time",
        "mad_over_time",
    }
)
"""Functions of a range vector."""

KEEP_NAME = frozenset({"last_over_time"})
"""Functions of a range vector that keep the metric name."""

PER_SAMPLE = frozenset(
    {
        "abs",
        "ceil",
        "floor",
        "exp",
        "ln",
        "log2",
        "log10",
        "sqrt",
        "sgn",
        "round",
        "clamp",
        "clamp_min",
        "clamp_max",
    }
)
OTHER = frozenset(
    {
        "absent",
        "histogram_quantile",
        "label_join",
        "label_replace",
        "scalar",
        "sort",
        "sort_desc",
        "time",
        "timestamp",
        "vector",
    }
)

FUNCTIONS = OVER_RANGE | PER_SAMPLE | OTHER

AGGREGATES = frozenset(
    {
        "sum",
        "avg",
        "min",
        "max",
        "count",
        "group",
        "stddev",
        "stdvar",
        "quantile",
        "topk",
        "bottomk",
        "count_values",
    }
)
ALL_AGGREGATES = AGGREGATES | {"limitk", "limit_ratio"}
"""Those of PromQL, done here or not."""


def unsupported(kind: str, name: str) -> str:
    """The message for something valid in PromQL that this engine does not do."""
    return f"{kind} {name!r} is not supported"
