"""A run's snapshots as recordings: each is laid out as a sysfs tree and read by the target `rdma` as any other.

``python -m tests.roce.recorded FOLDER RUN -o FILE`` (``FOLDER`` is what ``KVSCOPE_ROCE_KEEP`` named) writes one
OpenMetrics file with both hosts and the shard's page; a name that ends in .gz is compressed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from playbooks.lab.compose import write
from playbooks.lab.exposition import Family
from playbooks.lab.recorder import Recorder
from probes.exposition.line import parse_series
from probes.rdma.page import Reader
from probes.rdma.tree import SysfsTree
from tests.roce.runs import values_of

EPOCH_S = 1_795_000_000
"""The guests' clocks are of no use; uptime counts from here."""
STORE = re.compile(
    r"kv_(transport_info|read_bytes|read_descriptors|reads|transfer_bytes|transfer_descriptors|transfer_seconds|"
    r"pool_usage_ratio|operations|busy_seconds|inflight_operations|block_bytes|block_tokens|store_info)"
)
NETDEV = re.compile(r"netdev_[rt]x_(bytes|packets|dropped)|netdev_(carrier|speed).*")
SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


def recording(folder: Path, run: str) -> str:
    """The run as OpenMetrics text, times from the first snapshot of each guest on."""
    recorder = Recorder()
    for role in ("a", "b"):
        snaps = sorted((folder / role / "snap" / run).glob("*.txt"))
        begin = float(values_of(snaps[0])["time"])
        with tempfile.TemporaryDirectory() as tree:
            reader = Reader(SysfsTree(Path(tree) / "sys"))
            for snap in snaps:
                values = values_of(snap)
                time_ms = round((EPOCH_S + float(values.pop("time")) - begin) * 1000)
                _lay(Path(tree), values)
                target = (("instance", f"node-{role}"), ("job", "rdma"))
                recorder.add([_up(), *_families(reader.read().page.decode(), skip=NETDEV)], time_ms, target)
                page = snap.with_suffix(".page")
                if page.exists():
                    text = page.read_bytes().decode(errors="replace").partition("\r\n\r\n")[2]
                    shard = (("instance", "node-a:9600"), ("job", "kvstore"))
                    recorder.add([_up(), *_families(text, keep=STORE)], time_ms, shard)
    return recorder.text()


def _up() -> Family:
    return Family("up", "gauge", "1 when the scrape succeeded.").one(1.0)


def _lay(tree: Path, values: dict[str, str]) -> None:
    for name, value in values.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def _families(
    page: str, *, keep: re.Pattern[str] | None = None, skip: re.Pattern[str] | None = None
) -> Iterable[Family]:
    """A page's families: those that ``keep`` matches whole, and of the interface's those that ``skip`` knows."""
    found: dict[str, Family] = {}
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    for line in page.splitlines():
        if not line or line.startswith("#"):
            continue
        head, _, value = line.rpartition(" ")
        labels, _ = parse_series(head)
        name = labels.name
        family = name if name in kinds else SUFFIX.sub("", name)
        plain = family.removesuffix("_total")
        if (keep and not keep.fullmatch(plain)) or (skip and plain.startswith("netdev") and not skip.fullmatch(plain)):
            continue
        kind = kinds.get(family, "unknown")
        suffix = name.removeprefix(plain)
        pairs = tuple(sorted((key, text) for key, text in labels.as_dict().items() if key != "__name__"))
        found.setdefault(plain, Family(plain, kind, "")).samples.append((suffix, pairs, float(value)))
    return found.values()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.roce.recorded")
    parser.add_argument("folder", type=Path)
    parser.add_argument("run")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    write(given.output, recording(given.folder, given.run))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
