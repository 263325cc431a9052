"""The Pool screen: block maps, runs, waste, sessions; what it says where there is none of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from probes.labels import Labels
from tests.tui import pictures, pool_pictures
from tests.tui.test_screens import SIZES, body, shown
from tui.app import picture
from tui.draw.canvas import ASCII, UNICODE, Canvas
from tui.draw.pool import chosen
from tui.look import Look
from tui.painting import Scene
from tui.pools import Cell, Pool
from tui.snapshot import Snapshot

Compare = Callable[..., bool]
POOL = Look(screen="pool")


@cache
def cluster(silent: str = "") -> Snapshot:
    return pool_pictures.cluster(silent=silent)


@cache
def engine() -> Snapshot:
    return pool_pictures.engine()


def at(shot: Snapshot, name: str) -> Look:
    return Look(screen="pool", entity=next(pool.entity for pool in shot.pools or () if pool.name == name))


@pytest.mark.parametrize("screen", ["pool", "overview"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_store(snap_compare: Compare, screen: str, size: tuple[int, int]) -> None:
    keys = ("4", "down") if screen == "pool" else ()
    assert snap_compare(picture(cluster()), terminal_size=size, press=keys)


def test_engine_without_a_map(snap_compare: Compare) -> None:
    assert snap_compare(picture(engine()), terminal_size=(80, 24), press=("4",))


def test_no_colour(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(picture(cluster()), terminal_size=(80, 24), press=("4",))


def test_the_map_has_a_sign_for_every_cell_of_the_page() -> None:
    shot = cluster()
    pool = (shot.pools or ())[0]
    lines = body(shot, (80, 24), POOL).splitlines()[2:6]
    signs = "".join(line[1:65] for line in lines)
    assert len(pool.cells) == len(signs) == 256
    for cell, sign in ((Cell.FREE, "·"), (Cell.CACHED, "░"), (Cell.USED, "█"), (Cell.LEASED, "◆"), (Cell.WASTE, "▄")):
        assert signs.count(sign) == pool.cells.count(cell) > 0, cell
    assert signs.count("□") == pool.cells.count(Cell.RESERVED) > 0


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_states_are_told_apart_without_colour(glyphs: Any) -> None:
    from tui.draw.blockmap import sign_of

    assert len({sign_of(cell, glyphs)[0] for cell in (*Cell, -1)}) == len(Cell) + 1


@pytest.mark.parametrize("theme", ["DARK", "LIGHT", "CONTRAST"])
def test_states_have_colours_of_their_own(theme: str) -> None:
    from tui import themes

    palette: themes.Palette = getattr(themes, theme)
    colours = {str(palette.style(f"map_{cell.name.lower()}").color) for cell in Cell}
    assert len(colours) == len(Cell)


def test_runs_say_whether_a_window_finds_one() -> None:
    shot = cluster()
    calm, broken = body(shot, (80, 24), at(shot, "shard 0")), body(shot, (80, 24), at(shot, "shard 1"))
    assert "longest 512, a window takes 32" in calm
    assert "longest 2, a window takes 32" in broken
    assert "run 30/s" in broken
    assert "no_run 2/s" in broken
    assert "REFUSED  none" in calm


def test_waste_and_sessions_are_counted_not_estimated() -> None:
    text = body(cluster(), (80, 24), POOL)
    assert "1.7 % of the slots, 384 empty" in text
    chat = next(line for line in text.splitlines() if "chat" in line).split()
    assert chat[-6:] == ["chat", "12", "3", "480", "30m00s", "0.0%"]


def test_a_long_name_of_a_class_is_whole_on_a_small_screen() -> None:
    shot = cluster()
    named = tuple(replace(one, name="conversation" if one.name == "chat" else one.name) for one in sessions(shot))
    pools = tuple(replace(pool, sessions=named) for pool in shot.pools or ())
    text = body(replace(shot, pools=pools), (80, 24), POOL)
    (line,) = (line for line in text.splitlines() if "conversation" in line)
    assert line.split()[-5:] == ["conversation", "12", "3", "480", "0.0%"]
    wide = body(replace(shot, pools=pools), (160, 48), POOL)
    assert next(line for line in wide.splitlines() if "conversation" in line).split().count("30m00s") == 1


def sessions(shot: Snapshot) -> tuple[Any, ...]:
    return tuple((shot.pools or ())[0].sessions)


@pytest.mark.parametrize(("each", "says"), [(1.0, "1 run in"), (1.5, "1.5 runs in"), (3.0, "3 runs in")])
def test_one_run_is_no_runs(each: float, says: str) -> None:
    shot = cluster()
    pools = tuple(replace(pool, numbers={**pool.numbers, "runs_each": each}) for pool in shot.pools or ())
    assert says in body(replace(shot, pools=pools), (80, 24), POOL)


def test_all_shards_of_a_small_store_lie_side_by_side_on_a_wide_screen() -> None:
    text = body(cluster(), (160, 48), POOL)
    for name in ("shard 0", "shard 1", "shard 2", "shard 3"):
        assert f"{name}  127.0.0.1:" in text
    assert "a cell: 8 blocks" in text


def test_many_shards_come_in_pages_that_hold_the_selected_one() -> None:
    shot = cluster()
    one = (shot.pools or ())[0]
    many = tuple(replace(one, entity=Labels.of({"shard": str(n), "instance": f"h:{n}"})) for n in range(40))
    shot = replace(shot, pools=many)
    for size in SIZES:
        for place in (0, 7, 39):
            look = Look(screen="pool", entity=many[place].entity)
            assert f"shard {place}  h:{place}" in body(shot, size, look), (size, place)


def test_an_engine_without_a_map_says_so_and_shows_what_there_is() -> None:
    text = body(engine(), (80, 24), POOL)
    assert "no block map" in text
    assert "unsupported: no run lengths" in text
    assert "blocks" in text
    assert "0.0 % of the slots" not in text


def test_a_silent_shard_keeps_its_map_with_its_age() -> None:
    shot = cluster("2")
    pool = next(pool for pool in shot.pools or () if pool.name == "shard 2")
    assert pool.age_s == 60.0
    assert "silent, as it was 60 s ago" in body(shot, (80, 24), at(shot, "shard 2"))


def test_no_pool_is_told_as_such() -> None:
    assert "no pool seen yet" in body(replace(pictures.nothing(), pools=()), (80, 24), POOL)
    assert "asking" in body(pictures.nothing(), (80, 24), POOL)


def test_ascii_is_ascii() -> None:
    for shot in (cluster(), engine(), cluster("2")):
        for size in SIZES:
            assert body(shot, size, POOL, ASCII).isascii()


def test_any_size_draws() -> None:
    odd = Pool(Labels.of({"instance": "a:1"}), cells=(-1, 0, 5), states={"free": 0.0})
    for shot in (cluster(), engine(), replace(pictures.nothing(), pools=(odd,))):
        for width in (0, 1, 7, 40, 80, 132, 140, 260):
            for height in (0, 1, 3, 10, 20, 31, 44, 90):
                Scene(shot, POOL).body(Canvas(width, height))


def test_the_overview_tells_shards_in_their_own_numbers() -> None:
    text = body(cluster(), (160, 48))
    assert "  SHARD " in text
    for word in ("Blocks found", "Operations", "Evictions", "shard 3", "fleet (4)"):
        assert word in text
    assert "TTFT" not in text


async def test_keys_walk_over_the_pools() -> None:
    app = picture(cluster())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("4", "down", "down")
        await pilot.pause()
        assert chosen(app.scene.shot.pools or (), app.scene.look) == 2
        assert "shard 2  127.0.0.1:9602" in shown(app, "body")
        await pilot.press("up", "up", "up")
        await pilot.pause()
        assert chosen(app.scene.shot.pools or (), app.scene.look) == 0
