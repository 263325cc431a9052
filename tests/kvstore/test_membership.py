"""Members that come and go: what is stored about them, what moves, and who may publish what until when."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.errors import BadRequest, EpochStale, LayoutMismatch, OwnerLapsed
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.membership import Member, View, membership_of, ownership
from kvstore.membership.calls import endpoints_of
from kvstore.membership.document import Document, folder_of
from kvstore.membership.homes import Homes
from kvstore.membership.ownership import FOREVER, Ownership
from kvstore.membership.protobuf import messages, number, pack, text, unpack
from kvstore.messages import Lease, Lookup
from kvstore.placement import KINDS
from kvstore.security import Access
from tests.kvstore.process_rig import LAYOUT, some_keys
from tests.kvstore.shard_rig import Rig

KIND_NAMES = sorted(KINDS)


def many_keys(n: int = 4_000) -> Keys:
    """Of all layers and head groups."""
    parts = [some_keys(n // 4, 10 * layer + group, layer=layer, group=group) for layer in (0, 1) for group in (0, 1)]
    return np.concatenate(parts)


def founded(kind: str, shards: int) -> Document:
    document = Document(LAYOUT, kind, shards)
    for name in range(shards):
        assert document.epoch == 0
        document = document.join(str(name))
    assert document.epoch == 1
    return document


def test_protocol_buffers_are_as_the_specification_writes_them() -> None:
    # The examples of protobuf.dev/programming-guides/encoding: field 1 = 150, field 2 = "testing".
    assert pack({1: 150}) == bytes.fromhex("089601")
    assert pack({2: "testing"}) == bytes.fromhex("120774657374696e67")
    assert pack({1: -1}) == b"\x08" + b"\xff" * 9 + b"\x01"
    assert pack({1: 0, 2: b""}) == b"\x12\x00"
    found = unpack(pack({3: [pack({1: 7}), pack({1: 2**40})], 2: "x", 5: -5}))
    assert [number(one, 1) for one in messages(found, 3)] == [7, 2**40]
    assert (text(found, 2), number(found, 5), number(found, 9), text(found, 9)) == (b"x", -5, 0, b"")
    assert unpack(bytes.fromhex("0d01020304" + "110102030405060708" + "0896 01")) != {}  # fixed widths are passed over
    for broken in (b"\x08", b"\x12\x07abc", b"\x0b", b"\x08" + b"\xff" * 11):
        with pytest.raises(ValueError, match="no protocol buffer"):
            unpack(broken)


def test_the_document_counts_epochs_and_keeps_the_last_member() -> None:
    document = founded("uniform", 2)
    assert document.join("2").live == ["0", "1", "2"]
    grown = document.join("2").leave("0")
    assert (grown.epoch, grown.live, grown.changes) == (3, ["1", "2"], ("+2", "-0"))
    assert grown.leave("7") == grown
    last = grown.leave("1").leave("2")
    assert last.live == ["2"]
    assert last.join("3").leave("2").live == ["3"]
    assert grown.knows("0")
    assert not grown.knows("0.1")
    assert Document.from_bytes(grown.as_bytes()) == grown
    waiting = Document(LAYOUT, "uniform", 3).join("0").join("1").leave("0")
    assert (waiting.epoch, waiting.first) == (0, ("1",))
    for broken in (b"", b"[]", b"{}", grown.as_bytes().replace(b"members/1", b"members/9")):
        with pytest.raises(BadRequest, match="document in etcd"):
            Document.from_bytes(broken)
    with pytest.raises(LayoutMismatch, match="'layers': store has 2, client 3"):
        grown.require_same(Layout("process-rig", layers=3, head_groups=2, head_dim=32, window_tokens=128), "")
    with pytest.raises(BadRequest, match="placement is uniform, not head-group"):
        grown.require_same(LAYOUT, "head-group")


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_only_what_must_move_moves(kind: str) -> None:
    """Counted over keys of all layers and head groups."""
    keys = many_keys()
    three = founded(kind, 3)
    four = three.join("3")
    before, after = three.homes().home(keys), four.homes().home(keys)
    moved = before != after
    assert set(after[moved].tolist()) <= {3}
    assert moved.mean() == pytest.approx(1 / 4, abs=0.26 if kind == "head-group" else 0.06)
    three_again = four.leave("1").homes()
    gone = three_again.home(keys)
    assert np.array_equal(gone != after, after == 1)
    assert 1 not in gone
    back = four.leave("1").join("1.1").homes()
    assert set(back.home(keys)[back.home(keys) != gone].tolist()) <= {1}
    assert sorted(back.live) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_homes_are_the_same_whether_computed_anew_or_from_an_earlier_epoch(kind: str) -> None:
    keys = many_keys()
    document = founded(kind, 3)
    homes = document.homes()
    for name, comes in (("3", True), ("0", False), ("4", True), ("3", False), ("0.1", True)):
        document = document.join(name) if comes else document.leave(name)
        homes = document.homes(homes)
        anew = document.homes()
        assert np.array_equal(homes.home(keys), anew.home(keys))
        assert homes.live == anew.live
    assert np.array_equal(founded(kind, 2).homes(homes).home(keys), founded(kind, 2).homes().home(keys))


def test_of_one_member_all_keys_are_at_home_there() -> None:
    homes = Homes("uniform", LAYOUT, ["0", "1"], ["-0"])
    assert set(homes.home(many_keys(400)).tolist()) == {1}


def test_ownership() -> None:
    keys = many_keys(400)
    always = Ownership(1)
    always.require(1 << 50)
    always.require_home(keys)
    owner = Ownership()
    owner.register(1)
    with pytest.raises(OwnerLapsed, match="shard 1 could not renew its lease"):
        owner.require(5)
    with pytest.raises(EpochStale, match="not a member yet"):
        owner.require_home(keys)
    owner.renewed(100)
    owner.require(99)
    with pytest.raises(OwnerLapsed):
        owner.require(100)
    first, second = founded("uniform", 2).homes(), founded("uniform", 2).leave("0").homes()
    owner.homes, owner.epoch = first, 1
    with pytest.raises(EpochStale, match="handed over"):
        owner.require_home(keys[first.home(keys) == 1])
    owner.settled = first
    owner.require_home(keys[first.home(keys) == 1])
    with pytest.raises(EpochStale, match="have another home than shard 1 in epoch 1"):
        owner.require_home(keys)
    leaver = Ownership()
    leaver.register(1)
    leaver.renewed(100)
    leaver.leave()
    with pytest.raises(EpochStale, match="is leaving"):
        leaver.require(1)
    with pytest.raises(OwnerLapsed):
        leaver.require_still(1)
    owner.homes, owner.epoch = second, 2  # shard 0 has left: until all have taken that up, only what was ours before
    owner.require_home(keys[first.home(keys) == 1])
    with pytest.raises(EpochStale, match="handed over"):
        owner.require_home(keys)
    owner.settled = second
    owner.require_home(keys)


def test_a_lease_does_not_outlast_a_hosts_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Ownership()
    owner.register(0)
    owner.renewed(10_000)
    owner.require(9_000)
    asleep = ownership._asleep_ms() + 5_000  # the host was suspended: CLOCK_MONOTONIC stood still, etcd's did not
    monkeypatch.setattr(ownership, "_asleep_ms", lambda: asleep)
    with pytest.raises(OwnerLapsed):
        owner.require(9_000)
    owner.renewed(20_000)
    owner.require(9_000)


async def test_readers_leases_end_no_later_than_the_shards_own() -> None:
    rig = Rig()
    put, owner = rig.put_message(range(16)), rig.shard.core.ownership
    await rig.ask(put)
    assert owner.until_ms == FOREVER
    assert (await rig.ask(Lookup(put.keys, lease_ms=10_000))).lease_until_ms == rig.now_ms + 10_000
    owner.until_ms = rig.now_ms + 700
    located = await rig.ask(Lookup(put.keys, lease_ms=10_000))
    assert located.lease_until_ms == owner.until_ms
    renewed = await rig.ask(Lease(np.array([located.lease], np.uint64), 60_000))
    assert renewed.until_ms.tolist() == [owner.until_ms]
    rig.now_ms += 701
    located = await rig.ask(Lookup(put.keys, lease_ms=10_000))
    assert (located.slot >= 0).all()  # found, readable, but not leased
    assert (located.lease, located.lease_until_ms) == (0, 0)
    more = rig.put_message(range(100, 116))
    with pytest.raises(OwnerLapsed):
        await rig.ask(more)
    assert (await rig.ask(Lookup(more.keys))).slot.tolist() == [-1] * 4


async def test_a_shard_whose_lease_ends_while_it_works_does_not_say_that_it_is_done() -> None:
    rig = Rig()
    pool, owner = rig.shard.core.pool, rig.shard.core.ownership
    publish = pool.publish

    def late(*args: object, **options: object) -> object:
        done = publish(*args, **options)  # type: ignore[arg-type]
        owner.until_ms = rig.now_ms  # it was stopped here, and woke when its lease had ended
        return done

    pool.publish = late  # type: ignore[method-assign,assignment]
    with pytest.raises(OwnerLapsed):
        await rig.ask(rig.put_message(range(16)))


async def test_what_has_moved_leaves_the_index_and_its_leased_slots_stay() -> None:
    rig = Rig()
    put = rig.put_message(range(128))
    await rig.ask(put)
    located = await rig.ask(Lookup(put.keys, lease_ms=1_000))
    homes = founded("uniform", 2).homes()
    rig.shard.core.ownership.register(0)
    gone = int((homes.home(put.keys) != 0).sum())
    assert 0 < gone < 32
    assert rig.shard.drop_moved(homes) == gone
    there = (await rig.ask(Lookup(put.keys))).slot >= 0
    assert np.array_equal(there, homes.home(put.keys) == 0)
    assert np.array_equal(rig.shard.pool.generations(located.slot), located.generation)  # not recycled while leased
    assert rig.shard.drop_moved(None) == 32 - gone


async def test_a_recovered_shard_that_becomes_a_member_keeps_full_blocks_and_no_tails() -> None:
    rig = Rig()
    session = await rig.open()
    full = rig.put_message(range(16))
    await rig.ask(full)
    tokens = [*range(16), 16, 17]
    await rig.append(session, tokens, 10)
    assert (await rig.match(session, tokens)).agree == 2
    assert rig.shard.drop_tails() == 1
    assert (await rig.match(session, tokens)).agree == 0
    assert ((await rig.ask(Lookup(full.keys))).slot >= 0).all()
    assert rig.shard.drop_tails() == 0


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "ü", "a b"])
def test_what_is_no_name_of_a_store(name: str) -> None:
    with pytest.raises(BadRequest, match="is no name of a store"):
        folder_of(name)


async def test_targets_choose_the_membership() -> None:
    from kvstore.deadline import Deadline

    static = membership_of("127.0.0.1:7600,127.0.0.1:7601", Access())
    assert await static.view(Deadline(10)) == View(0, (Member("127.0.0.1:7600"), Member("127.0.0.1:7601")))
    assert endpoints_of("http://127.0.0.1:1,http://127.0.0.1:2", Access()) == (["127.0.0.1:1", "127.0.0.1:2"], False)
    assert endpoints_of("etcds://kv.example.org:2379", Access()) == (["kv.example.org:2379"], True)
    for wrong, why in (
        ("etcd://127.0.0.1:2379/", "no name of a store"),
        ("etcd://127.0.0.1/store", "host:port"),
        ("etcd://192.0.2.1:2379/store", "not on loopback: use TLS"),
        ("etcds://192.0.2.1:2379/store", "give --tls-ca"),
    ):
        with pytest.raises(BadRequest, match=why):
            membership_of(wrong, Access())
