"""One turn of a conversation by a random model: the three ways that `kvstore bench sessions` compares.

Run as a program it is the process that answers from the store: it reads turns as JSON lines and writes what they took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

from kvstore.client import SyncClient
from kvstore.integrations.transformers import StoreCache, layout_of
from kvstore.integrations.transformers.steps import cache_name
from kvstore.layout import Layout

SIZES: Mapping[str, Mapping[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    },
}
VOCABULARY = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """`reply` tokens; seconds from the request to the first of them, and of each further one; positions computed."""

    reply: list[int]
    first_s: float
    further_s: float
    computed: int


def model_of(size: str) -> Any:
    """A Llama with random weights, float32, the same in every process."""
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=8192, **SIZES[size])
    config.pad_token_id = config.eos_token_id = config.bos_token_id = None
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def layout_for(model: Any) -> Layout:
    return layout_of(model, model_id="bench-sessions")


class Player:
    """Answers turns. What a turn computes is counted from the forward passes' own inputs."""

    def __init__(self, model: Any, reply: int) -> None:
        self._model = model
        self._reply = reply
        self._name = cache_name(model.forward)
        self._computed = 0
        self._kept: dict[str, Any] = {}
        model.model.register_forward_pre_hook(self._saw, with_kwargs=True)

    def _saw(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._computed += int((args[0] if args else kwargs["input_ids"]).shape[1])

    def without(self, history: Sequence[int]) -> Turn:
        """No KV of earlier turns."""
        return self._play(lambda: (list(history), transformers.DynamicCache(config=self._model.config)))

    def kept(self, session: str, history: Sequence[int]) -> Turn:
        """The session's cache has stayed in this process: prefix caching with session affinity."""
        cache = self._kept.setdefault(session, transformers.DynamicCache(config=self._model.config))
        return self._play(lambda: (list(history[cache.get_seq_length() :]), cache))

    def stored(self, client: SyncClient, session: str, history: Sequence[int]) -> Turn:
        """What the store has; opening the cache is part of the time to the first token."""
        opened: list[StoreCache] = []

        def begin() -> tuple[list[int], Any]:
            opened.append(StoreCache.open(client, self._model, torch.tensor([history]), session=session))
            return list(history[opened[0].past :]), opened[0]

        try:
            return self._play(begin)
        finally:
            for cache in opened:
                cache.close()

    def _play(self, begin: Callable[[], tuple[list[int], Any]]) -> Turn:
        reply: list[int] = []
        self._computed = 0
        began = first = time.perf_counter()
        with torch.inference_mode():
            tokens, cache = begin()
            while len(reply) < self._reply:
                given = {"input_ids": torch.tensor([tokens]), self._name: cache, "logits_to_keep": 1}
                tokens = [int(self._model(**given).logits[0, -1].argmax())]
                reply += tokens
                first = first if len(reply) > 1 else time.perf_counter()
        further = (time.perf_counter() - first) / max(1, self._reply - 1)
        return Turn(reply, first - began, further, self._computed)


def main(words: Sequence[str]) -> int:
    """`TARGETS SIZE REPLY THREADS`; a line `{"session", "history"}` is answered by the fields of a `Turn`."""
    targets, size, reply, threads = words
    torch.set_num_threads(int(threads))
    model = model_of(size)
    player = Player(model, int(reply))
    with SyncClient(targets, layout_for(model)) as client:
        print("ready", flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(asdict(player.stored(client, asked["session"], asked["history"]))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
