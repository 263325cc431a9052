"""Sources as the screen shows them: the sampler's statuses, with what each has to say in canonical names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tui.snapshot import SourceView
from tui.vocabulary import vocabulary

if TYPE_CHECKING:
    from probes.attach import Attachment
    from probes.sources.base import SourceStatus

_PATIENT = 2.5  # intervals without an answer, after which a slow source counts as silent


def source_views(attachment: Attachment, seen: Mapping[str, frozenset[str]], now_ms: int) -> tuple[SourceView, ...]:
    """Every source; ``seen`` maps a canonical name to the instances that have shown it."""
    return tuple(_view(status, seen, now_ms, len(attachment.statuses)) for status in attachment.statuses)


def _view(status: SourceStatus, seen: Mapping[str, frozenset[str]], now_ms: int, count: int) -> SourceView:
    everyone = frozenset().union(*seen.values()) if seen else frozenset()
    instances = frozenset((status.instance,)) if status.instance else everyone if count == 1 else frozenset()
    present = tuple(name for name in vocabulary() if instances & seen.get(name, frozenset()))
    known = bool(seen) and status.last_ok_ms is not None
    return SourceView(
        target=status.target,
        state=status.state,
        error=status.error or "",
        age_s=None if status.kind == "recording" else status.age_s(now_ms),
        samples=status.samples if known else None,
        page_bytes=status.bytes if known else None,
        duration_s=status.duration_s if known else None,
        instances=tuple(sorted(instances)),
        present=present if known else (),
        absent=tuple(name for name in vocabulary() if name not in present) if known else (),
    )


def faults_of(sources: tuple[SourceView, ...], interval_ms: int) -> dict[str, str]:
    """Instance to its source's fault in words; a source that is merely slower than a tick has none yet."""
    found = {}
    for source in sources:
        silent = source.age_s is None or source.age_s * 1000 > _PATIENT * interval_ms
        if not source.ok and silent:
            for instance in source.instances:
                found[instance] = f"{source.state}: {source.error}" if source.error else source.state
    return found
