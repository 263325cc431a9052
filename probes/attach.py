"""From TARGETs to a view: what the command line and the screen attach to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from probes.apart import beside, told_apart
from probes.promql.engine import Mode
from probes.records import dataclass
from probes.rules import RuleSet
from probes.sampler import Cycle, Sampler
from probes.series import SeriesStore
from probes.settings import Config
from probes.sources.base import Source, SourceStatus
from probes.sources.http import TIMEOUT_S, HttpSource
from probes.target import Target, TargetError, parse_target
from probes.view import View

LIVE_BYTES = 16 << 20
RECORDED_BYTES = 512 << 20
"""Window of the store in bytes: a live one must stay small for hours, a history is wanted whole (policy)."""
_WITH_HISTORY = frozenset(("recording", "prometheus"))

WELL_KNOWN = (
    (8000, "vLLM"),
    (30000, "SGLang"),
    (9400, "kvtop export or DCGM exporter"),
    (8080, "an engine's router"),
    (9090, "Prometheus"),
)
_KNOCK_S = 0.2


@dataclass
class Attachment:
    """Targets attached to: their samples in ``store``, asked through ``view``.

    ``live`` says that a cycle can bring new samples.
    """

    store: SeriesStore
    view: View
    sampler: Sampler
    live: bool
    config: Config

    @property
    def interval_ms(self) -> int:
        """The sampling interval; recordings alone, or a server that samples more slowly, set it by their step."""
        if not self.live:
            return min(self._steps("recording"), default=self.sampler.interval_ms)
        return max(self.sampler.interval_ms, *self._steps("prometheus"), 1)

    def _steps(self, kind: str) -> list[int]:
        """The steps of the sources of a kind that samples by itself."""
        steps = [int(getattr(source, "step_ms", 0)) for source in self.sources if source.status.kind == kind]
        return [step for step in steps if step]

    async def cycle(self, now_ms: int, patience_s: float | None = None) -> Cycle:
        """Ask every source once, waiting ``patience_s`` at most (default: the interval); see ``Sampler.cycle``."""
        return await self.sampler.cycle(now_ms, patience_s)

    def cycle_alone(self, now_ms: int) -> Cycle | None:
        """The only cycle, without an event loop, where there is one target at most; see ``Sampler.cycle_alone``."""
        return self.sampler.cycle_alone(now_ms)

    def span(self) -> tuple[int, int] | None:
        """First and last sample time in the store, ms; None when there is none."""
        return self.store.span()

    def first_since(self, time_ms: int) -> int | None:
        """The first sample time from a moment on, ms: where what is scraped begins, beside older recordings."""
        axes = [frame.times for frame in self.store.frames]
        return min((int(axis[axis >= time_ms][0]) for axis in axes if axis.size and axis[-1] >= time_ms), default=None)

    @property
    def sources(self) -> list[Source]:
        """The sources as they are now; a discovery's come and go."""
        return self.sampler.sources

    @property
    def statuses(self) -> tuple[SourceStatus, ...]:
        return self.sampler.statuses

    async def close(self) -> None:
        await self.sampler.close()


def attach(
    targets: Sequence[str],
    *,
    config: Path | None = None,
    interval_ms: int | None = None,
    mode: Mode = "3",
    rules: RuleSet | None = None,
    timeout_s: float = TIMEOUT_S,
    max_bytes: int | None = None,
    lookback_ms: int | None = None,
    names: Iterable[str] = (),
    sysfs: Path | None = None,
) -> Attachment:
    """Attach to every target of the command line and of the configuration; recordings are loaded at once.

    ``interval_ms`` of None means the configuration's, else 1000; ``rules`` of None the packaged ones. A Prometheus
    server is asked for ``lookback_ms`` of what the rules read, and of ``names``. ``sysfs`` stands for ``/sys`` where
    the target ``rdma`` reads. Raises ``TargetError`` for a target that cannot be meant; what a target does when asked
    is told by its status instead.
    """
    settings = _settings(config)
    wanted = [*(parse_target(text) for text in targets), *settings.targets]
    if not wanted:
        raise TargetError("no target: name one, as in host:8000, http://host:port/metrics or a recording's path")
    wanted = told_apart(_rooted(wanted, sysfs))
    live = any(target.kind != "recording" for target in wanted)
    interval = interval_ms or settings.interval_ms or 1000
    store = SeriesStore(max_bytes or (RECORDED_BYTES if {t.kind for t in wanted} & _WITH_HISTORY else LIVE_BYTES))
    ruleset = rules if rules is not None else RuleSet.load()

    def source(target: Target) -> Source:
        if target.kind == "prometheus":
            from probes.sources.prometheus import LOOKBACK_MS, PrometheusSource

            raw_names = ruleset.raw_names() | frozenset(names)
            return PrometheusSource(target, store, raw_names, lookback_ms=lookback_ms or LOOKBACK_MS)
        return _source(target, store, timeout_s, pages)

    pages = {target.instance: target.url for target in wanted if target.kind == "http"}
    # Live targets first: where a recording holds the same series, what is there now is shown.
    made = {target.shown: source(target) for target in sorted(wanted, key=_recorded)}
    sources = [made[target.shown] for target in wanted]
    view = View(store, ruleset, mode)
    return Attachment(store, view, Sampler(store, sources, interval), live, settings)


def _rooted(targets: Sequence[Target], sysfs: Path | None) -> list[Target]:
    """The targets, those that read the host's own sysfs at ``sysfs`` instead."""
    if sysfs is None:
        return list(targets)
    if not sysfs.is_dir():
        raise TargetError(f"--sysfs {sysfs}: no such folder; it stands for /sys")
    return [replace(one, path=sysfs) if one.kind == "rdma" and one.path is None else one for one in targets]


def _settings(path: Path | None) -> Config:
    if path is None:
        return Config()
    from probes.config import load_config

    return load_config(path)


def _recorded(target: Target) -> bool:
    return target.kind == "recording"


def _source(target: Target, store: SeriesStore, timeout_s: float, pages: dict[str, str]) -> Source:
    """A source of the target's kind; each kind is imported when it is first asked for.

    ``pages`` are the instances of the pages asked, with their URLs; those that a list brings are added.
    """
    if target.kind == "recording" and target.path is not None:
        from probes.sources.recording import RecordingSource

        return RecordingSource(target.shown, target.path, store)
    if target.kind == "rdma":
        from probes.sources.rdma import RdmaSource

        return RdmaSource(target, store, timeout_s=timeout_s)
    if target.kind == "nvml":
        from probes.sources.nvml import NvmlSource

        return NvmlSource(target, store, timeout_s=timeout_s)
    if target.kind in ("file_sd", "http_sd"):
        from probes.sources.discovery import Discovery

        def page(found: Target) -> Source:
            told = beside(found, pages)
            pages[told.instance] = told.url
            return HttpSource(told, store, timeout_s=timeout_s)

        return Discovery(target, page, timeout_s=timeout_s)
    return HttpSource(target, store, timeout_s=timeout_s)


async def discover(timeout_s: float = _KNOCK_S) -> list[tuple[str, str]]:
    """The well-known loopback ports on which something listens: ``(host:port, what usually does)``."""

    import asyncio

    async def knock(port: int, what: str) -> tuple[str, str] | None:
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, TimeoutError):
            return None
        writer.transport.abort()
        return f"127.0.0.1:{port}", what

    found = await asyncio.gather(*(knock(port, what) for port, what in WELL_KNOWN))
    return [one for one in found if one is not None]
