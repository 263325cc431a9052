"""`kvstore bench step`: what a decode step costs as the sequence grows, by where the KV of the earlier tokens is.

A random Llama computes the same token in four ways. *recompute*: no cache, every step computes the whole sequence.
*concatenate*: a cache that grows by concatenation (transformers' `DynamicCache`). *paged, gathered*: blocks scattered
in a pool, copied together for each step. *paged, kernel*: attention that reads the blocks where they are
(`kvscope::paged_decode`), on a GPU. All must give the same logits. Copied bytes are KV of earlier tokens that a step
writes somewhere else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvstore.bench import machine
from kvstore.errors import BadRequest

if TYPE_CHECKING:
    import torch

    from kvstore.bench.steps.arms import Measured, Plan, Point

LONGEST = 1 << 17


def run(argv: Sequence[str]) -> int:
    """Exit code 0; 2 without torch, without the device, for usage, or when two ways disagree."""
    given = _parser().parse_args(argv)
    lengths = _lengths(given.start, given.to)
    for name in ("rounds", "batch", "block_tokens", "threads"):
        if not 1 <= getattr(given, name) <= 4096:
            raise BadRequest(f"--{name.replace('_', '-')} {getattr(given, name)}: 1 … 4096 can be")
    try:
        import torch
    except ModuleNotFoundError:
        raise BadRequest(
            "torch is not installed: pip install '.[transformers]' (or [cuda]) in kvscope's checkout"
        ) from None
    from kvstore.bench.steps.arms import Plan, measure

    torch.set_num_threads(given.threads)
    facts = machine.facts() | {"torch": torch.__version__, "device": "", "threads": given.threads}
    device = _device(given.device)
    facts["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    found = {}
    for size in ("tiny", "small") if given.model == "both" else (given.model,):
        plan = Plan(size, lengths, given.rounds, given.batch, given.block_tokens, given.dtype, device)
        found[size] = (plan, measure(plan))
    if given.json:
        print(json.dumps({"machine": facts, "models": {size: as_json(*each) for size, each in found.items()}}))
        return 0
    print(f"{machine.line(facts)}, torch {facts['torch']}; on {facts['device']}, {given.threads} thread(s)")
    for size, each in found.items():
        print("\n".join(["", *as_text(size, *each)]))
    return 0


def _lengths(first: int, last: int) -> list[int]:
    """`first`, doubled, … and `last`; at least three, or no growth can be told."""
    if first < 2 or not 4 * first <= last <= LONGEST:
        raise BadRequest(f"--from {first} --to {last}: at least 2, four times as far at least, and at most {LONGEST}")
    lengths = []
    while first < last:
        lengths.append(first)
        first *= 2
    return [*lengths, last]


def _device(name: str | None) -> torch.device:
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise BadRequest(f"--device {name!r}: cpu, cuda or cuda:N can be")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadRequest(f"--device {name!r}: torch sees {torch.cuda.device_count()} CUDA devices here")
    return device


def as_json(plan: Plan, found: Measured) -> dict[str, Any]:
    """Medians in seconds, bytes, and the fit of each arm."""
    arms: dict[str, Any] = {}
    for arm, points in found.points.items():
        grown = _growth(points)
        arms[arm] = {
            "growth": grown.kind,
            "fixed_s": grown.fixed,
            "per_token_s": grown.per_token,
            "per_pair_s": grown.per_pair,
            "steps": [
                {"tokens": length, "median_s": point.median, "copied_bytes": point.copied, "timed": len(point.seconds)}
                for length, point in points.items()
            ],
            "difference": max(point.difference for point in points.values()),
        }
    arms |= {arm: {"skipped": why} for arm, why in found.skipped.items()}
    return {
        "parameters": found.parameters,
        "kv_bytes_per_token": found.token_bytes,
        "concatenated_by": found.concatenated_by,
        "dtype": plan.dtype,
        "batch": plan.batch,
        "block_tokens": plan.block_tokens,
        "rounds": plan.rounds,
        "arms": arms,
    }


def as_text(size: str, plan: Plan, found: Measured) -> list[str]:
    """Two tables: milliseconds a step, and MiB copied by it."""
    worst = max(point.difference for points in found.points.values() for point in points.values())
    lines = [
        f"{size}: {found.parameters / 1e6:.1f} M parameters, {plan.dtype}, {found.token_bytes / 1024:g} KiB of KV a "
        f"token, batch {plan.batch}, blocks of {plan.block_tokens} tokens; medians of {plan.rounds} rounds and more",
        f"concatenated by {found.concatenated_by}; logits of all ways differ by {worst:.0e} of the largest at most",
        "",
        _row("a step, ms", [f"{length}" for length in plan.lengths])
        + "   growth (fixed, linear, quadratic part at the end)",
    ]
    for arm, points in found.points.items():
        grown = _growth(points)
        shares = ", ".join(f"{share:.0%}" for share in grown.shares)
        lines.append(
            _row(arm, [_short(point.median * 1e3) for point in points.values()]) + f"   {grown.kind} ({shares})"
        )
    lines += [f"{arm:<18}skipped: {why}" for arm, why in found.skipped.items()]
    lines += ["", _row("copied, MiB", [f"{length}" for length in plan.lengths])]
    for arm, points in found.points.items():
        lines.append(_row(arm, [_short(point.copied / 2**20) for point in points.values()]))
    return lines


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<18}" + "".join(f"{cell:>9}" for cell in cells)


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _growth(points: dict[int, Point]) -> Any:
    from kvstore.bench.steps.growth import growth

    return growth(list(points), [point.median for point in points.values()])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "kvstore bench step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["tiny", "small", "both"], default="both", help="how large (default: both)")
    parser.add_argument(
        "--from", dest="start", type=int, default=64, metavar="TOKENS", help="the shortest (%(default)s)"
    )
    parser.add_argument("--to", type=int, default=4096, metavar="TOKENS", help="the longest (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each way (%(default)s)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences of a step (%(default)s)")
    parser.add_argument("--block-tokens", type=int, default=16, metavar="N", help="of a paged cache (%(default)s)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="torch's, on a CPU (%(default)s)")
    parser.add_argument("--json", action="store_true")
    return parser
