"""PyTorch's own forward hooks: how a cache hears what tokens a forward pass is given, and when it is done."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from kvstore.integrations.transformers.steps import CACHE_NAMES, named


class Stepping(Protocol):
    """What hears of its model's forward passes."""

    def before_forward(self, given: Mapping[str, Any]) -> None: ...
    def after_forward(self) -> None: ...


class Hooks:
    """On `model`, until removed, or until nobody holds `cache` any more. Calls with another cache pass by."""

    def __init__(self, model: torch.nn.Module, cache: Stepping) -> None:
        mine = weakref.ref(cache)

        def ours(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
            given = named(module.forward, args, kwargs)
            return given if any(given.get(name) is mine() for name in CACHE_NAMES if name in given) else None

        def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given, cache = ours(module, args, kwargs), mine()
            if given is not None and cache is not None:
                cache.before_forward(given)

        def after(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            cache = mine()
            if cache is not None and ours(module, args, kwargs) is not None:
                cache.after_forward()

        handles = (
            model.register_forward_pre_hook(before, with_kwargs=True),
            model.register_forward_hook(after, with_kwargs=True),
        )
        self._remove = weakref.finalize(cache, _remove, handles)

    def remove(self) -> None:
        self._remove()


def _remove(handles: Sequence[Any]) -> None:
    for handle in handles:
        handle.remove()
