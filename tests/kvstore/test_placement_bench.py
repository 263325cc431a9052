"""`kvstore bench placement`: the counts of a call, against a count by hand."""

from __future__ import annotations

import json

import pytest

from kvstore.bench.placement import compare, run
from kvstore.keys import Chain, block_keys, root_digest
from kvstore.layout import Layout
from kvstore.placement import placement


def test_shards_and_bytes_of_each_placement() -> None:
    found = compare(context=4096, sliding=512, shards=4, layers=2, block_tokens=16)
    full, window = found["full"], found["window"]
    assert full["head-group"]["shards_per_call"] == 1
    assert full["head-group"]["cross_bytes"] == 0
    assert full["head-group-window"]["fullest_shard_share"] == 0.25
    assert window["head-group-window"]["most_shards"] == 2
    assert full["uniform"]["shards_per_call"] == 4
    assert full["uniform"]["cross_share"] == pytest.approx(0.75, abs=0.06)
    assert window["head-group-window"]["cross_share_best_caller"] < 0.5 * window["uniform"]["cross_share_best_caller"]
    assert full["uniform"]["bytes_per_call"] == 4096 // 16 * found["block_bytes"]


def test_cross_bytes_counted_by_hand() -> None:
    found = compare(context=1024, sliding=512, shards=2, layers=1, block_tokens=64)
    layout = Layout("bench", head_groups=2, heads=4, head_dim=128, block_tokens=64)
    where = placement("head-group-window", layout, ["a", "b"])
    assert found["block_bytes"] == layout.block_bytes
    chain = Chain(root_digest("bench"), 64)
    chain.extend(range(1024))
    foreign = [
        sum(int(home) != rank for home in where.home(block_keys(chain.digests, 0, rank))) for rank in (0, 1)
    ]  # homes by window do not depend on the tokens
    assert found["full"]["head-group-window"]["cross_bytes"] == sum(foreign) / 2 * layout.block_bytes


def test_output_for_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--context", "1024", "--layers", "1"]
    assert run([*few, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["window"]) == {"uniform", "head-group", "head-group-window"}
    assert run(few) == 0
    assert "head-group-window" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        run(["--context", "100"])
    assert caught.value.code == 2
