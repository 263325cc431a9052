"""python -m playbooks.lab.live.decode LOOP_JSON < (open until it should end) > facts, then a report"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from threading import Event

from kvstore.meters import Meters
from kvstore.page import StoreCollector, serve_metrics
from playbooks.lab.live.decode.device import device_for
from playbooks.lab.live.decode.loop import DecodeLoop
from playbooks.lab.live.decode.page import LoopSource
from playbooks.lab.live.loops import Loop, LoopReport


async def decode(loop: Loop) -> LoopReport:
    """Decode in a thread of its own and serve the page from this one, until standard input ends."""
    device, meters = device_for(loop.number), Meters()
    # What is compiled or allocated at first use is no step's time.
    warm = DecodeLoop(loop, device, Meters())
    warm.admit()
    warm.step()
    warm.finish()
    del warm
    work = DecodeLoop(loop, device, meters)
    page = await serve_metrics(StoreCollector(LoopSource(loop.number, work)))
    print(json.dumps({"metrics": page.url, "device": device.name}), flush=True)
    ended = Event()
    running = asyncio.create_task(asyncio.to_thread(work.run, ended))
    done = asyncio.create_task(_input_ends())
    await asyncio.wait({running, done}, return_when=asyncio.FIRST_COMPLETED)
    ended.set()
    done.cancel()
    report = await running
    await page.close()
    return report


async def _input_ends() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(decode(Loop(**json.loads(sys.argv[1])))))))
