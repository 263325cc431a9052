"""Make the pictures of the docs: ``python docs/screens/make.py`` from the repository's root.

They are drawn from the hand-built snapshots of the tests, so that they change only when the screens do.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.tui import pictures  # noqa: E402 - needs the path above
from tui.app import picture  # noqa: E402
from tui.options import Options  # noqa: E402

PICTURES = (
    ("overview-80x24", (80, 24), (), "okabe-dark"),
    ("overview-160x48", (160, 48), (), "okabe-dark"),
    ("overview-200x60", (200, 60), (), "okabe-dark"),
    ("findings-160x48", (160, 48), ("2",), "okabe-dark"),
    ("sources-160x48", (160, 48), ("3",), "okabe-dark"),
    ("overview-light-80x24", (80, 24), (), "okabe-light"),
)


async def make(name: str, size: tuple[int, int], keys: tuple[str, ...], theme: str) -> None:
    """Write one picture."""
    app = picture(pictures.incident(), Options(theme=theme))
    async with app.run_test(size=size) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        (HERE / f"{name}.svg").write_text(app.export_screenshot(), encoding="utf-8")


async def main() -> None:
    for spec in PICTURES:
        await make(*spec)


if __name__ == "__main__":
    asyncio.run(main())
