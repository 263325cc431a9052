"""What a shard counts, and how the end of an operation is told."""

from __future__ import annotations

import pytest

from kvstore import errors
from kvstore.messages import ReadReport
from kvstore.meters import MAX_SESSION_CLASSES, OTHER_CLASS, PUT_REFUSALS, Meters, result_of
from probes.instrument import Instrument, configure


@pytest.mark.parametrize("kind", errors.kinds().values(), ids=lambda kind: kind.__name__)
def test_a_refusal_is_no_error(kind: type[errors.StoreError]) -> None:
    could_not = {errors.StoreError, errors.LogFailed, errors.LogCorrupt, errors.ShardUnavailable, errors.DeviceFailed}
    assert result_of(kind("x")) == ("error" if kind in could_not else "refused")
    assert result_of(OSError("disk")) == "error"


def test_a_put_that_is_refused_is_counted_under_its_reason() -> None:
    meters = Meters()
    meters.refused_put(errors.PoolExhausted("full"))
    meters.refused_put(errors.NoRun("holes"))
    meters.refused_put(errors.NoRun("holes"))
    meters.refused_put(errors.BadRequest("columns"))
    meters.refused_put(OSError("disk"))
    counted = {reason: n for reason, n in meters.put_refusals.items() if n}
    assert counted == {"no_space": 1, "no_run": 2}


def test_every_reason_of_the_page_is_that_of_an_error() -> None:
    assert set(PUT_REFUSALS) <= {kind.reason for kind in errors.kinds().values()}


def test_classes_from_clients_are_bounded() -> None:
    meters = Meters()
    for n in range(MAX_SESSION_CLASSES + 30):
        meters.session(f"class {n}").opened += 1
    meters.session("class 3").opened += 1
    assert len(meters.sessions) == MAX_SESSION_CLASSES + 1
    assert meters.sessions[OTHER_CLASS].opened == 30
    assert meters.sessions["class 3"].opened == 2


def test_a_clients_report_is_added_up() -> None:
    meters = Meters()
    report = ReadReport(
        batches=2, blocks_ok=7, blocks_torn=1, blocks_corrupt=2, bytes=4096, descriptors=3, seconds=(0.001, 0.2)
    )
    meters.add_reads(report)
    meters.add_reads(report)
    assert (meters.reads, meters.read_bytes, meters.read_descriptors) == (4, 8192, 6)
    assert meters.read_blocks == {"ok": 14, "torn": 2, "recycled": 0, "corrupt": 4, "expired": 0}
    assert (meters.read_seconds.count, meters.read_seconds.total) == (4, pytest.approx(0.402))


def test_allocations_and_syncs() -> None:
    meters = Meters()
    meters.allocated(32, 1)
    meters.allocated(32, 9)
    meters.synced("bitmap.count", 0.5)
    assert (meters.allocations, meters.allocation_blocks) == (2, 64)
    assert meters.allocation_runs.total == 10
    assert (meters.device_reads["bitmap.count"], meters.sync_seconds["bitmap.count"]) == (1, 0.5)
    with pytest.raises(KeyError):
        meters.synced("somewhere", 1.0)


def test_a_call_site_counts_by_the_store_s_rule() -> None:
    configure("off")
    meters, site = Meters(), Instrument("kvstore.shard")
    for failure in (errors.PoolExhausted("full"), errors.LogFailed("EIO"), None):
        try:
            with site.span("kv.put", meter=meters.operations["put"]):
                if failure:
                    raise failure
        except errors.StoreError:
            pass
    assert meters.operations["put"].results == {"ok": 1, "refused": 1, "error": 1}
