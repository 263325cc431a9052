"""What one forward pass was given: checked against what the cache was opened for, before anything is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kvstore.errors import BadRequest

CACHE_NAMES = ("cache", "past_key_values")
"""The argument's name since transformers 5.22 and before."""

_KNOWN = (*CACHE_NAMES, "input_ids", "attention_mask", "position_ids", "cache_position", "labels", "logits_to_keep")


def cache_name(forward: Callable[..., Any]) -> str:
    """What this model calls the argument that takes a cache."""
    return next((name for name in CACHE_NAMES if name in inspect.signature(forward).parameters), CACHE_NAMES[-1])


def named(forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, all by name."""
    return {**dict(zip(inspect.signature(forward).parameters, args, strict=False)), **kwargs}


def require_ids(input_ids: torch.Tensor) -> None:
    """Raises `BadRequest` for what is not `[batch, tokens]`, one of each at least."""
    if input_ids.ndim != 2 or not input_ids.numel():
        raise BadRequest(f"input_ids must be [batch, tokens], not {list(input_ids.shape)}")


def pads_of(attention_mask: torch.Tensor | None, shape: tuple[int, int]) -> list[int]:
    """Columns of padding at the left of each row, which has a token at least. Raises `BadRequest` for another mask."""
    found = padding(attention_mask, shape)
    if max(found) == shape[1]:
        raise BadRequest(f"row {found.index(shape[1])} of the batch is nothing but padding")
    return found


def padding(attention_mask: torch.Tensor | None, shape: tuple[int, int]) -> list[int]:
    """As `pads_of`; a row may be nothing but padding, as in the first parts of a prompt that is computed in parts."""
    if attention_mask is None:
        return [0] * shape[0]
    if attention_mask.ndim != 2 or tuple(attention_mask.shape) != shape:
        raise BadRequest(
            f"an attention mask [batch, tokens] = {list(shape)} is needed, not {list(attention_mask.shape)}"
        )
    real = attention_mask.bool()
    pads = (real.cumsum(-1) == 0).sum(-1)
    if not bool((real.sum(-1) + pads == shape[1]).all()):
        raise BadRequest("padding is supported at the left only: the attention mask has zeros behind a one")
    found: list[int] = pads.tolist()
    return found


class StepChecks:
    """Checks of every forward pass: the rows, the ids, the padding, the positions."""

    def __init__(self, input_ids: torch.Tensor, pads: Sequence[int]) -> None:
        self.ids = input_ids
        self.pads = list(pads)

    def require(self, given: Mapping[str, Any], past: int) -> torch.Tensor:
        """The ids `[batch, new]` that this call computes behind `past` columns. Raises `BadRequest`."""
        for name, value in given.items():
            if isinstance(value, torch.Tensor) and name not in _KNOWN:
                raise BadRequest(f"{name!r} is not supported: the store knows blocks by their tokens alone")
        ids = given.get("input_ids")
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
            raise BadRequest("input_ids [batch, tokens] are needed: the store knows blocks by their tokens")
        if len(ids) != len(self.pads):
            raise BadRequest(
                f"{len(ids)} rows for a cache that was opened for {len(self.pads)} (beam search and several sequences "
                "a prompt are not supported: a row is one session's history)"
            )
        new = ids.shape[1]
        self._require_same_ids(ids, past)
        mask = given.get("attention_mask")
        if mask is not None or any(self.pads):
            if not isinstance(mask, torch.Tensor):
                raise BadRequest("a padded batch needs its attention mask")
            if past and mask.shape == ids.shape:
                raise BadRequest(
                    f"{new} ids whose mask leaves out the {past} columns that the cache holds: only the ids behind "
                    "them are to be computed, with the mask of all (generate does so unless it is told use_cache=False)"
                )
            if padding(mask, (len(self.pads), past + new)) != [min(pad, past + new) for pad in self.pads]:
                raise BadRequest("the attention mask's padding is not the one that the cache was opened with")
        self._require_positions(given.get("position_ids"), past, new)
        return ids

    def _require_same_ids(self, ids: torch.Tensor, past: int) -> None:
        opened = self.ids[:, past : past + ids.shape[1]]
        for row, pad in enumerate(self.pads):
            first = max(0, pad - past)
            if bool((ids[row, first : opened.shape[1]] != opened[row, first:]).any()):
                raise BadRequest(
                    f"row {row}: these are not the tokens that the cache was opened for (behind position {past}); "
                    "an edited history needs a StoreCache of its own"
                )

    def _require_positions(self, positions: Any, past: int, new: int) -> None:
        """A token's position must count its row's tokens, not the padding: its key has the position in it."""
        expected = positions_of(self.pads, past, new, self.ids.device)
        if positions is None:
            if any(self.pads):
                raise BadRequest("a padded batch needs position_ids (StoreCache.forward_inputs has them)")
            return
        real = torch.arange(past, past + new, device=self.ids.device) >= torch.tensor(
            self.pads, device=self.ids.device
        ).unsqueeze(1)
        if positions.ndim != 2 or bool(((positions != expected) & real).any()):
            raise BadRequest("position_ids must count each row's tokens from 0, without its padding")


def positions_of(pads: Sequence[int], past: int, new: int, device: torch.device) -> torch.Tensor:
    """Positions `[batch, new]` of the columns behind `past`; 0 in padding (which nothing looks at)."""
    columns = torch.arange(past, past + new, device=device)
    return (columns - torch.tensor(list(pads), device=device).unsqueeze(1)).clamp(min=0)
