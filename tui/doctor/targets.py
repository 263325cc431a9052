"""Each target: does it answer, which signals does it give, which not, and how to turn those on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from probes.sources.base import SourceStatus
from tui.commands.session import Session
from tui.doctor.advice import advice
from tui.reading import presence
from tui.vocabulary import Term, vocabulary

ENGINE_GROUPS = ("capacity", "queue", "prefix", "work", "latency", "transfer", "offload", "remote")
# An instance is what these say it is.
_TELLS = {
    "kv:requests_running": "engine",
    "kv:store_info": "kvstore",
    "kv:gpu_utilization_ratio": "GPU exporter",
    "kv:host_load1": "host exporter",
}
_GROUPS_OF = {"engine": ENGINE_GROUPS, "GPU exporter": ("gpu",), "host exporter": ("host",)}


@dataclass(frozen=True, slots=True)
class Instance:
    """What one instance gives: ``missing`` maps an advice to the canonical names that it would bring."""

    name: str
    kind: str
    present: tuple[str, ...] = ()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        missing = [{"signals": list(names), "enable": says} for says, names in self.missing.items()]
        return {"instance": self.name, "kind": self.kind, "present": list(self.present), "missing": missing}


def instances(session: Session) -> list[Instance]:
    """Every instance in the data, with its signals."""
    terms = vocabulary()
    seen = presence(session.view, session.end_ms, session.end_ms - session.start_ms, terms)
    names = sorted({instance for found in seen.values() for instance in found if instance})
    return [_instance(name, seen, terms.values()) for name in names]


def _instance(name: str, seen: Mapping[str, frozenset[str]], terms: Iterable[Term]) -> Instance:
    kind = next((kind for tell, kind in _TELLS.items() if name in seen.get(tell, ())), "unknown")
    groups = _GROUPS_OF.get(kind, ())
    present = tuple(term.name for term in terms if name in seen.get(term.name, ()) and term.group != "source")
    missing: dict[str, list[str]] = {}
    for term in terms:
        if term.group in groups and name not in seen.get(term.name, ()):
            missing.setdefault(advice(term.name), []).append(term.name)
    return Instance(name, kind, present, {says: tuple(names) for says, names in missing.items()})


def target_dict(status: SourceStatus, now_ms: int) -> dict[str, object]:
    return {
        "target": status.target,
        "state": status.state,
        "error": status.error,
        "age_s": status.age_s(now_ms),
        "samples": status.samples,
    }


def hosts_missing(found: Sequence[Instance]) -> list[str]:
    """Kinds of exporter that no target is, with what they would add."""
    kinds = {one.kind for one in found}
    wanted = {
        "GPU exporter": "GPU utilisation, memory, clocks and Xid errors: " + advice("kv:gpu_utilization_ratio"),
        "host exporter": "CPU and I/O pressure of the node: " + advice("kv:host_load1"),
    }
    return [says for kind, says in wanted.items() if kind not in kinds and "engine" in kinds]
