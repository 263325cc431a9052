"""A history that another process began – and did not live to end – goes on here; what was edited is computed again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

import torch

from kvstore.integrations.transformers import StoreCache
from tests.kvstore.process_rig import Helper
from tests.kvstore.transformers_rig import (
    TRANSPORTS,
    Computed,
    Store,
    generated,
    ids_of,
    model_of,
    reference,
    require_equal,
    store_for,
)

PROMPT, REPLY = 26, 9

HISTORIES = {
    # name: (tokens of the killed history that are kept, others behind them, tokens that need not be computed again)
    "equal": (35, 0, 34),
    "longer": (35, 7, 34),
    "longer by more than a block": (35, 20, 34),
    "shorter": (30, 0, 24),
    "shorter, at a block's end": (24, 0, 23),
    "edited behind the tail": (34, 6, 34),
    "edited in the tail": (33, 6, 33),
    "edited in the last full block": (29, 12, 24),
    "edited at the beginning": (1, 30, 0),
    "another one": (0, 30, 0),
}
"""34 of the 35 tokens have KV: the last one was never fed. 32 of them are full blocks, two are the tail."""

_GENERATE = """
from tests.kvstore.transformers_rig import *
targets, transport, prompt, reply = sys.argv[1:]
model = model_of("llama")
layout = layout_for(model)
ids = ids_of(int(prompt), seed=1)

class Wait(transformers.StoppingCriteria):
    def __call__(self, tokens, scores, **kwargs):
        if tokens.shape[1] == ids.shape[1] + int(reply):
            caches[-1].flush()  # writing runs beside the next step: at most that one would be missing
            say(tokens[0].tolist())
            ask()
            return torch.ones(len(tokens), dtype=torch.bool)
        return torch.zeros(len(tokens), dtype=torch.bool)

client = client_at(targets, layout, transport)
caches = []
for session in ask():
    caches.append(StoreCache.open(client, model, ids, session=session))
    model.generate(**caches[-1].generate_inputs, max_new_tokens=64, do_sample=False, stopping_criteria=[Wait()])
"""


@pytest.fixture(scope="module", params=TRANSPORTS[:1])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with store_for(model_of("llama"), shards=2, transport=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def killed(store: Store) -> list[int]:
    """One conversation in a session a case, all of a process that was killed (kill -9) while it generated."""
    words = (store.cluster.targets, store.transport, str(PROMPT), str(REPLY))
    with Helper(_GENERATE, *words) as other:
        other.tell(list(HISTORIES))
        for number, _ in enumerate(HISTORIES, 1):
            tokens: list[int] = other.heard(timeout_s=90)
            if number < len(HISTORIES):
                other.tell("go on, to the next session")
        os.kill(other.process.pid, signal.SIGKILL)
        assert other.process.wait() == -signal.SIGKILL
    assert len(tokens) == PROMPT + REPLY
    return tokens


@pytest.mark.parametrize("case", HISTORIES)
def test_what_a_killed_process_left(store: Store, killed: list[int], case: str) -> None:
    kept, others, held = HISTORIES[case]
    model = model_of("llama")
    ids = torch.cat(
        [torch.tensor(killed[:kept], dtype=torch.long), ids_of(max(1, others), seed=40 + kept + others)[0][:others]]
    )[None]
    expected = reference(model, ids, tokens=4)
    with StoreCache.open(store.client, model, ids, session=case) as cache, Computed(model) as computed:
        assert cache.matched == [held]
        got = generated(cache, model, tokens=4)
    assert computed.lengths == [len(ids[0]) - held, 1, 1, 1]
    require_equal(got, expected)
    with StoreCache.open(store.client, model, got.sequences, session=case) as cache:
        assert cache.matched == [len(ids[0]) + 3]  # and what was edited is now what the session has
