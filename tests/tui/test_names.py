"""What entities are called."""

from __future__ import annotations

import pytest

from tui.names import entity_name, names_apart


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"shard": "3", "instance": "a:1"}, "shard 3"),
        ({"instance": "a:1"}, "a:1"),
        ({"instance": "a:1", "engine": "0"}, "a:1"),
        ({"instance": "a:1", "engine": "2"}, "a:1 #2"),
        ({"instance": "a:1", "gpu": "5"}, "a:1 gpu 5"),
        ({"instance": "a:1", "device": "mlx5_0"}, "a:1 mlx5_0"),
        ({}, ""),
    ],
)
def test_one_by_itself(labels: dict[str, str], name: str) -> None:
    assert entity_name(labels) == name


def shard(number: int, instance: str) -> dict[str, str]:
    return {"shard": str(number), "instance": instance}


def test_shards_of_one_store_need_no_address() -> None:
    assert names_apart([shard(0, "a:1"), shard(1, "a:2")]) == ["shard 0", "shard 1"]


def test_shards_of_two_stores_on_one_host_are_told_by_their_ports() -> None:
    found = names_apart([shard(0, "h:1"), shard(0, "h:2"), shard(1, "h:3")])
    assert found == ["shard 0 :1", "shard 0 :2", "shard 1"]


def test_on_several_hosts_by_their_addresses_where_ports_do_not_tell() -> None:
    found = names_apart([shard(0, "a:1"), shard(0, "b:1"), shard(0, "b:2")])
    assert found == ["shard 0 a:1", "shard 0 b:1", "shard 0 :2"]


def test_what_has_no_shard_is_left_as_it_is() -> None:
    assert names_apart([{"instance": "a:1"}, {"instance": "a:1"}]) == ["a:1", "a:1"]
