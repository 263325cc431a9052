"""Shards that register in a real etcd: they come, leave, die, stop and wake, and etcd itself is gone for a while."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, SyncClient
from kvstore.cluster import LocalCluster
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, EpochStale, LeaseExpired, OwnerLapsed, ShardUnavailable, StoreError
from kvstore.keys import Keys
from kvstore.membership import membership_of
from kvstore.messages import Put
from kvstore.replay.content import layout as trace_layout
from kvstore.security import Access
from tests.kvstore.etcd_rig import EtcdServer, free_port, needs_etcd
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys
from tests.kvstore.security_rig import Files, command

pytestmark = needs_etcd
LEASE_S = 2
WAIT_S = 30.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def shards(count: int, etcd: EtcdServer, name: str, **options: Any) -> LocalCluster:
    return LocalCluster(count, LAYOUT, 512, etcd=etcd.url, cluster=name, lease=f"{LEASE_S}s", **options)


def until(what: Callable[[], bool], why: str) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.01)


def epoch_of(client: SyncClient) -> int:
    follower = client.client.follower
    assert follower is not None
    return follower.view.epoch


def home(client: SyncClient, keys: Keys) -> np.ndarray[Any, np.dtype[np.int64]]:
    return client.client.shards.home(keys)


def figure(cluster: LocalCluster, index: int, name: str) -> float:
    """What a shard's page says of its membership."""
    with urllib.request.urlopen(cluster.metrics_urls[index], timeout=10) as page:
        found = re.search(rf"^kv_membership_{name}{{[^}}]*}} (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def index_of(cluster: LocalCluster, number: int) -> int:
    return next(at for at, facts in enumerate(cluster.facts) if facts["shard"] == number)


@contextlib.contextmanager
def reading(target: str, keys: Keys) -> Iterator[list[str]]:
    """Somebody reads all the time: what is found must be right, and nothing else may happen. What went wrong."""
    wrong: list[str] = []
    rounds = 0
    stop = threading.Event()

    def read() -> None:
        nonlocal rounds
        expected = blocks_for(keys)
        try:
            with SyncClient(target, LAYOUT) as client:
                while not stop.is_set():
                    for what in (keys, client.lookup(keys, lease_ms=5_000)):
                        with contextlib.suppress(LeaseExpired):  # on a host that is slow: it says nothing of members
                            found = client.get(what)
                            if not np.array_equal(found.data[found.found], expected[found.found]):
                                wrong.append("wrong bytes")
                    rounds += 1
        except StoreError as error:
            wrong.append(repr(error))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        thread.join()
    assert rounds > 3


def test_shards_join_and_leave_under_a_reader_and_only_what_must_move_moves(etcd: EtcdServer) -> None:
    keys = some_keys(300, 1)
    two = {0: {"shards": 2}}  # founders
    with shards(1, etcd, "moves", own=two) as first:
        with pytest.raises(ShardUnavailable, match="1 of the 2 founding shards of 'moves' are there"):
            SyncClient(etcd.target("moves"), LAYOUT, deadline_ms=300)
        with shards(1, etcd, "moves", own=two), SyncClient(etcd.target("moves"), LAYOUT) as client:
            assert epoch_of(client) == 1
            client.put(keys, blocks_for(keys))
            before = home(client, keys)
            session = client.open_session("chat")
            with reading(etcd.target("moves"), keys) as wrong:
                with shards(1, etcd, "moves"):
                    until(lambda: epoch_of(client) == 2, "the client has not heard of the third shard")
                    moved = home(client, keys) != before
                    assert set(home(client, keys)[moved].tolist()) == {2}
                    assert 0.2 < moved.mean() < 0.45
                    until(lambda: np.array_equal(client.get(keys).found, ~moved), "misses are not what moved")
                    client.put(keys, blocks_for(keys), session=session)  # the session lives on the new shard, too
                    assert client.get(keys).found.all()
                    after = home(client, keys)
                    located = client.lookup(keys)
                until(lambda: epoch_of(client) == 3, "the client has not heard that it left")
                assert np.array_equal(home(client, keys) != after, after == 2)
                assert np.array_equal(client.get(keys).found, after != 2)
                assert np.array_equal(client.get(located).found, after != 2)  # places that are no more: looked up again
                one = client.lookup(keys[:1])
                one.shard[:] = 2  # the quick way for one block, too
                assert client.get(one, client.buffer(1)).found.all() == (after[0] != 2)
                client.put(keys, blocks_for(keys))
                assert np.array_equal(client.get(keys).data, blocks_for(keys))
            assert wrong == []
            session.close()
        with pytest.raises(BadRequest, match="connect to etcd://HOST:PORT/moves"):
            SyncClient(first.targets, LAYOUT)


def test_a_killed_shard_is_struck_off_and_a_silent_etcd_stops_puts_but_no_gets(tmp_path: Path) -> None:
    keys = some_keys(200, 2)
    with EtcdServer(tmp_path) as etcd, shards(2, etcd, "faults") as cluster:
        with SyncClient(etcd.target("faults"), LAYOUT) as client:
            client.put(keys, blocks_for(keys))
            before = home(client, keys)
            cluster.kill(index_of(cluster, 0))
            with pytest.raises(ShardUnavailable):
                client.get(keys)
            with SyncClient(etcd.target("faults"), LAYOUT) as late:  # it is still in the book, and no hindrance
                assert late.get(keys[before == 1]).found.all()
            until(lambda: epoch_of(client) == 2, "the dead shard is not struck off")
            assert np.array_equal(client.get(keys).found, before == 1)  # the others are misses, not errors
            client.put(keys, blocks_for(keys))
            index = index_of(cluster, 1)
            assert (figure(cluster, index, "epoch"), figure(cluster, index, "lease_seconds") > 0) == (2, True)
            etcd.stop()
            stopped = time.monotonic()
            refusal = _refused(client)
            assert time.monotonic() - stopped < LEASE_S  # before etcd could have given the lease to anybody else
            assert "gets go on" in str(refusal)
            assert figure(cluster, index, "lease_seconds") < 0
            assert np.array_equal(client.get(keys).data, blocks_for(keys))
            located = client.lookup(keys, lease_ms=1_000)
            assert located.found.all()
            assert not located.leased
            assert client.get(located).found.all()
            etcd.start()
            until(lambda: _puts(client), "the shard does not come back by itself")
            assert epoch_of(client) == 2  # nobody took its keys: it is the member that it was
            assert client.get(keys).found.all()
        assert "etcd answers again" in cluster.log(index)


def _refused(client: SyncClient) -> OwnerLapsed:
    few = [some_keys(2, 10_000 + seed) for seed in range(20)]  # few: they must not evict what the test reads
    for turn in range(10_000):
        try:
            client.put(few[turn % 20], blocks_for(few[turn % 20]))
        except OwnerLapsed as error:
            return error
        time.sleep(0.005)
    raise AssertionError("puts go on without etcd")


def _puts(client: SyncClient) -> bool:
    try:
        client.put(some_keys(2, 9), blocks_for(some_keys(2, 9)))
    except OwnerLapsed:
        return False
    return True


async def test_keys_of_a_stopped_shard_have_no_second_owner_before_its_lease_has_ended(etcd: EtcdServer) -> None:
    keys = some_keys(100, 3)
    long = {0: {"lease": "60s"}}  # it does not end while this runs
    async with shards(1, etcd, "owners", own=long) as old:
        client = await Client.connect(etcd.target("owners"), LAYOUT)
        await client.put(keys, blocks_for(keys))
        old.kill(0, signal.SIGSTOP)
        async with client, shards(1, etcd, "owners") as new:
            moving = Client.connect(etcd.target("owners"), LAYOUT, deadline_ms=int(WAIT_S * 1000))
            addressed = membership_of(etcd.target("owners"), Access())
            view = await addressed.view(Deadline(5_000))
            await addressed.close()
            assert view.homes is not None
            moved = keys[view.homes.home(keys) == 1]
            assert len(moved)
            # Straight at the new shard, past a client's placement: it is not sure yet that the old one has stopped.
            refused = await _put_at(new, moved)
            assert isinstance(refused, EpochStale)
            assert "handed over" in str(refused)
            old.kill(0, signal.SIGCONT)
            async with await moving as other:
                await other.put(keys, blocks_for(keys))
                assert (await other.get(keys)).found.all()
            assert np.array_equal((await client.get(keys)).data, blocks_for(keys))


async def _put_at(cluster: LocalCluster, keys: Keys) -> StoreError | None:
    """What a shard answers to a put of these keys, whatever the members are."""
    from kvstore.client_base import ClientBase
    from kvstore.header import sums
    from kvstore.link import Link
    from kvstore.staging import Staging

    base = ClientBase(LAYOUT, deadline_ms=5_000, verify=True, staging=Staging(LAYOUT, len(keys)))
    link = Link(cluster.addresses[0], LAYOUT, base._transport, base.clock, "straight", lambda _: None)
    try:
        run = await base.staging.take(len(keys), Deadline(1_000))
        run.data[:] = blocks_for(keys)
        chains = np.ascontiguousarray(keys).view(np.uint8).reshape(len(keys), 32)[:, :24]
        valid = np.full(len(keys), LAYOUT.block_tokens, np.int64)
        await link.call(Put(keys, run.slots, sums(run.data), valid, chains), Deadline(5_000), ticket=1)
    except StoreError as error:
        return error
    finally:
        await link.drop()
        base.staging.close()
    return None


def test_a_shard_that_sleeps_over_its_lease_comes_back_empty_and_under_another_name(etcd: EtcdServer) -> None:
    keys = some_keys(200, 4)
    with shards(2, etcd, "sleeper") as cluster, SyncClient(etcd.target("sleeper"), LAYOUT) as client:
        client.put(keys, blocks_for(keys))
        before = home(client, keys)
        sleeper = index_of(cluster, 1)
        cluster.kill(sleeper, signal.SIGSTOP)
        until(lambda: epoch_of(client) == 2, "the stopped shard is not struck off")
        assert np.array_equal(client.get(keys).found, before == 0)
        cluster.kill(sleeper, signal.SIGCONT)
        until(lambda: epoch_of(client) == 3, "it does not come back")
        assert len(client.client.shards) == 2
        found = client.get(keys)
        assert not found.found[home(client, keys) == 1].any()  # whatever it held may be old
        client.put(keys, blocks_for(keys))
        assert np.array_equal(client.get(keys).data, blocks_for(keys))
        assert "is a member again, in epoch 3" in cluster.log(sleeper)


async def test_a_client_whose_watch_is_broken_is_told_by_the_shards(etcd: EtcdServer) -> None:
    keys = some_keys(200, 5)
    async with shards(1, etcd, "told") as _, await Client.connect(etcd.target("told"), LAYOUT) as client:
        follower = client.follower
        assert follower is not None
        await client.put(keys, blocks_for(keys))

        async def deaf(_than: object) -> Any:
            await asyncio.Event().wait()

        follower._membership.newer = deaf  # type: ignore[method-assign,assignment]
        follower._told.set()  # the watch that runs now ends
        async with shards(1, etcd, "told"):
            assert follower.view.epoch == 1
            # Once the old home has taken up the epoch it refuses them, and they are sent to the new one.
            async with asyncio.timeout(30):
                while follower.view.epoch == 1:
                    await client.put(keys, blocks_for(keys))
                    await asyncio.sleep(0.02)
            assert follower.view.epoch == 2
            assert np.array_equal((await client.get(keys)).data, blocks_for(keys))


def test_who_does_not_fit_or_finds_no_etcd_is_refused_in_one_line(etcd: EtcdServer) -> None:
    serve = ["serve", "--blocks", "4", "--metrics-port", "-1", "--listen", "127.0.0.1:0"]
    with shards(1, etcd, "fits"):
        here = ["--etcd", etcd.url, "--cluster", "fits"]
        for words, why in (
            ([*here, "--layout", LAYOUT.as_json(), "--layers", "3"], "layout field 'layers': store has 2, client 3"),
            ([*here, "--layout", LAYOUT.as_json(), "--placement", "head-group"], "placement is uniform"),
            (["--etcd", etcd.url], "belong together"),
            (["--etcd", etcd.url, "--cluster", "a/b"], "is no name of a store"),
            (["--etcd", f"http://127.0.0.1:{free_port()}", "--cluster", "x"], "cannot register: etcd at"),
            (["--etcd", "127.0.0.1:2379", "--cluster", "x"], "is no address of etcd"),
            (["--etcd", "http://192.0.2.1:2379", "--cluster", "x"], "not on loopback: use TLS"),
            ([*here, "--lease", "500ms"], "two seconds"),
        ):
            code, said = command(*serve, *words)
            assert (code, len(said.splitlines())) == (2, 1), said
            assert why in said
    with pytest.raises(ShardUnavailable, match="no store 'nobody' is registered"):
        SyncClient(etcd.target("nobody"), LAYOUT, deadline_ms=3_000)
    with pytest.raises(ShardUnavailable, match=r"etcd at .*Connection refused"):
        SyncClient(f"etcd://127.0.0.1:{free_port()}/x", LAYOUT, deadline_ms=3_000)


def test_the_replay_finds_the_store_there(etcd: EtcdServer) -> None:
    layout = trace_layout(512, None)
    dead = f"127.0.0.1:{free_port()}"  # of several endpoints one may be gone
    with LocalCluster(2, layout, 256, etcd=f"http://{dead},{etcd.url}", cluster="replay", lease="2s"):
        target = etcd.target("replay").replace("etcd://", f"etcd://{dead},")
        code, said = command("replay", "--connect", target, "--limit", "20", "--json")
    assert (code, said) == (0, "")


def test_etcd_and_shards_by_tls(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.serve("shard")
    pem = {end: str(tmp_path / f"shard.{end}") for end in ("pem", "key")}
    options = ["--cert-file", pem["pem"], "--key-file", pem["key"], "--client-cert-auth"]
    options += ["--trusted-ca-file", str(tmp_path / "ca.pem")]
    keys = some_keys(20, 6)
    with EtcdServer(tmp_path, *options, scheme="https") as etcd, shards(1, etcd, "tls", **files.options):
        with SyncClient(etcd.target("tls"), LAYOUT, access=files.access()) as client:
            client.put(keys, blocks_for(keys))
            assert client.get(keys).found.all()
        with pytest.raises(BadRequest, match="give --tls-ca"):
            SyncClient(etcd.target("tls"), LAYOUT)
