"""What a configuration file says; reading one (``probes.config``) is another matter, which few starts need."""

from __future__ import annotations

from probes.records import dataclass
from probes.target import Target


@dataclass(frozen=True, slots=True)
class Config:
    """What a configuration file says; ``interval_ms`` is None where it does not say."""

    targets: tuple[Target, ...] = ()
    interval_ms: int | None = None
    slo: tuple[str, ...] = ()
