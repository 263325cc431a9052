"""A cache for transformers 5 whose KV outlives its process: it is in the store, found by its tokens."""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from transformers.cache_utils import Cache

from kvstore.client import SyncClient
from kvstore.errors import BadRequest, StoreError
from kvstore.header import Bytes
from kvstore.integrations.transformers.counts import Counts
from kvstore.integrations.transformers.hooks import Hooks
from kvstore.integrations.transformers.layers import StoreLayer
from kvstore.integrations.transformers.opening import Match, Place, place_of, take
from kvstore.integrations.transformers.row import Row
from kvstore.integrations.transformers.sessions import Held, Name, names_of, numbers_of
from kvstore.integrations.transformers.steps import StepChecks, cache_name, pads_of, positions_of, require_ids
from kvstore.integrations.transformers.through import WriteThrough
from kvstore.integrations.transformers.writer import RowWriter, Target
from kvstore.messages import Durability
from kvstore.sync import SyncSession

log = logging.getLogger(__name__)

DEADLINE_MS = 2_000
BACKLOG_BYTES = 256 << 20


class StoreCache(Cache):
    """KV of one batch of token rows: what the store has is taken from it, what is computed goes into it.

    ```python
    with StoreCache.open(client, model, input_ids, session="chat-42") as cache:
        reply = model.generate(**cache.generate_inputs, max_new_tokens=64)
    ```

    `open` matches each row's token chain: full blocks, whoever wrote them, and the session's partial one. At most all
    but the last token are taken, so that a forward pass has something to compute logits from; `matched` says how many
    of each row. What a forward pass adds is written while the next one is computed: one `put` or `append` a row for all
    layers together. Another process, or this one after a crash, opens the same session with the same, a longer, shorter
    or edited history and gets what still holds. A store that fails is an empty one: generation goes on, `counts` and
    the log say so, and what it missed is brought over when it is back.

    For causal models whose layers are full or sliding-window attention, in float32, float16 and bfloat16; left-padded
    batches, each row a session of its own. Not for beam search, several sequences a prompt, or inputs other than
    tokens: these are refused by name. Needs `model.eval()`. A model that a cache is open for has two forward hooks.
    """

    layers: list[StoreLayer]

    def __init__(
        self, place: Place, model: Any, input_ids: torch.Tensor, pads: list[int], match: Match, writes: WriteThrough,
        layers: list[StoreLayer], held: Held, counts: Counts,
    ) -> None:  # fmt: skip
        """Use `open`."""
        super().__init__(layers=layers)
        self._counts = counts
        self.layout = place.client.layout
        self.past = match.length
        """Positions taken from the store, padding included: forward passes begin behind them."""
        self._model = model
        self._checks = StepChecks(input_ids, pads)
        self._writes = writes
        self._held = held
        weakref.finalize(self, held.release).atexit = False
        self._closed = False
        self._step_ids: torch.Tensor | None = None
        self._rows = [
            Row(place.root, self.layout, pad, match.known[number], _ends(model)) for number, pad in enumerate(pads)
        ]
        for row, ids, partial in zip(self._rows, input_ids.tolist(), match.partials, strict=True):
            row.begin(ids[row.pad : max(row.pad, self.past)], partial)
        self._hooks = Hooks(model, self)

    @classmethod
    def open(
        cls,
        client: SyncClient,
        model: Any,
        input_ids: torch.Tensor,
        *,
        attention_mask: torch.Tensor | None = None,
        session: Name | Sequence[Name] = None,
        session_class: str = "default",
        salt: bytes = b"",
        adapter: str = "",
        revision: str = "",
        durability: Durability = Durability.NONE,
        deadline_ms: int = DEADLINE_MS,
        backlog_bytes: int = BACKLOG_BYTES,
        layers: list[StoreLayer] | None = None,
    ) -> StoreCache:
        """A cache for `input_ids` `[batch, tokens]`, filled with what the store has of them.

        `client`'s layout is the model's (`layout_of`). `session`: of the one row, or one a row (`sessions.Name`); None
        keeps full blocks only. `adapter`, `revision`: see `identity_of`. `salt`: the tenant's, as the layout's.
        `deadline_ms` bounds each call to the store, `backlog_bytes` what a row keeps waiting while the store is away.
        `layers`: where the KV is kept here, if not in tensors of this cache's own.

        Raises `BadRequest` naming what cannot be: a layout that is not the model's, a model or batch that is not
        supported. Never raises for a store that is away.
        """
        require_ids(input_ids)
        if model.training:
            raise BadRequest("the model is in training mode, where KV is random: model.eval() first")
        rows = len(input_ids)
        pads = pads_of(attention_mask, (rows, input_ids.shape[1]))
        numbers = numbers_of(session, rows, salt)
        place = place_of(
            client, model, salt=salt, adapter=adapter, revision=revision, sessions=any(numbers), deadline_ms=deadline_ms
        )
        counts = Counts()
        held = Held(client, session_class, deadline_ms)
        _hold(held, numbers, [not isinstance(name, SyncSession) for name in names_of(session, rows)], counts)
        layers = [StoreLayer(window) for window in place.windows] if layers is None else layers
        tokens = [ids[pad:] for ids, pad in zip(input_ids.tolist(), pads, strict=True)]
        try:
            match = take(
                place, layers, tokens, pads, numbers, device=input_ids.device, dtype=model.dtype, counts=counts
            )
        except BaseException:
            held.release()
            raise
        target = Target(client.client, place.columns, counts, durability, deadline_ms, session_class)
        writers = [RowWriter(target, number, version) for number, version in zip(numbers, match.versions, strict=True)]
        writes = WriteThrough(client, writers, counts, most_bytes=backlog_bytes)
        return cls(place, model, input_ids, pads, match, writes, layers, held, counts)

    # --- what a caller asks -------------------------------------------------------------------------------------------

    @property
    def matched(self) -> list[int]:
        """Tokens of each row that were taken from the store."""
        return [max(0, self.past - row.pad) for row in self._rows]

    @property
    def generate_inputs(self) -> dict[str, Any]:
        """For `model.generate(**…)`: all the ids (it leaves out by itself what is here), their mask, this cache."""
        ids = self._checks.ids
        return {"input_ids": ids, "attention_mask": self._mask(), cache_name(self._model.forward): self}

    @property
    def forward_inputs(self) -> dict[str, Any]:
        """For `model(**…)`: the ids behind what was taken, with their positions, the whole mask, this cache."""
        ids = self._checks.ids
        positions = positions_of(self._checks.pads, self.past, ids.shape[1] - self.past, ids.device)
        return {
            "input_ids": ids[:, self.past :],
            "attention_mask": self._mask(),
            "position_ids": positions,
            cache_name(self._model.forward): self,
        }

    @property
    def counts(self) -> Counts:
        """What this cache did, the last step's writing included."""
        self._writes.settle()
        return self._counts

    def flush(self) -> bool:
        """Wait until all is written, also what waits because the store was away; whether nothing waits any more."""
        return self._writes.flush()

    def close(self) -> None:
        """Let go of model and sessions; these live on until their TTL ends. May be called twice. A cache that nobody
        holds any more lets go of them too, but does not wait for what is still to be written."""
        self._closed = True
        self._hooks.remove()
        self._writes.settle()
        if not self._writes.paused:
            self._writes.flush()
        self._held.release()

    def __enter__(self) -> StoreCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- forward passes -----------------------------------------------------------------------------------------------

    def before_forward(self, given: Mapping[str, Any]) -> None:
        """The model is about to compute these arguments. Raises `BadRequest` for what would be wrong in the store."""
        past = self.get_seq_length()
        if self._step_ids is not None or any(layer.length != past for layer in self.layers):
            raise BadRequest("a forward pass ended half-way: open the cache anew")
        if self._model.training:
            raise BadRequest("the model is in training mode, where KV is random: model.eval() first")
        self._step_ids = self._checks.require(given, past)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As transformers calls it. Raises `BadRequest` for a forward pass whose tokens are not known."""
        self._require_open()
        if self._step_ids is None:
            raise BadRequest("this cache was opened for another model: call that one (its parts see no tokens)")
        heads = self.layout.head_groups * self.layout.heads
        shape = (len(self._rows), heads, self._step_ids.shape[1], self.layout.head_dim)
        if tuple(key_states.shape) != shape or tuple(value_states.shape) != shape:
            raise BadRequest(
                f"layer {layer_idx} has keys {list(key_states.shape)} and values {list(value_states.shape)}; "
                f"the layout has {list(shape)} for both"
            )
        return self.layers[layer_idx].update(key_states, value_states)

    def after_forward(self) -> None:
        """The pass is done: every row's new tokens go into its chain, and with the KV into the store."""
        ids, self._step_ids = self._step_ids, None
        fresh = [layer.take_fresh() for layer in self.layers]
        if ids is None or any(states is None for states in fresh):
            raise BadRequest("a layer of this model did not use the cache")
        self._counts.forwards += 1
        self._counts.computed_columns += ids.shape[1]
        past = self.get_seq_length() - ids.shape[1]
        keys = _raw([states[0] for states in fresh if states is not None])
        values = _raw([states[1] for states in fresh if states is not None])
        self._writes.settle()
        for number, (row, new) in enumerate(zip(self._rows, ids.tolist(), strict=True)):
            cut = max(0, row.pad - past)
            full = row.extend(new[cut:], keys[:, number, :, cut:], values[:, number, :, cut:])
            self._writes.step(number, full, row.history.partial())
        self._writes.write()

    # --- going back -------------------------------------------------------------------------------------------------

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last tokens back (a number below 0), as assisted decoding does with guesses that were wrong."""
        self._require_open()
        self._writes.settle()
        super().crop(tokens_to_remove)
        length = self.get_seq_length()
        for number, row in enumerate(self._rows):
            if not row.crop(max(0, length - row.pad), self.layers, number, length):
                self._writes.give_up(number)

    def reset(self) -> None:
        """Back to nothing: the same ids may be computed again."""
        self._require_open()
        super().reset()
        for row in self._rows:
            row.begin([], None)

    def _require_open(self) -> None:
        if self._closed:
            raise BadRequest("this cache was closed: open another one")

    def _mask(self) -> torch.Tensor:
        ids = self._checks.ids
        columns = torch.arange(ids.shape[1], device=ids.device)
        return (columns >= torch.tensor(self._checks.pads, device=ids.device).unsqueeze(1)).long()


def _hold(held: Held, numbers: Sequence[int], own: Sequence[bool], counts: Counts) -> None:
    try:
        held.open(numbers, own)
    except StoreError as error:
        counts.write_failures += 1
        log.warning("a session could not be opened (%s); it will be with the first write", error)


def _raw(states: Sequence[torch.Tensor]) -> Bytes:
    """One tensor a layer, `[batch, KV heads, new, head_dim]`, as bytes `[layers, batch, KV heads, new, head bytes]`."""
    devices = {state.device for state in states}
    parts = states if len(devices) == 1 else [state.cpu() for state in states]
    stacked: Bytes = torch.stack([part.detach() for part in parts]).cpu().view(torch.uint8).numpy()
    return stacked


def _ends(model: Any) -> tuple[frozenset[int], int | None]:
    """The tokens that end a row, and the one that `generate` feeds a row that has ended while others go on."""
    config = getattr(model, "generation_config", None)
    eos = getattr(config, "eos_token_id", None)
    pad = getattr(config, "pad_token_id", None)
    ends = frozenset([eos] if isinstance(eos, int) else eos or ())
    return ends, pad if pad is not None else next(iter(ends), None)
