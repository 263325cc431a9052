"""The strip on top: where we are in time, which screen, and in one line what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tui.cursor import Cursor, Mode
from tui.draw.canvas import Canvas, Glyphs, width_of
from tui.names import entity_name
from tui.quantity import age, clock, percent
from tui.snapshot import Snapshot, SourceView

if TYPE_CHECKING:
    from playbooks.verdict import Diagnosis, Finding

SCREENS = ("overview", "findings", "sources", "pool")
HEIGHT = 3
_NAMED_FROM = 62
_RECENT_MS = 30_000  # a live screen examines at least so often
_ENGINE = frozenset(("kv:requests_running", "kv:pool_usage_ratio", "kv:generation_tokens_total", "kv:ttft_seconds"))


def draw(canvas: Canvas, shot: Snapshot, screen: str) -> None:
    """Three lines: tabs and time, the verdict as a banner, and what it rests on."""
    _tabs(canvas, shot, screen)
    style, text = banner(shot, canvas.glyphs)
    canvas.put(0, 1, " " * canvas.width, style)
    canvas.put(1, 1, text, style, width=canvas.width - 2)
    canvas.hit("app.show('findings')", 0, 1, canvas.width, 2)
    canvas.put(1, 2, because(shot), "muted", width=canvas.width - 2)


def _tabs(canvas: Canvas, shot: Snapshot, screen: str) -> None:
    style, text = moment(shot.cursor, canvas.glyphs)
    # The least screen has no room for the name beside the longest place in time.
    x = canvas.put(0, 0, " kvtop ", "brand") + 1 if canvas.width >= _NAMED_FROM + width_of(text) else 0
    for index, (name, count) in enumerate(zip(SCREENS, _counts(shot, canvas.glyphs), strict=True)):
        label = f" {index + 1} {name.capitalize()}{' ' + count if count else ''} "
        canvas.hit(f"app.show('{name}')", x, 0, width_of(label))
        x = canvas.put(x, 0, label, "tab_on" if name == screen else "tab")
    quiet = [source.silent_s or 0.0 for source in silent_sources(shot)]
    if shot.cursor.mode is Mode.LIVE and quiet and len(quiet) == len(shot.sources):
        style, text = "warn", f"{canvas.glyphs.stale} silent {age(min(quiet))}"
    left = canvas.right(canvas.width - 1, 0, text, style)
    about = f"{shot.label}  every {age(shot.interval_ms / 1000)}, window {age(shot.window_ms / 1000)}  UTC"
    if left - x > width_of(about) + 4:
        canvas.right(left - 2, 0, about, "muted")


def _counts(shot: Snapshot, glyphs: Glyphs) -> tuple[str, str, str, str]:
    found = len(shot.diagnosis.findings) if shot.diagnosis else 0
    fresh, total = sum(source.ok for source in shot.sources), len(shot.sources)
    sources = f"{glyphs.ok if fresh == total else glyphs.bad}{fresh}/{total}" if total else ""
    return "", f"{glyphs.bad}{found}" if found else "", sources, ""


def moment(cursor: Cursor, glyphs: Glyphs) -> tuple[str, str]:
    """Style and words for the place in time."""
    if not cursor.end_ms:
        return "muted", "no data yet"
    at = clock(cursor.at_ms)
    if cursor.mode is Mode.LIVE:
        return "ok", f"{glyphs.live} live {at}"
    span = max(1, cursor.end_ms - cursor.start_ms)
    place = percent((cursor.at_ms - cursor.start_ms) / span) if cursor.recorded else _behind(cursor, glyphs)
    if cursor.mode is Mode.PLAYING:
        return "data", f"{glyphs.play} x{cursor.speed} {at} {place}"
    if cursor.recorded and cursor.at_end:
        return "warn", f"{glyphs.pause} end {at}"
    return "warn", f"{glyphs.pause} paused {at} {place}"


def _behind(cursor: Cursor, glyphs: Glyphs) -> str:
    return f"{glyphs.minus}{age((cursor.end_ms - cursor.at_ms) / 1000)}"


def banner(shot: Snapshot, glyphs: Glyphs) -> tuple[str, str]:
    """Style and text of the verdict line."""
    diagnosis = shot.diagnosis
    late = _as_of(shot)
    if shot.trouble:
        return "banner_unknown", f"{glyphs.unknown} cannot tell: {shot.trouble}"
    if diagnosis is None:
        return "banner_wait", f"{glyphs.wait} {waiting(shot)}"
    if diagnosis.verdict == "healthy":
        more = f"; {_count(len(diagnosis.unknown), 'cause')} could not be decided" if diagnosis.unknown else ""
        quiet = silent_sources(shot)
        if lost(quiet) or (quiet and len(quiet) == len(shot.sources)):
            return "banner_unknown", f"{glyphs.unknown} cannot tell: {no_answer(lost(quiet) or quiet)}"
        if quiet:
            of = f"{len(shot.sources) - len(quiet)} of {len(shot.sources)} targets"
            return "banner_wait", f"{glyphs.unknown} healthy on {of}{more}{late}"
        return "banner_ok", f"{glyphs.ok} healthy{more}{late}"
    if diagnosis.findings:
        first = diagnosis.findings[0]
        style = "banner_warn" if first.verdict == "suspected" else "banner_bad"
        return style, f"{glyphs.bad} {_count(len(diagnosis.findings), 'finding')}: {headline(first)}{late}"
    if well_but_for_silence(shot, diagnosis):
        of = f"{len(shot.sources) - len(silent_sources(shot))} of {len(shot.sources)} targets"
        return "banner_wait", f"{glyphs.unknown} healthy on {of}; the others never answered{late}"
    return "banner_unknown", f"{glyphs.unknown} cannot tell: {unsure(shot, diagnosis)}{late}"


def _as_of(shot: Snapshot) -> str:
    """While time goes on, the moment of a verdict that is older than what a live screen asks again."""
    diagnosis = shot.diagnosis
    behind_ms = shot.time_ms - diagnosis.end_ms if diagnosis else 0
    return f" (at {clock(diagnosis.end_ms)})" if diagnosis and behind_ms > max(_RECENT_MS, 2 * shot.interval_ms) else ""


def silent_sources(shot: Snapshot) -> list[SourceView]:
    """The sources that are not merely late; none while another moment than the newest is shown."""
    if not shot.cursor.at_end or shot.cursor.recorded:
        return []
    return [source for source in shot.sources if source.silent_s is not None]


def lost(quiet: Sequence[SourceView]) -> list[SourceView]:
    """Those that did answer once."""
    return [source for source in quiet if source.age_s is not None]


def no_answer(quiet: Sequence[SourceView]) -> str:
    """``127.0.0.1:8000 has not answered for 18 s``."""
    more = f" (and {_count(len(quiet) - 1, 'more target')})" if len(quiet) > 1 else ""
    return f"{quiet[0].title} has not answered for {age(quiet[0].silent_s or 0.0)}{more}"


def well_but_for_silence(shot: Snapshot, diagnosis: Diagnosis) -> bool:
    """Whether all that stands against "healthy" is that some targets never answered, while others do."""
    quiet = silent_sources(shot)
    if not quiet or lost(quiet) or len(quiet) == len(shot.sources) or len(diagnosis.unexplained) > len(quiet):
        return False
    others = [check.bad for check in diagnosis.core if check.name not in ("freshness", "latency")]
    told = all(odd.says.startswith("never answered") for odd in diagnosis.unexplained)
    return told and bool(others) and all(bad is False for bad in others)


def unsure(shot: Snapshot, diagnosis: Diagnosis) -> str:
    """Why there is no verdict: first what the targets do, then what the signals lack."""
    gone = lost(silent_sources(shot))
    return silence(shot) or (no_answer(gone) if gone else "") or no_engine(shot) or doubt(diagnosis)


def no_engine(shot: Snapshot) -> str:
    """Said when targets answer and none of them shows an engine's signals (once it is known what they show)."""
    known = [source for source in shot.sources if source.present or source.absent]
    if not known or any(_ENGINE.intersection(source.present) for source in known):
        return ""
    return "no engine on these pages"


def waiting(shot: Snapshot) -> str:
    """What is being waited for, before the first diagnosis."""
    broken = silence(shot)
    if broken:
        return f"no verdict yet: {broken}"
    if not shot.sources:
        return shot.opening
    if no_engine(shot):
        return no_engine(shot)
    return "examining this moment" if shot.examining else "collecting: the first verdict needs a few samples"


def silence(shot: Snapshot) -> str:
    """The first source's fault in words when not one of them answers; else nothing."""
    if not shot.sources or any(source.ok for source in shot.sources):
        return ""
    quiet, first = silent_sources(shot), shot.sources[0]
    if len(quiet) == len(shot.sources) and first.state == "timeout":
        return no_answer(quiet)
    more = f" (and {_count(len(shot.sources) - 1, 'more target')})" if len(shot.sources) > 1 else ""
    return f"{first.title}: {first.state}{': ' + first.error if first.error else ''}{more}"


def headline(finding: Finding) -> str:
    """``kv-capacity-exhausted on pod-1:8000 since 10:02:15``."""
    words = [finding.cause]
    if finding.member:
        words += ["on", member_name(finding.member)]
    if finding.onset_ms is not None:
        words += ["since", clock(finding.onset_ms)]
    if finding.ended_ms is not None:
        words += ["until", clock(finding.ended_ms)]
    return " ".join(words)


def member_name(member: Mapping[str, str]) -> str:
    """The entity's short name, or the labels as they are; ``everything`` for none."""
    known = {"instance", "engine", "gpu", "device", "shard"}
    if not member:
        return "the fleet"
    rest = " ".join(f"{name}={value}" for name, value in member.items() if name not in known)
    return " ".join(part for part in (entity_name(member), rest) if part)


def doubt(diagnosis: Diagnosis) -> str:
    """Why there is no verdict, in words."""
    if diagnosis.unexplained:
        first = diagnosis.unexplained[0]
        where = f" on {member_name(first.member)}" if first.member else ""
        return f"{first.says or first.resource}{where}, and no known cause explains it"
    bad = [check.says or check.name for check in diagnosis.core if check.bad]
    if bad:
        return "; ".join(bad)
    undecided = [check.name for check in diagnosis.core if check.bad is None]
    if undecided:
        return f"nothing to judge {', '.join(undecided)} by"
    return "no data to judge by"


def because(shot: Snapshot) -> str:
    """The line under the banner: the first finding's summary, or the core questions' answers."""
    diagnosis = shot.diagnosis
    if diagnosis is None:
        return shot.label
    if diagnosis.findings:
        first = diagnosis.findings[0]
        evidence = "; ".join(item.says for item in first.evidence if item.says)
        return f"{first.verdict.value}: {evidence or first.summary or first.title}"
    said = [check.says or f"{check.name} undecided" for check in diagnosis.core if check.bad is not False]
    if said:
        return "; ".join(said)
    return ", ".join(check.says or f"{check.name} fine" for check in diagnosis.core) or shot.label


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
