"""Readers against a shard that recycles, overwrites and damages: short runs of `kvstore bench stress`."""

from __future__ import annotations

from kvstore.bench.stress import stress


def test_no_wrong_byte_is_believed_and_no_lease_is_broken() -> None:
    counts = stress(60_000)
    assert counts.reads >= 60_000
    assert counts.wrong == 0
    assert counts.lost_leases == 0
    assert counts.recycled > 0, "nothing was recycled under a reader: the run proves nothing"
    assert counts.damaged > 0, "no damaged bytes were met: the run proves nothing"
    assert counts.leased_reads > 0


TRIES = 10
"""A reader must be interrupted just where it matters: on a busy machine that needs more than one run now and then."""


def test_without_the_generation_check_wrong_bytes_are_believed() -> None:
    assert any(stress(120_000, generation=False, seed=seed).wrong for seed in range(TRIES))


def test_without_the_sums_wrong_bytes_are_believed() -> None:
    assert any(stress(60_000, verify=False, seed=seed).wrong for seed in range(TRIES))
