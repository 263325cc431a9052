"""One trouble of a KV store each. Which shard or session class it strikes is the seed's choice."""

from __future__ import annotations

from dataclasses import replace

from .scenarios import Cast, Stage, Truth, scenario
from .store_scenes import USUAL, StoreSet
from .workload import Lengths


@scenario("store-external-fragmentation")
def external_fragmentation(cast: Cast) -> Stage:
    """Held blocks lie one by one all over the pool; a window needs a run."""
    made = StoreSet(cast, replace(USUAL, one_run=True))
    step = cast.rng.randint(18, 30)

    def scatter(now: float) -> None:
        pool = made.shard.pool
        for first in range(step, pool.capacity, step):
            if pool.bitmap[first] == 0:
                chunk = pool.store(f"{made.kind.name}/hole/{first}", pool.block_tokens, 0, now)
                pool.bitmap[chunk.runs[0][0]] = 0
                pool.bitmap[first] = 1
                chunk.runs = [(first, 1)]

    truth = made.on_shard(
        "external-fragmentation", None, "no run of a window's length is left among plenty of free blocks"
    )
    return made.stage(truth, events=[(-179.9, scatter)], warm_s=180.0)


@scenario("store-bitmap-sync")
def bitmap_sync(cast: Cast) -> Stage:
    made = StoreSet(cast)
    made.reconfigure(naive_bitmap=True)
    return made.stage(made.on_shard("bitmap-sync", None, "every allocation waits while the host reads the bitmap"))


@scenario("store-wal-stall")
def wal_stall(cast: Cast) -> Stage:
    made = StoreSet(cast, replace(USUAL, durable=True))
    delay = cast.rng.uniform(0.015, 0.06)

    def slow(_now: float) -> None:
        made.shard.trouble.flush_extra = delay

    truth = made.on_shard("wal-stall", made.onset, f"a flush takes {delay * 1000:.0f} ms more")
    return made.stage(truth, events=[(made.onset, slow)])


@scenario("store-wal-stall-bursts")
def wal_stall_bursts(cast: Cast) -> Stage:
    made = StoreSet(cast, replace(USUAL, durable=True))

    def slow(_now: float) -> None:
        made.shard.trouble.flush_extra, made.shard.trouble.flush_share = 0.35, 0.08

    return made.stage(made.on_shard("wal-stall", made.onset, "one flush in twelve stalls"), events=[(made.onset, slow)])


@scenario("store-session-leak")
def session_leak(cast: Cast) -> Stage:
    made = StoreSet(cast, replace(USUAL, blocks=24_576))
    share = cast.rng.uniform(0.4, 0.7)

    def leak(_now: float) -> None:
        made.kind.closes = 1.0 - share

    truth = made.on_class("session-leak", made.onset, f"{share:.0%} of the conversations never close their session")
    return made.stage(truth, seconds=600.0, events=[(made.onset, leak)])


@scenario("store-ttl-too-short")
def ttl_too_short(cast: Cast) -> Stage:
    made = StoreSet(cast)
    made.kind.ttl = cast.rng.uniform(0.3, 0.7) * made.kind.think.mean
    return made.stage(made.on_class("ttl-too-short", None, f"sessions end after {made.kind.ttl:.0f} s"))


@scenario("store-hot-shard")
def hot_shard(cast: Cast) -> Stage:
    """One chain is asked for far more often than any other, and lives on one shard."""
    made = StoreSet(cast)
    rng = cast.rng
    stage = made.stage(Truth("hot-shard"))
    fleet = stage.fleet
    keys = (f"{made.kind.name}/hot/{i}" for i in range(1000))
    key = next(k for k in keys if fleet.clients.placed(k) is made.shard)  # type: ignore[attr-defined]

    def heat(_now: float) -> None:
        fleet.hot = (key, 512, rng.uniform(45, 80))  # type: ignore[attr-defined]

    fleet.hot = (key, 512, 0.0)  # type: ignore[attr-defined]
    fleet.events.append((made.onset, heat))  # type: ignore[attr-defined]
    stage.truth = made.on_shard("hot-shard", made.onset, "one chain takes most of its lookups")
    return stage


@scenario("store-stalled-shard")
def stalled_shard(cast: Cast) -> Stage:
    """The process is stopped: its sockets accept, nothing answers, and its own page neither."""
    made = StoreSet(cast)

    def stop(now: float) -> None:
        made.shard.trouble.stopped_at = now

    return made.stage(made.on_shard("stalled-shard", made.onset, "SIGSTOP"), events=[(made.onset, stop)])


@scenario("store-stalled-loop")
def stalled_loop(cast: Cast) -> Stage:
    """The page is served by another thread and still answers; no operation does."""
    made = StoreSet(cast)

    def stop(_now: float) -> None:
        made.shard.trouble.stuck = True

    return made.stage(made.on_shard("stalled-shard", made.onset, "its loop hangs"), events=[(made.onset, stop)])


@scenario("store-crash")
def crash(cast: Cast) -> Stage:
    made = StoreSet(cast)

    def die(now: float) -> None:
        made.shard.trouble.dead_at = now

    return made.stage(
        made.on_shard("engine-crash", made.onset, "kill -9, and nobody restarts it"), events=[(made.onset, die)]
    )


@scenario("store-page-gone")
def page_gone(cast: Cast) -> Stage:
    """Its peers still talk to it; only its page is gone."""
    made = StoreSet(cast)

    def hide(_now: float) -> None:
        made.shard.trouble.page_gone = True

    truth = replace(made.on_shard("source-blind", made.onset, ""), member={"instance": made.shard.instance})
    return made.stage(truth, events=[(made.onset, hide)])


@scenario("store-capacity-exhausted")
def capacity_exhausted(cast: Cast) -> Stage:
    """Live sessions need more than one shard's pool holds."""
    made = StoreSet(cast)
    made.reconfigure(blocks=1280)
    return made.stage(made.on_shard("kv-capacity-exhausted", None, "its pool is a twelfth of the others'"))


@scenario("store-internal-fragmentation")
def internal_fragmentation(cast: Cast) -> Stage:
    """Blocks of a whole window, and short texts."""
    made = StoreSet(cast, replace(USUAL, block_tokens=512, blocks=512))
    for kind in made.classes:
        kind.first, kind.turn, kind.shared = Lengths(150, 0.5, 16, 480), Lengths(40, 0.5, 4, 120), 0
        kind.rate *= 2.2
    truth = Truth("internal-fragmentation", {}, None, why="a block of 512 tokens holds a text of 150")
    return made.stage(truth, warm_s=400.0)


@scenario("store-prefix-capacity-miss")
def prefix_capacity_miss(cast: Cast) -> Stage:
    """Users come back without a session, after their blocks were evicted."""
    made = StoreSet(cast, replace(USUAL, blocks=3072))
    for kind in made.classes:
        kind.keeps = False
        kind.think = Lengths(40, 0.6, 5, 200)
    return made.stage(
        Truth("prefix-capacity-miss", {}, None, why="the pool holds half a minute of new blocks"), warm_s=240.0
    )


@scenario("store-pool-leak")
def pool_leak(cast: Cast) -> Stage:
    """A client died and left its pins; nobody uses the store now."""
    made = StoreSet(cast)

    def leave(now: float) -> None:
        pool = made.shard.pool
        for number in range(120):
            pool.store(f"{made.kind.name}/pinned/{number}", 512, None, now).pins = 1
        for kind in made.classes:
            kind.scale = 0.0
        for shard in made.shards:
            shard.clients = 0

    return made.stage(made.on_shard("pool-leak", None, "pins of a client that is gone"), events=[(-150.0, leave)])


@scenario("store-slow-host")
def slow_host(cast: Cast) -> Stage:
    """Everything on one shard takes twenty times as long: no cause of the store."""
    made = StoreSet(cast)

    def slow(_now: float) -> None:
        made.shard.trouble.slow = 20.0

    return made.stage(Truth("unknown"), events=[(made.onset, slow)])


@scenario("store-over-tcp")
def over_tcp(cast: Cast) -> Stage:
    """The other shards of the host are read over a faster lane; this one may only use TCP."""
    made = StoreSet(cast, replace(USUAL, lane="cma"))
    made.reconfigure(lane="tcp")
    return made.stage(made.on_shard("wrong-transport", None, "UCX_TLS=tcp in its environment"))


@scenario("store-healthy-tcp")
def tcp_everywhere(cast: Cast) -> Stage:
    """All shards are read over TCP, and nothing says that there is anything faster."""
    return StoreSet(cast, replace(USUAL, lane="tcp")).stage(Truth("healthy"))


@scenario("store-scattered")
def scattered(cast: Cast) -> Stage:
    """A shard's windows were put out of order: each block is read by itself."""
    made = StoreSet(cast, replace(USUAL, lane="cma", blocks=65_536), rate=4.0)
    made.reconfigure(scattered=True)
    return made.stage(made.on_shard("descriptor-explosion", None, "windows whose blocks lie in no order"))
