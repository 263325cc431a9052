"""`kvstore tune`: the table of block sizes, and the one to take."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvstore.errors import BadRequest
from kvstore.printable import printable
from kvstore.replay.trace import WINDOW_TOKENS, TraceError, excerpt, read_trace
from kvstore.tune.cards import CARDS, LEAST_GB, MOST_GB, Card, card_of
from kvstore.tune.costs import ALLOCATE_S, COPY_S, Assumptions, costs
from kvstore.tune.lengths import Lengths, of_distribution, of_trace
from kvstore.tune.models import MODELS, Model, model_of
from kvstore.tune.report import as_json, as_markdown, as_text
from kvstore.tune.setting import USED_SHARE, Setting, setting_of

SIZES = "8,16,32,64,128"
OUTPUTS = "340,0.5"

_EPILOG = f"""\
The rule: of the sizes that the kernels take (16 to 128 tokens), the smallest whose metadata (headers, block table,
bitmap) stays under 5 % of the memory, whose copying stays under 10 % of the attention time, and whose empty slots stay
under 4 %. A figure over its bound is marked with an exclamation mark.

  copying   what is copied into the pool, block by block, and what appends rewrite of their tails; in runs: a window of
            512 tokens is one copy a layer
  paging    calls of the allocator, and the block table that the steps read; attention time: the bytes of KV that all
            decode steps read, at the memory's peak
  lost      tokens of shared prefixes behind the last whole block
  empty     slots behind the last token, over the life of the requests

GPUs: {", ".join(CARDS)}
models: {", ".join(MODELS)}
"""


def run(argv: Sequence[str]) -> int:
    """Exit code 0; 2 for what cannot be tuned for, in one line."""
    given = _parser().parse_args(argv)
    if given.json and given.markdown:
        raise BadRequest("--json or --markdown, not both")
    try:
        lengths = _lengths(given)
    except TraceError as error:
        print(f"kvstore tune: {printable(str(error))}", file=sys.stderr)
        return 2
    if not lengths.attended:
        raise BadRequest(
            f"{lengths.name}: no request says more than one token: there is no decode step to compare with"
        )
    setting = _setting(given)
    moved = given.moved or ("prompt" if lengths.shared is None else "prefix")
    if moved == "prefix" and lengths.shared is None:
        raise BadRequest(
            "--moved prefix: a distribution of lengths says nothing of prefixes; take a trace, or 'prompt'"
        )
    assumed = Assumptions(
        moved,
        _number("--copy-us", given.copy_us, least=0) * 1e-6,
        _number("--allocate-us", given.allocate_us, least=0) * 1e-6,
    )
    table = [costs(setting, lengths, size, assumed) for size in _sizes(given.sizes)]
    if given.json:
        print(json.dumps(as_json(setting, lengths, assumed, table)))
    elif given.markdown:
        print(as_markdown(table))
    else:
        print(as_text(setting, lengths, assumed, table))
    return 0


def _lengths(given: argparse.Namespace) -> Lengths:
    if given.lengths is None:
        if given.outputs is not None:
            raise BadRequest("--outputs goes with --lengths: a trace has its own")
        path = given.trace or excerpt()
        return of_trace(path.name, read_trace(path))
    if given.trace is not None:
        raise BadRequest("a trace or --lengths, not both")
    return of_distribution(_shape("--lengths", given.lengths), _shape("--outputs", given.outputs or OUTPUTS))


def _shape(option: str, text: str) -> tuple[float, float]:
    """`MEAN,SIGMA` in tokens and of the logarithm."""
    mean, comma, sigma = text.partition(",")
    try:
        shape = float(mean), float(sigma)
    except ValueError:
        shape = (-1.0, -1.0)
    if not comma or not 1 <= shape[0] <= 1e7 or not 0 <= shape[1] <= 4:
        raise BadRequest(f"{option} {text!r}: MEAN,SIGMA is expected, as 2000,1.2 (1 … 1e7 tokens; sigma 0 … 4)")
    return shape


def _setting(given: argparse.Namespace) -> Setting:
    weights = None if given.weights is None else _number("--weights", given.weights, least=0) * 1e9
    return setting_of(
        _card(given),
        _model(given),
        dtype=given.dtype,
        ranks=given.tensor_parallel if given.tensor_parallel is None else _count("--tensor-parallel", given),
        weight_bytes=weights,
        used_share=_number("--used", given.used, least=0.01, most=1),
    )


def _card(given: argparse.Namespace) -> Card:
    """The card of --gpu, in which --measured and --memory replace single figures; or one of these two alone."""
    if given.gpu is None:
        if given.measured is None or given.memory is None:
            raise BadRequest(f"--gpu NAME is missing ({', '.join(CARDS)}); or say --measured GB_PER_S and --memory GB")
        card = Card("this GPU", 0.0, 0.0, "as told")
    else:
        card = card_of(given.gpu)
    if given.memory is not None:
        memory = _number("--memory", given.memory, least=LEAST_GB, most=MOST_GB)
        card = replace(card, memory_bytes=memory * 1e9)
    if given.measured is not None:
        rate = _number("--measured", given.measured, least=LEAST_GB, most=MOST_GB)
        card = replace(card, bytes_per_s=rate * 1e9, source="as measured")
    return card


def _model(given: argparse.Namespace) -> Model:
    """The model of --model, in which --layers, --kv-heads and --head-dim replace single figures; or these alone."""
    shape = {name: getattr(given, name) for name in ("layers", "kv_heads", "head_dim")}
    told = {name: _count(f"--{name.replace('_', '-')}", given) for name, value in shape.items() if value is not None}
    if given.model is not None:
        model = model_of(given.model)
        if not told:
            return model
        merged = {name: told.get(name, getattr(model, name)) for name in shape}
        return Model(model.name, **merged, parameters=model.parameters, source="changed by hand")
    missing = [f"--{name.replace('_', '-')}" for name in shape if name not in told]
    if missing or given.weights is None:
        lacks = ", ".join([*missing, *(["--weights"] if given.weights is None else [])])
        raise BadRequest(f"--model NAME is missing ({', '.join(MODELS)}); or, instead of a name, {lacks}")
    return Model("this model", **told, parameters=0, source="as told")


def _count(option: str, given: argparse.Namespace) -> int:
    value: int = getattr(given, option.removeprefix("--").replace("-", "_"))
    if not 1 <= value <= 4096:
        raise BadRequest(f"{option} {value}: 1 … 4096 can be")
    return value


def _number(option: str, value: float, *, least: float, most: float = 1e7) -> float:
    if not (math.isfinite(value) and least <= value <= most):
        raise BadRequest(f"{option} {value:g}: {least:g} … {most:g} can be")
    return value


def _sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(word) for word in text.split(",")})
    except ValueError:
        sizes = [0]
    for size in sizes:
        if size < 1 or WINDOW_TOKENS % size:
            raise BadRequest(
                f"--sizes {text!r}: numbers of tokens are expected that divide a window of {WINDOW_TOKENS}"
            )
    return sizes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "kvstore tune",
        description="Choose a block size for a GPU, a model's KV and the lengths of its requests.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    gpu = parser.add_argument_group("GPU")
    gpu.add_argument("--gpu", metavar="NAME|FILE", help="a card of the table below, or JSON that describes one")
    gpu.add_argument("--measured", type=float, metavar="GB_PER_S", help="the memory's rate, where it was measured")
    gpu.add_argument(
        "--memory", type=float, metavar="GB", help="of one card (powers of ten), where the driver says more"
    )
    gpu.add_argument(
        "--used", type=float, default=USED_SHARE, metavar="SHARE", help="of it, for weights and KV (%(default)s)"
    )
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="NAME", help="of the table below; the options here change single figures")
    model.add_argument("--layers", type=int, metavar="N")
    model.add_argument("--kv-heads", type=int, metavar="N", help="of the whole model")
    model.add_argument("--head-dim", type=int, metavar="N")
    model.add_argument("--dtype", default="bfloat16", help="of the KV: bfloat16, float16, float8_e4m3 … (%(default)s)")
    model.add_argument(
        "--weights", type=float, metavar="GB", help="of the whole model (default: two bytes a parameter)"
    )
    model.add_argument(
        "--tensor-parallel",
        type=int,
        metavar="N",
        help="ranks (default: as few as leave a quarter of the memory to KV)",
    )
    length = parser.add_argument_group("lengths")
    length.add_argument(
        "trace",
        nargs="?",
        type=Path,
        metavar="TRACE",
        help="in Mooncake's format (default: an excerpt of 600 requests)",
    )
    length.add_argument(
        "--lengths", metavar="MEAN,SIGMA", help="of prompts instead: log-normal, sigma of the logarithm"
    )
    length.add_argument("--outputs", metavar="MEAN,SIGMA", help=f"of outputs, beside --lengths (default: {OUTPUTS})")
    how = parser.add_argument_group("assumptions")
    how.add_argument(
        "--moved",
        choices=("prefix", "prompt", "nothing"),
        help="what is copied into the pool (default: prefixes that a trace shares; of --lengths the prompts)",
    )
    how.add_argument("--copy-us", type=float, default=COPY_S * 1e6, metavar="N", help="cost of a copy (%(default)g)")
    how.add_argument(
        "--allocate-us", type=float, default=ALLOCATE_S * 1e6, metavar="N", help="and of an allocation (%(default)g)"
    )
    how.add_argument("--sizes", default=SIZES, metavar="N,…", help="block sizes in tokens (default: %(default)s)")
    parser.add_argument("--markdown", action="store_true", help="the table alone")
    parser.add_argument("--json", action="store_true")
    return parser
