"""Serve the pages of simulated vLLM engines on loopback, to measure what watching them costs.

    .venv/bin/python benchmarks/engines_server.py --engines 16 --for 60            one page, sixteen ``engine`` labels
    .venv/bin/python benchmarks/engines_server.py --engines 16 --separate --for 60   sixteen endpoints

Pages are rendered before the first request, one a second of ``--for``, and differ from second to second as those of
engines under load do; while it serves, the server only copies bytes. The URLs are printed, one a line, then ``ready``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from random import Random

from playbooks.lab.config import EngineConfig, StepCost
from playbooks.lab.exposition import Family, ProcessFacts, classic_text, engine_families, process_families
from playbooks.lab.scheduler import Engine
from playbooks.lab.workload import Lengths, SharedPrefixes, Stream

MODEL = "llama-3-8b"
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\r\n"
WARM_S = 20.0
UPTIME_S = 86_400.0


def render(engines: int, seconds: int, seed: int, separate: bool) -> list[list[bytes]]:
    """Whole HTTP answers: for each endpoint, one a second. Engines run one after another to spare memory."""
    columns = [_frames(rank, seconds, seed, separate) for rank in range(engines)]
    if separate:
        return [[_answer(classic_text(families)) for families in frames] for frames in columns]
    merged = [_merge([frames[second] for frames in columns]) for second in range(seconds)]
    return [[_answer(classic_text(families)) for families in merged]]


def _frames(rank: int, seconds: int, seed: int, separate: bool) -> list[list[Family]]:
    rng = Random(f"{seed}/{rank}")
    cost = StepCost(base=rng.uniform(0.02, 0.03))
    engine = Engine(EngineConfig(rng.randrange(16_000, 36_000), cost=cost), rng)
    family = SharedPrefixes(rng, 5, Lengths(900, 0.3), Lengths(260, 0.6))
    Stream(rng.uniform(1.5, 3.0), family, Lengths(180, 0.6, 2, 1500), rng, impatient=0.01).attach(engine, 0.0)
    engine.advance(WARM_S)
    engine.meters.scale_history(round(UPTIME_S / WARM_S))
    started = round(time.time() - UPTIME_S, 2)
    found = []
    for second in range(seconds):
        engine.advance(WARM_S + second)
        label = "0" if separate else str(rank)
        facts = ProcessFacts(started, UPTIME_S + 1.1 * second, 6e9 + rng.gauss(0, 1e6))
        families = engine_families(engine, MODEL, label)
        found.append(families + process_families(facts, engine.meters) if separate or rank == 0 else families)
    return found


def _merge(pages: Sequence[Sequence[Family]]) -> list[Family]:
    """One page of several ranks, each family once, and each series once (some have no rank)."""
    families: dict[str, Family] = {}
    for page in pages:
        for family in page:
            known = families.setdefault(family.name, Family(family.name, family.kind, family.help))
            seen = {sample[:2] for sample in known.samples}
            known.samples += [sample for sample in family.samples if sample[:2] not in seen]
    return list(families.values())


def _answer(text: str) -> bytes:
    body = text.encode()
    return HEAD.format(len(body)).encode() + body


class Endpoint:
    """One listener that answers every request with the frame of the current second."""

    def __init__(self, frames: Sequence[bytes], start: float) -> None:
        self._frames = frames
        self._start = start

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                second = min(int(time.monotonic() - self._start), len(self._frames) - 1)
                writer.write(self._frames[second])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def run(frames: list[list[bytes]], port: int, seconds: float) -> None:
    """Serve for ``seconds``; ``port`` 0 takes any free ones, otherwise consecutive ones from there."""
    start = time.monotonic()
    servers = []
    for index, column in enumerate(frames):
        endpoint = Endpoint(column, start)
        server = await asyncio.start_server(endpoint.serve, "127.0.0.1", port + index if port else 0)
        servers.append(server)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics", flush=True)
    print("ready", flush=True)
    await asyncio.sleep(seconds)
    for server in servers:
        server.close()


def seconds_of(text: str) -> int:
    """``90`` or ``90s``."""
    try:
        found = int(text.removesuffix("s"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 1 <= found <= 900:
        raise argparse.ArgumentTypeError(f"{found} s is not between 1 and 900")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Serve the pages of simulated vLLM engines on loopback.")
    parser.add_argument("--engines", type=int, default=16)
    parser.add_argument("--separate", action="store_true", help="one endpoint an engine")
    parser.add_argument("--port", type=int, default=0, help="first port (any free one by default)")
    parser.add_argument("--for", dest="seconds", type=seconds_of, default=180, help="lifetime, as 60 or 60s")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    frames = render(options.engines, options.seconds, options.seed, options.separate)
    size = sum(len(column[0]) for column in frames)
    print(f"# {len(frames)} endpoint(s), {size / 1000:.0f} kB a scrape of all", file=sys.stderr)
    asyncio.run(run(frames, options.port, options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
