"""Scenes of a store whose block tables lie on a device."""

from __future__ import annotations

from dataclasses import replace

from .scenarios import Cast, Stage, scenario
from .store_scenes import HEALTHY, USUAL, StoreSet


@scenario("store-block-table-upload")
def block_table_upload(cast: Cast) -> Stage:
    """One shard sends every change of its block table by itself, layer by layer."""
    made = StoreSet(cast, replace(USUAL, device_table=True))
    made.reconfigure(uploads=cast.rng.choice((32, 40, 64)))
    why = "a change of the block table goes to the device in one small upload a layer"
    return made.stage(made.on_shard("block-table-upload", None, why))


@scenario("store-healthy-device-table")
def device_table(cast: Cast) -> Stage:
    """All changes of a step go to the device together."""
    return StoreSet(cast, replace(USUAL, device_table=True)).stage(HEALTHY)
