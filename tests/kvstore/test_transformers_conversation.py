"""The demo's conversation: every turn takes from the store what the turns before have left there."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

from kvstore.cluster import LocalCluster
from kvstore.integrations.transformers.conversation import LAYOUT, PROMPT, QUESTION, REPLY, talk


def test_turn_after_turn() -> None:
    with LocalCluster(1, LAYOUT, 512) as cluster:
        said = talk(cluster.targets, turns=3, pause_s=0.0)
    lengths = [PROMPT + QUESTION * turn + REPLY * (turn - 1) for turn in (1, 2, 3)]
    held = [0, *(length - QUESTION - 1 for length in lengths[1:])]
    assert said == list(zip(lengths, held, strict=True))
