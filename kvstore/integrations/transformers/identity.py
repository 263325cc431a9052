"""Which model it is: whose KV a block may be taken for, and what of a model the store cannot serve.

KV depends on every weight, on the configuration and on the dtype. All of them are in the root of the token chain, so
that another model's blocks (another revision, a fine-tune, another RoPE base) are never found, whatever their names.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from kvstore.errors import BadRequest
from kvstore.layout import Layout

_SAMPLED = 16
"""Elements of each weight that are looked at again on every call, for changes that torch does not count."""

_NOT_THE_MODEL = (
    "_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache", "output_attentions",
    "output_hidden_states", "return_dict", "_attn_implementation", "_attn_implementation_internal", "id2label",
    "label2id", "problem_type", "chunk_size_feed_forward",
)  # fmt: skip
_MOVING_ROPE = ("dynamic", "longrope")
"""Their angles follow the length of the context at hand, so that equal prefixes have unequal keys."""

_known: weakref.WeakKeyDictionary[torch.nn.Module, tuple[bytes, str]] = weakref.WeakKeyDictionary()


def text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def windows_of(model: Any) -> list[int | None]:
    """The sliding window of each layer (tokens, the query's own among them), None for full attention.

    Raises `BadRequest`, naming what of this model cannot be served from a token chain.
    """
    config = text_config(model)
    _require_supported(model, config)
    found: list[int | None] = []
    for number, layer in enumerate(DynamicCache(config=config).layers):
        if type(layer) is DynamicLayer:
            found.append(None)
        elif type(layer) is DynamicSlidingWindowLayer:
            found.append(int(layer.sliding_window))
        else:
            raise BadRequest(
                f"layer {number} keeps its state in a {type(layer).__name__}: only attention layers do here"
            )
    if not found:  # a configuration that says nothing of its layers: all alike, full attention
        found = [None] * int(config.num_hidden_layers)
    return found


def _require_supported(model: Any, config: Any) -> None:
    kinds = getattr(config, "layer_types", None) or ()
    if model.config.is_encoder_decoder:
        raise BadRequest("encoder-decoder models are not supported: their KV depends on the encoder's input")
    if "chunked_attention" in kinds or (not kinds and getattr(config, "attention_chunk_size", None)):
        raise BadRequest("layers of type 'chunked_attention' are not supported")
    if getattr(config, "use_bidirectional_attention", None) or getattr(config, "is_causal", True) is False:
        raise BadRequest("bidirectional attention is not supported: KV must not depend on what comes later")
    for kind in _rope_types(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)):
        if kind in _MOVING_ROPE:
            raise BadRequest(f"rope_type {kind!r} is not supported: its keys depend on the length of the context")


def _rope_types(parameters: Any) -> Iterator[str]:
    if isinstance(parameters, dict):
        for name, value in parameters.items():
            if name in ("rope_type", "type"):
                yield str(value)
            else:
                yield from _rope_types(value)


def layout_of(
    model: Any,
    *,
    model_id: str = "",
    head_groups: int = 1,
    block_tokens: int = 16,
    window_tokens: int = 512,
    salt: bytes = b"",
) -> Layout:
    """The layout of a store for this model's KV. Raises `BadRequest` for a model that cannot be served.

    `head_groups` cuts the KV heads of a layer into so many blocks: 1 unless the shards are to follow a tensor-parallel
    model's ranks. `model_id` defaults to the name that the model was loaded by.
    """
    from kvstore.keys import salt_fingerprint

    config = text_config(model)
    layers = len(windows_of(model))
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    if head_groups < 1 or heads % head_groups:
        raise BadRequest(f"{heads} KV heads cannot be cut into {head_groups} head groups")
    return Layout(
        model_id or _name_of(model),
        layers=layers,
        head_groups=head_groups,
        heads=heads // head_groups,
        head_dim=head_dim,
        block_tokens=block_tokens,
        window_tokens=window_tokens,
        dtype=str(model.dtype).removeprefix("torch."),
        salt=salt_fingerprint(salt),
    )


def _name_of(model: Any) -> str:
    """As it was loaded; of a directory only its name."""
    name = str(getattr(model.config, "_name_or_path", "") or "")
    return (Path(name).name if Path(name).is_dir() else name) or str(model.config.model_type)


def require_layout(layout: Layout, model: Any, layers: int) -> None:
    """Raise `BadRequest`, naming the field, where the store's layout is not this model's."""
    theirs = layout_of(model, model_id=layout.model_id, head_groups=layout.head_groups)
    for name, ours, models in (
        ("layers", layout.layers, layers),
        ("heads", layout.heads, theirs.heads),
        ("head_dim", layout.head_dim, theirs.head_dim),
        ("dtype", layout.dtype, theirs.dtype),
    ):
        if ours != models:
            raise BadRequest(f"layout field {name!r}: the store has {ours}, the model {models} (see layout_of)")


def identity_of(model: Any, *, revision: str = "", adapter: str = "") -> str:
    """48 hex digits that differ when equal tokens may have other KV: of configuration, dtype and weights.

    All weights are hashed (xxh3-128, several GiB/s), once a model: later calls look only at what torch counts as a
    change, and at some elements of each weight. `revision`, a name that stands for these very weights and no others
    (a commit, a checksum), takes their place. A model with a LoRA or another PEFT adapter must name it in `adapter`:
    switching one leaves the weights alone. Raises `BadRequest`.
    """
    if not adapter and (getattr(model, "_hf_peft_config_loaded", False) or hasattr(model, "peft_config")):
        raise BadRequest("this model has an adapter: name it and its version (adapter=…), as equal tokens get other KV")
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_THE_MODEL}
    digest = hashlib.blake2b(digest_size=24, person=b"kv.model")
    for part in (
        type(model).__name__,
        str(model.dtype),
        json.dumps(config, sort_keys=True, default=str),
        f"revision {revision}" if revision else f"weights {_weights(model)}",
        adapter,
    ):
        digest.update(len(part.encode()).to_bytes(8, "little"))
        digest.update(part.encode())
    return digest.hexdigest()


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return itertools.chain(model.named_parameters(), model.named_buffers())


def _weights(model: torch.nn.Module) -> str:
    tensors = list(_tensors(model))
    for name, tensor in tensors:
        if tensor.is_meta:
            raise BadRequest(f"the weights of {name} are not in memory: name the model's revision (revision=…)")
    state = _state(tensors)
    known = _known.get(model)
    if known is not None and known[0] == state:
        return known[1]
    digest = xxhash.xxh3_128()
    for name, tensor in tensors:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.numel():
            digest.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).cpu().numpy())
    _known[model] = (state, digest.hexdigest())
    return digest.hexdigest()


def _state(tensors: Sequence[tuple[str, torch.Tensor]]) -> bytes:
    """Changes when the weights do: torch's own counts, and a sample of each weight for those that it does not count."""
    digest = xxhash.xxh3_128()
    samples: dict[torch.device, list[torch.Tensor]] = {}
    for name, tensor in tensors:
        count = 0 if tensor.is_inference() else tensor._version
        digest.update(f"{name} {tensor.data_ptr()} {count} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // _SAMPLED)][: _SAMPLED + 1]
        samples.setdefault(tensor.device, []).append(some.to(torch.float32))
    for each in samples.values():
        digest.update(torch.cat(each).cpu().numpy())
    return digest.digest()
