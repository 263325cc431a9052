"""The series of a shard's page, section by section, as `docs/store.md` lists them ("What /metrics says")."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from prometheus_client import Metric

from kvstore.meters import OTHER_CLASS, Meters, SessionMeters
from kvstore.page.families import Families
from kvstore.page.figures import IDLE_QUANTILES, Identity, LogFigures, PoolFigures, SessionFigures, Snapshot
from kvstore.page.reduce import block_map, blocks_by_run
from kvstore.pool import State


def sections(snapshot: Snapshot, meters: Meters) -> Iterator[Metric]:
    """All families of the store; `snapshot` was read in the shard's thread, `meters` may be read from any."""
    identity = snapshot.identity
    plain = Families({"shard": identity.shard})
    model = Families({"shard": identity.shard, "model_name": identity.model_name})
    yield from _identity(identity, plain)
    yield from _pool(snapshot.pool, identity, model)
    yield from _lookups(snapshot, meters, model)
    yield from _operations(meters, plain)
    yield from _writes(meters, plain)
    yield from _evictions(meters, model)
    yield from _reads(meters, plain)
    if any(way.transport == "nixl" for way in identity.transports):
        yield from _transfers(meters, plain)
    yield from _sessions(snapshot.sessions, meters, model)
    yield from _leases(snapshot, meters, plain)
    if snapshot.log is not None:
        yield from _log(snapshot.log, meters, plain)
    yield from _device(snapshot.pool, meters, plain)
    yield from _others(snapshot, plain)


def _identity(identity: Identity, plain: Families) -> Iterator[Metric]:
    labels = {
        "version": identity.version,
        "model_name": identity.model_name,
        "dtype": identity.dtype,
        "block_tokens": str(identity.block_tokens),
        "window_tokens": str(identity.window_tokens),
        "placement": identity.placement,
        "durability": identity.durability,
        "layout": identity.layout,
    }
    yield plain.info("kv_store", "What this shard stores, and how.", [labels])
    ways = [{"transport": way.transport, "lane": way.lane, "device": way.device} for way in identity.transports]
    if ways:
        yield plain.info("kv_transport", "The transport in use.", ways)


def _pool(pool: PoolFigures, identity: Identity, model: Families) -> Iterator[Metric]:
    count = len(pool.states)
    by_state = np.bincount(pool.states, minlength=len(State)).tolist()
    states = {state.name.lower(): by_state[state] for state in State}
    yield model.gauges("kv_pool_blocks", "Blocks by state: leased before used before cached.", "state", states)
    yield model.gauge("kv_pool_capacity_blocks", "All blocks of the pool.", count)
    if count:
        taken = states["reserved"] + states["used"] + states["leased"]
        yield model.gauge("kv_pool_usage_ratio", "Share of blocks that no put can have.", taken / count)
    yield model.gauge("kv_pool_bytes", "Size of the pool's data.", count * identity.block_bytes)
    yield model.gauge("kv_block_bytes", "Data of one block.", identity.block_bytes)
    yield model.gauge("kv_block_tokens", "Token slots of one block.", identity.block_tokens)
    published = pool.valid >= 0
    valid = int(pool.valid[published].sum())
    waste = int(published.sum()) * identity.block_tokens - valid
    slots = {"valid": valid, "tail_waste": waste}
    yield model.gauges("kv_pool_token_slots", "Token slots of published blocks, filled or empty.", "state", slots)
    runs = pool.free_runs
    yield model.gauge("kv_pool_free_runs", "Runs of free blocks.", len(runs))
    longest = int(runs.max(initial=0))
    yield model.gauge("kv_pool_largest_free_run_blocks", "Blocks of the longest run of free blocks.", longest)
    by_run = blocks_by_run(runs)
    yield model.gauges("kv_pool_free_blocks_by_run", "Free blocks by the length of their run.", "run", by_run)
    fill = np.where(published, pool.valid / identity.block_tokens, np.nan)
    cells, cell_blocks = block_map(pool.states, fill)
    text = "What most blocks of a cell are: 0 free, 1 cached, 2 used, 3 leased, 4 tail waste, 5 reserved."
    rows = {f"{cell:03d}": code for cell, code in enumerate(cells.tolist())}
    yield model.gauges("kv_block_map", text, "cell", rows)
    yield model.gauge("kv_block_map_cell_blocks", "Blocks in one cell of the map.", cell_blocks)


def _lookups(snapshot: Snapshot, meters: Meters, model: Families) -> Iterator[Metric]:
    yield model.counters("kv_lookup_blocks", "Blocks looked up.", "result", dict(meters.lookup_blocks))
    text = "Blocks not found, by what became of them."
    yield model.counters("kv_lookup_misses", text, "reason", dict(meters.lookup_misses))
    if snapshot.traffic.hot_key_share is not None:
        text = "Share of the last interval's lookups that asked for the commonest chain."
        yield model.gauge("kv_hot_key_share_ratio", text, snapshot.traffic.hot_key_share)


def _operations(meters: Meters, plain: Families) -> Iterator[Metric]:
    operations = meters.operations
    rows = [((name, result), n) for name, found in operations.items() for result, n in found.results.items()]
    yield plain.simple(
        "counter", "kv_operations", "Operations by how they ended.", ("op", "result"), rows, suffix="_total"
    )
    seconds = {name: found.seconds for name, found in operations.items()}
    yield plain.histograms("kv_operation_seconds", "Arrival of a request to its answer.", "op", seconds)
    running = {name: found.inflight for name, found in operations.items()}
    yield plain.gauges("kv_inflight_operations", "Operations that run.", "op", running)
    yield plain.counter("kv_busy_seconds", "Time in which the shard worked on operations.", meters.busy_seconds)


def _writes(meters: Meters, plain: Families) -> Iterator[Metric]:
    yield plain.counter("kv_put_blocks", "Blocks published.", meters.put_blocks)
    yield plain.counter("kv_put_bytes", "Bytes published.", meters.put_bytes)
    yield plain.histograms("kv_put_stage_seconds", "Stages of a put.", "stage", meters.put_stage_seconds)
    yield plain.counters("kv_put_refusals", "Puts refused, by reason.", "reason", dict(meters.put_refusals))
    yield plain.histogram("kv_allocation_runs", "Runs that one allocation was made of.", meters.allocation_runs)
    yield plain.counter("kv_allocation_blocks", "Blocks allocated.", meters.allocation_blocks)
    yield plain.counter("kv_allocations", "Allocations.", meters.allocations)


def _evictions(meters: Meters, model: Families) -> Iterator[Metric]:
    text = "Blocks evicted for want of room, or to make a run."
    yield model.counters("kv_evicted_blocks", text, "reason", dict(meters.evicted_blocks))
    idle, gap = meters.block_idle_before_evict_seconds, meters.block_reuse_gap_seconds
    yield model.histogram("kv_block_idle_before_evict_seconds", "Time unused before eviction, a block.", idle)
    yield model.histogram("kv_block_reuse_gap_seconds", "Time between two uses of a block.", gap)


def _reads(meters: Meters, plain: Families) -> Iterator[Metric]:
    yield plain.counter("kv_reads", "One-sided batch reads, as clients report them.", meters.reads)
    text = "Blocks of those reads, by how they were found."
    yield plain.counters("kv_read_blocks", text, "result", dict(meters.read_blocks))
    yield plain.counter("kv_read_bytes", "Bytes of those reads.", meters.read_bytes)
    yield plain.histogram("kv_read_seconds", "One batch get, as clients report it.", meters.read_seconds)
    yield plain.counter("kv_read_descriptors", "Runs that those reads were made of.", meters.read_descriptors)


def _transfers(meters: Meters, plain: Families) -> Iterator[Metric]:
    text = "Descriptors of one transfer that the shard asked for: runs of slots."
    yield plain.histogram("kv_transfer_descriptors", text, meters.transfer_descriptors)
    yield plain.histogram("kv_transfer_bytes", "Bytes of one such transfer.", meters.transfer_bytes)
    yield plain.histogram("kv_transfer_seconds", "One such transfer, asked to ended.", meters.transfer_seconds)


def _sessions(figures: tuple[SessionFigures, ...], meters: Meters, model: Families) -> Iterator[Metric]:
    known = dict(list(meters.sessions.items()))
    live = _by_class(figures, known)
    classes = sorted({*known, *live})
    states = [((name, "active"), live[name].active if name in live else 0) for name in classes]
    states += [((name, "idle"), live[name].idle if name in live else 0) for name in classes]
    yield model.simple("gauge", "kv_sessions", "Live sessions.", ("session_class", "state"), states)
    blocks = {name: live[name].blocks if name in live else 0 for name in classes}
    yield model.gauges("kv_session_blocks", "Blocks that sessions hold.", "session_class", blocks)
    ttl = {name: found.ttl_s for name, found in live.items()}
    yield model.gauges("kv_session_ttl_seconds", "Idle time after which a session ends.", "session_class", ttl)
    idle = [
        ((name, str(q)), float(np.quantile(found.idle_s, q)))
        for name, found in live.items()
        for q in IDLE_QUANTILES
        if len(found.idle_s)
    ]
    text = "Time since the last use of live sessions."
    yield model.simple("summary", "kv_session_idle_seconds", text, ("session_class", "quantile"), idle)
    yield from _session_counters(known, model)


def _session_counters(known: dict[str, SessionMeters], model: Families) -> Iterator[Metric]:
    opened = {name: found.opened for name, found in known.items()}
    yield model.counters("kv_sessions_opened", "Sessions opened.", "session_class", opened)
    closed = [((name, reason), n) for name, found in known.items() for reason, n in found.closed.items()]
    labels = ("session_class", "reason")
    yield model.simple("counter", "kv_sessions_closed", "Sessions ended.", labels, closed, suffix="_total")
    returns = [((name, result), n) for name, found in known.items() for result, n in found.returns.items()]
    text, labels = "Sessions asked for again; expired: their TTL had ended.", ("session_class", "result")
    yield model.simple("counter", "kv_session_returns", text, labels, returns, suffix="_total")
    gaps = {name: found.return_gap_seconds for name, found in known.items()}
    yield model.histograms("kv_session_return_gap_seconds", "Idle time before such a return.", "session_class", gaps)


def _by_class(figures: tuple[SessionFigures, ...], known: dict[str, SessionMeters]) -> dict[str, SessionFigures]:
    """Figures under the classes that the meters count; the others together, as there."""
    found: dict[str, SessionFigures] = {}
    for one in figures:
        name = one.session_class if one.session_class in known or OTHER_CLASS not in known else OTHER_CLASS
        before = found.get(name)
        if before is not None:
            one = SessionFigures(
                name,
                before.active + one.active,
                before.idle + one.idle,
                before.blocks + one.blocks,
                max(before.ttl_s, one.ttl_s),
                np.concatenate([before.idle_s, one.idle_s]),
            )
        found[name] = one
    return found


def _leases(snapshot: Snapshot, meters: Meters, plain: Families) -> Iterator[Metric]:
    yield plain.gauge("kv_leases", "Leases that run.", snapshot.traffic.leases)
    yield plain.gauge("kv_pins", "Pins that are held.", snapshot.traffic.pins)
    yield plain.counter("kv_leases_granted", "Leases granted.", meters.leases_granted)
    yield plain.counter("kv_leases_expired", "Leases that ended unreleased.", meters.leases_expired)


def _log(log: LogFigures, meters: Meters, plain: Families) -> Iterator[Metric]:
    yield plain.histogram("kv_wal_flush_seconds", "One flush of the log.", meters.wal_flush_seconds)
    yield plain.histogram("kv_wal_group_records", "Records that one flush made durable.", meters.wal_group_records)
    yield plain.counter("kv_wal_written_bytes", "Bytes written, rewrites included.", meters.wal_written_bytes)
    text = "Bytes whose durability was acknowledged."
    yield plain.counter("kv_wal_acknowledged_bytes", text, meters.wal_acknowledged_bytes)
    text = "Bytes of live records moved to recycle their segment."
    yield plain.counter("kv_wal_rewritten_bytes", text, meters.wal_rewritten_bytes)
    yield plain.gauge("kv_wal_pending_records", "Records that wait for their flush.", log.pending_records)
    segments = {"active": log.active_segments, "sealed": log.sealed_segments, "spare": log.spare_segments}
    yield plain.gauges("kv_wal_segments", "Segments of the log.", "state", segments)
    yield plain.counters("kv_wal_failures", "Failed writes and flushes.", "operation", dict(meters.wal_failures))


def _device(pool: PoolFigures, meters: Meters, plain: Families) -> Iterator[Metric]:
    reads = {site: n + pool.device_reads.get(site, 0) for site, n in meters.device_reads.items()}
    seconds = {site: s + pool.sync_seconds.get(site, 0.0) for site, s in meters.sync_seconds.items()}
    yield plain.counters("kv_device_reads", "Host reads of device state.", "site", reads)
    yield plain.counters("kv_sync_seconds", "Time that those reads held up the step.", "site", seconds)
    if meters.device_uploads:
        sent, took = dict(meters.device_upload_bytes), dict(meters.device_upload_seconds)
        yield plain.counters(
            "kv_device_uploads", "Uploads of state to the device.", "site", dict(meters.device_uploads)
        )
        yield plain.counters("kv_device_upload_bytes", "Bytes of those uploads.", "site", sent)
        yield plain.counters("kv_device_upload_seconds", "Time that they held up the step.", "site", took)


def _others(snapshot: Snapshot, plain: Families) -> Iterator[Metric]:
    traffic, peers = snapshot.traffic, snapshot.peers
    yield plain.gauge("kv_clients", "Connected clients.", traffic.clients)
    if traffic.client_heartbeat_age_s is not None:
        text = "Age of the oldest client's heartbeat."
        yield plain.gauge("kv_client_heartbeat_age_seconds", text, traffic.client_heartbeat_age_s)
    if traffic.refusals:
        text = "Connections and calls that were not let in."
        yield plain.counters("kv_refusals", text, "reason", dict(traffic.refusals))
    if traffic.bandwidths:
        text = "How fast a client reads this pool, by one copy when it connected."
        rows = list(traffic.bandwidths.items())
        yield plain.simple("gauge", "kv_peer_bandwidth_bytes_per_second", text, ("peer", "lane"), rows)
    if traffic.epoch:
        yield plain.gauge("kv_membership_epoch", "Changes of membership so far.", traffic.epoch)
        text = "Left of the shard's own lease; below 0 it is over, and nothing is published."
        yield plain.gauge("kv_membership_lease_seconds", text, traffic.lease_left_s)
    if not peers:
        return
    yield plain.gauges("kv_peer_up", "1 where a peer answers.", "peer", {p.peer: float(p.up) for p in peers})
    ages = {p.peer: p.heartbeat_age_s for p in peers if p.heartbeat_age_s is not None}
    yield plain.gauges("kv_peer_heartbeat_age_seconds", "Age of a peer's heartbeat.", "peer", ages)
    pending = {p.peer: p.pending_operations for p in peers}
    yield plain.gauges("kv_peer_pending_operations", "Calls to a peer without an answer yet.", "peer", pending)
