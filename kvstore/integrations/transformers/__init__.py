"""KV of Hugging Face transformers models in the store (extra `transformers`).

`StoreCache.open(client, model, input_ids, session=…)` is the cache, `layout_of(model)` the layout that its store needs.
torch and transformers are imported when one of these is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvstore.integrations.transformers.cache import StoreCache
    from kvstore.integrations.transformers.counts import Counts
    from kvstore.integrations.transformers.identity import identity_of, layout_of
    from kvstore.integrations.transformers.paged import PagedCache

__all__ = ["Counts", "PagedCache", "StoreCache", "identity_of", "layout_of"]

_WHERE = {
    "StoreCache": "cache",
    "PagedCache": "paged",
    "Counts": "counts",
    "identity_of": "identity",
    "layout_of": "identity",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(name)
    try:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("torch", "transformers"):
            raise
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install '.[transformers]' in kvscope's checkout", name=error.name
        ) from None
