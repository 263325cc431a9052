"""A tiny random model that holds conversations through a store, without an end: something to watch.

`python -m kvstore.integrations.transformers.conversation CLUSTER_FILE`; the store's layout is `LAYOUT`. Every turn
opens a cache for the whole history and takes from the store what the turns before have left there.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from kvstore.layout import Layout
from kvstore.lifeline import end_with

LAYOUT = Layout("tiny-llama", layers=2, heads=2, head_dim=32, dtype="float32")
VOCABULARY = 2048
PROMPT, QUESTION, REPLY = 96, 24, 32
"""Tokens that every conversation begins with, of a question, of a reply."""
LONGEST = 1024
"""Tokens of history, then another conversation begins."""
PATIENCE_S = 60.0
PAUSE_S = 0.5
"""Between two turns: somebody reads the reply."""


def talk(targets: str, *, turns: int | None = None, pause_s: float = PAUSE_S, seed: int = 0) -> list[tuple[int, int]]:
    """So many turns (None: no end); tokens of each turn's history, and how many of them the store had."""
    import torch
    import transformers

    from kvstore.client import SyncClient
    from kvstore.integrations.transformers import StoreCache

    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    config.pad_token_id = config.eos_token_id = config.bos_token_id = None
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config).eval()
    words = random.Random(seed)
    prompt = [words.randrange(VOCABULARY) for _ in range(PROMPT)]
    history: list[int] = []
    said: list[tuple[int, int]] = []
    with SyncClient(targets, LAYOUT) as client:
        for turn in count(1):
            if turns is not None and turn > turns:
                return said
            if not history or len(history) > LONGEST:
                history, session = list(prompt), f"conversation {seed} {turn}"
            history += [words.randrange(VOCABULARY) for _ in range(QUESTION)]
            ids = torch.tensor([history])
            with StoreCache.open(client, model, ids, session=session, session_class="chat") as cache:
                history = model.generate(**cache.generate_inputs, max_new_tokens=REPLY, do_sample=False)[0].tolist()
                said.append((ids.shape[1], cache.matched[0]))
            del said[:-1000]
            time.sleep(pause_s)
    return said


def _wait_for(file: Path) -> None:
    """The store may have been started along with us."""
    end = time.monotonic() + PATIENCE_S
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.1)


def main(words: Sequence[str]) -> int:
    from kvstore.errors import StoreError

    parser = argparse.ArgumentParser(prog="conversation", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("store", metavar="CLUSTER_FILE")
    parser.add_argument("--lifeline-fd", type=int, default=-1, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    end_with(given.lifeline_fd)
    try:
        import transformers  # noqa: F401 – seconds, in which the store starts, too

        _wait_for(Path(given.store))
        talk(given.store)
    except StoreError as error:
        print(f"conversation: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
