"""Make the pictures of the docs: ``python docs/screens/make.py`` from the repository's root.

They show the packaged demo incident at its end, as ``kvtop playbooks/recordings/demo.om.gz`` does.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from probes.attach import attach
from tui.app import KvtopApp
from tui.monitor import Monitor
from tui.options import Options

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORDING = "playbooks/recordings/demo.om.gz"  # as it is typed in the checkout: a picture must not show where that is
PATIENCE_S = 60.0

PICTURES = (
    ("overview-80x24", (80, 24), (), "okabe-dark"),
    ("overview-160x48", (160, 48), (), "okabe-dark"),
    ("overview-200x60", (200, 60), (), "okabe-dark"),
    ("findings-160x48", (160, 48), ("2",), "okabe-dark"),
    ("sources-160x48", (160, 48), ("3",), "okabe-dark"),
    ("overview-light-80x24", (80, 24), (), "okabe-light"),
)


async def make(name: str, size: tuple[int, int], keys: tuple[str, ...], theme: str) -> None:
    """Write one picture. Raises TimeoutError when the diagnosis does not come."""
    options = Options(theme=theme, label="demo.om.gz")
    app = KvtopApp(lambda made: Monitor(lambda: attach([RECORDING]), made.post_message, options), options)
    async with app.run_test(size=size) as pilot, asyncio.timeout(PATIENCE_S):
        while app.scene.shot is None or app.scene.shot.diagnosis is None:
            await pilot.pause(0.1)
        await pilot.press(*keys)
        await pilot.pause(0.5)
        (HERE / f"{name}.svg").write_text(app.export_screenshot(), encoding="utf-8")
        app.exit()


async def main() -> None:
    os.chdir(ROOT)
    for spec in PICTURES:
        await make(*spec)


if __name__ == "__main__":
    asyncio.run(main())
