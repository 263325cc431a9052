"""The page of a simulated store shard, family by family as docs/store.md lists them (without the block map)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .exposition import Family, LabelPairs, merged
from .store_meters import TABLE_SITE, ClassMeters, ShardMeters
from .store_pool import StorePool
from .store_shard import BLOCK_BYTES, Session, StoreShard

WINDOW_TOKENS = 512
RUN_CLASSES = (("1", 1, 1), ("2-3", 2, 3), ("4-7", 4, 7), ("8-15", 8, 15), ("16-31", 16, 31), ("32+", 32, 10**9))


def shard_families(shard: StoreShard, model: str, now: float, epoch: float, peers: Mapping[str, Peer]) -> list[Family]:
    """Everything that one scrape of a shard reads at ``now`` (seconds; ``epoch`` is the Unix time of 0)."""
    own: LabelPairs = (("shard", shard.name),)
    labels: LabelPairs = (("model_name", model), ("shard", shard.name))
    families = [
        _info(shard, labels),
        _transports(shard, own),
        *_pool(shard.pool, shard.pool.states(now), labels, own),
        *_lookups(shard, labels, own),
        *_operations(shard, now, own),
        *_puts(shard.meters, own),
        *_log(shard, own),
        *_sessions(shard, now, labels),
        *_leases(shard, now, own),
        *_peers(peers, own),
    ]
    return [f for f in families if f.samples] + _process(shard, epoch)


class Peer:
    """What a shard knows of another: ``age`` of its last heartbeat (seconds), calls that it has not answered."""

    __slots__ = ("age", "pending", "up")

    def __init__(self, age: float, pending: int, *, up: bool) -> None:
        self.age, self.pending, self.up = age, pending, up


def _info(shard: StoreShard, labels: LabelPairs) -> Family:
    config = shard.config
    told = (
        ("version", "0.2.0"), ("dtype", "bfloat16"), ("block_tokens", str(config.block_tokens)),
        ("window_tokens", str(WINDOW_TOKENS)), ("placement", "window"),
        ("durability", "log+sync" if config.durable else "none"), ("layout", "5d3c1f0a9be27746"),
    )  # fmt: skip
    return _gauge("kv_store_info", 1.0, merged(labels, *told))


def _transports(shard: StoreShard, own: LabelPairs) -> Family:
    ways = [("mapped", "memfd"), *([("nixl", shard.config.lane)] if shard.config.lane else [])]
    family = Family("kv_transport_info", "gauge", "kv_transport_info")
    for transport, lane in ways:
        family = family.one(1.0, merged(own, ("transport", transport), ("lane", lane), ("device", "")))
    return family


def _gauge(name: str, value: float, labels: LabelPairs) -> Family:
    return Family(name, "gauge", name).one(value, labels)


def _counter(name: str, value: float, labels: LabelPairs) -> Family:
    return Family(name, "counter", name).one(value, labels)


def _split(name: str, kind: str, label: str, values: Mapping[str, float], labels: LabelPairs) -> Family:
    return Family(name, kind, name).split(label, values, labels)


def _pool(pool: StorePool, states: Mapping[str, float], labels: LabelPairs, own: LabelPairs) -> Iterable[Family]:
    runs = [length for _first, length in pool.free_runs()]
    by_run = {name: float(sum(n for n in runs if low <= n <= high)) for name, low, high in RUN_CLASSES}
    taken = states["reserved"] + states["used"] + states["leased"]
    block_bytes = BLOCK_BYTES * pool.block_tokens // 16
    yield _split("kv_pool_blocks", "gauge", "state", states, labels)
    yield _gauge("kv_pool_usage_ratio", taken / pool.capacity, labels)
    yield _gauge("kv_pool_capacity_blocks", float(pool.capacity), labels)
    yield _gauge("kv_pool_bytes", float(pool.capacity * block_bytes), labels)
    yield _gauge("kv_block_bytes", float(block_bytes), labels)
    yield _gauge("kv_block_tokens", float(pool.block_tokens), labels)
    yield _split("kv_pool_token_slots", "gauge", "state", pool.token_slots(), labels)
    yield _gauge("kv_pool_free_runs", float(len(runs)), labels)
    yield _gauge("kv_pool_largest_free_run_blocks", float(max(runs, default=0)), labels)
    yield _split("kv_pool_free_blocks_by_run", "gauge", "run", by_run, labels)
    meters = pool.meters
    yield Family("kv_allocation_runs", "histogram", "Runs of one allocation").histogram(meters.allocation_runs, own)
    yield _counter("kv_allocations", meters.allocations, own)
    yield _counter("kv_allocation_blocks", meters.allocation_blocks, own)
    yield _split("kv_evicted_blocks", "counter", "reason", meters.evicted_blocks, labels)
    for name, meter in (
        ("kv_block_idle_before_evict_seconds", meters.idle_before_evict),
        ("kv_block_reuse_gap_seconds", meters.reuse_gap),
    ):
        yield Family(name, "histogram", name).histogram(meter, labels)


def _lookups(shard: StoreShard, labels: LabelPairs, own: LabelPairs) -> Iterable[Family]:
    meters = shard.meters
    yield _split("kv_lookup_blocks", "counter", "result", meters.lookup_blocks, labels)
    yield _split("kv_lookup_misses", "counter", "reason", meters.lookup_misses, labels)
    yield _gauge("kv_hot_key_share_ratio", shard.hot_share(), own)
    yield _counter("kv_reads", meters.reads, own)
    yield _split("kv_read_blocks", "counter", "result", meters.read_blocks, own)
    yield _counter("kv_read_bytes", meters.read_blocks["ok"] * BLOCK_BYTES, own)
    yield Family("kv_read_seconds", "histogram", "One batch get").histogram(meters.read_seconds, own)
    yield _counter("kv_read_descriptors", meters.read_descriptors, own)


def _operations(shard: StoreShard, now: float, own: LabelPairs) -> Iterable[Family]:
    counted = Family("kv_operations", "counter", "Operations")
    timed = Family("kv_operation_seconds", "histogram", "Arrival to answer")
    for name, results in shard.meters.operations.items():
        counted.split("result", results, merged(own, ("op", name)))
        timed.histogram(shard.meters.operation_seconds[name], merged(own, ("op", name)))
    yield counted
    yield timed
    yield _split("kv_inflight_operations", "gauge", "op", shard.inflight(now), own)
    yield _counter("kv_busy_seconds", shard.meters.busy_seconds, own)
    for name, values in (
        ("kv_device_reads", shard.meters.device_reads),
        ("kv_sync_seconds", shard.meters.sync_seconds),
    ):
        yield _split(name, "counter", "site", values, own)
    if shard.meters.uploads:
        at = merged(own, ("site", TABLE_SITE))
        yield _counter("kv_device_uploads", shard.meters.uploads, at)
        yield _counter("kv_device_upload_bytes", shard.meters.upload_bytes, at)
        yield _counter("kv_device_upload_seconds", shard.meters.upload_seconds, at)


def _puts(meters: ShardMeters, own: LabelPairs) -> Iterable[Family]:
    yield _counter("kv_put_blocks", meters.put_blocks, own)
    yield _counter("kv_put_bytes", meters.put_blocks * BLOCK_BYTES, own)
    stages = Family("kv_put_stage_seconds", "histogram", "One stage of a put")
    for stage, meter in meters.put_stage.items():
        stages.histogram(meter, merged(own, ("stage", stage)))
    yield stages
    yield _split("kv_put_refusals", "counter", "reason", meters.put_refusals, own)


def _log(shard: StoreShard, own: LabelPairs) -> Iterable[Family]:
    meters = shard.meters
    yield Family("kv_wal_flush_seconds", "histogram", "One flush").histogram(meters.flush_seconds, own)
    yield Family("kv_wal_group_records", "histogram", "Records of a flush").histogram(meters.group_records, own)
    yield _counter("kv_wal_written_bytes", meters.wal_written, own)
    yield _counter("kv_wal_acknowledged_bytes", meters.wal_acknowledged, own)
    yield _counter("kv_wal_rewritten_bytes", 0.0, own)
    yield _gauge("kv_wal_pending_records", 0.0, own)
    segments = {"active": float(shard.config.durable), "sealed": float(shard.config.durable), "spare": 2.0}
    yield _split("kv_wal_segments", "gauge", "state", segments, own)
    yield _split("kv_wal_failures", "counter", "operation", meters.wal_failures, own)


def _sessions(shard: StoreShard, now: float, labels: LabelPairs) -> Iterable[Family]:
    count = Family("kv_sessions", "gauge", "Sessions")
    blocks = Family("kv_session_blocks", "gauge", "Blocks that sessions hold")
    ttl = Family("kv_session_ttl_seconds", "gauge", "Idle time after which a session ends")
    idle = Family("kv_session_idle_seconds", "gauge", "Age of the last use")
    opened = Family("kv_sessions_opened", "counter", "Sessions opened")
    closed = Family("kv_sessions_closed", "counter", "Sessions that ended")
    returns = Family("kv_session_returns", "counter", "Sessions asked for again")
    gaps = Family("kv_session_return_gap_seconds", "histogram", "Idle time before a return")
    held = _held_by_class(shard)
    for name, meters in shard.meters.classes.items():
        of = merged(labels, ("session_class", name))
        live = [session for session in shard.sessions.values() if session.kind == name]
        resting = sum(session.idle(now) for session in live)
        count.split("state", {"active": float(len(live) - resting), "idle": float(resting)}, of)
        blocks.one(held.get(name, 0.0), of)
        ttl.one(shard.ttl[name], of)
        idle.split("quantile", _idle_quantiles(live, now), of)
        _turnover(meters, of, opened, closed, returns, gaps)
    return [count, blocks, ttl, idle, opened, closed, returns, gaps]


def _held_by_class(shard: StoreShard) -> dict[str, float]:
    """Blocks of this pool by the class of the sessions that hold them (classes of other shards' sessions too)."""
    held: dict[str, float] = {}
    for chunk in shard.pool.chunks.values():
        if chunk.holders:
            kind = chunk.key.split("/", 1)[0]
            held[kind] = held.get(kind, 0.0) + chunk.blocks
    return held


def _idle_quantiles(live: list[Session], now: float) -> dict[str, float]:
    ages = sorted(now - session.last_use for session in live)
    if not ages:
        return {}
    return {name: ages[min(len(ages) - 1, int(float(name) * len(ages)))] for name in ("0.5", "0.9", "1")}


def _turnover(
    meters: ClassMeters, of: LabelPairs, opened: Family, closed: Family, returns: Family, gaps: Family
) -> None:
    opened.one(float(meters.opened), of)
    closed.split("reason", meters.closed, of)
    returns.split("result", meters.returns, of)
    gaps.histogram(meters.return_gap, of)


def _leases(shard: StoreShard, now: float, own: LabelPairs) -> Iterable[Family]:
    chunks = shard.pool.chunks.values()
    running = sum(c.leased_until > now for c in chunks)
    yield _gauge("kv_leases", float(running), own)
    yield _gauge("kv_pins", float(sum(c.pins for c in chunks)), own)
    yield _counter("kv_leases_granted", shard.meters.leases_granted, own)
    yield _counter("kv_leases_expired", max(0, shard.meters.leases_granted - running), own)
    yield _gauge("kv_clients", float(shard.clients), own)
    yield _gauge("kv_client_heartbeat_age_seconds", shard.rng.uniform(0.05, 1.1), own)


def _peers(peers: Mapping[str, Peer], own: LabelPairs) -> Iterable[Family]:
    up = Family("kv_peer_up", "gauge", "1 while the peer answers")
    age = Family("kv_peer_heartbeat_age_seconds", "gauge", "Age of the peer's last heartbeat")
    pending = Family("kv_peer_pending_operations", "gauge", "Calls without an answer yet")
    for name, peer in peers.items():
        of = merged(own, ("peer", name))
        up.one(float(peer.up), of)
        age.one(peer.age, of)
        pending.one(float(peer.pending), of)
    return [up, age, pending]


def _process(shard: StoreShard, epoch: float) -> list[Family]:
    return [
        _gauge("process_resident_memory_bytes", float(round(2.1e8 * shard.rng.gauss(1, 0.004))), ()),
        _gauge("process_start_time_seconds", round(epoch + shard.started, 2), ()),
        _counter("process_cpu_seconds", round(shard.cpu, 2), ()),
    ]
