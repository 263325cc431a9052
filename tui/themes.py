"""Themes: what each style name looks like.

The colours are Okabe and Ito's set ("Color Universal Design", 2008), which people with any common colour vision tell
apart; lightened or darkened where the background asks for contrast. No state rests on colour alone: a sign or a word
says it too. `MONO` has no colour at all, for ``NO_COLOR``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from rich.style import Style

from probes.records import dataclass
from tui.draw.chart import SHADES


@dataclass(frozen=True)
class Palette:
    """One theme; ``styles`` maps a style name to a Rich style definition over ``background``."""

    name: str
    dark: bool
    background: str
    foreground: str
    definitions: Mapping[str, str]

    @cached_property
    def styles(self) -> dict[str, Style]:
        """Style name to a finished Rich style, background included."""
        if not self.background:
            return {name: Style.parse(text or "none") for name, text in self.definitions.items()}
        base = Style(color=self.foreground, bgcolor=self.background)
        return {name: base + Style.parse(text or "none") for name, text in self.definitions.items()}

    def style(self, name: str) -> Style:
        """The style of a name; ``name@mark`` is that style on the mark's background (or with its attributes)."""
        found = self.styles.get(name)
        if found is None:
            base, _, mark = name.partition("@")
            found = self.styles.get(base, self.styles["text"])
            if mark and "reverse" not in str(found):
                over = self.styles[mark]
                found = found + Style(bgcolor=over.bgcolor, bold=True, underline=over.underline)
            self.styles[name] = found
        return found


def _coloured(c: Mapping[str, str]) -> dict[str, str]:
    return {
        "text": "",
        "strong": f"bold {c['bright']}",
        "muted": c["muted"],
        "faint": c["faint"],
        "title": f"bold {c['title']}",
        "head": f"bold {c['muted']}",
        "value": f"bold {c['bright']}",
        "data": c["blue"],
        **{f"data{step}": _mixed(c["fill"], c["blue"], (step + 1) / SHADES) for step in range(SHADES)},
        "ok": c["green"],
        "warn": f"bold {c['orange']}",
        "bad": f"bold {c['red']}",
        "chart_warn": c["orange"],
        "chart_bad": c["red"],
        "onset": c["yellow"],
        "map_free": c["muted"],
        "map_cached": c["green"],
        "map_used": c["blue"],
        "map_leased": c["yellow"],
        "map_waste": c["red"],
        "map_reserved": c["purple"],
        "stale": f"italic {c['muted']}",
        "code": c["blue"],
        "brand": f"bold {c['on']} on {c['blue']}",
        "tab": c["muted"],
        "tab_on": f"bold {c['bright']} on {c['raised']}",
        "bar": f"{c['text']} on {c['raised']}",
        "key": f"bold {c['yellow']} on {c['raised']}",
        "key_text": f"{c['muted']} on {c['raised']}",
        "select": f"bold {c['bright']} on {c['select']}",
        "select_cell": f"bold {c['on']} on {c['yellow']}",
        "banner_ok": f"bold {c['on']} on {c['green']}",
        "banner_bad": f"bold {c['on']} on {c['red']}",
        "banner_warn": f"bold {c['on']} on {c['orange']}",
        "banner_unknown": f"bold {c['on']} on {c['purple']}",
        "banner_wait": f"bold {c['bright']} on {c['raised']}",
    }


def _mixed(one: str, other: str, share: float) -> str:
    """The colour that lies ``share`` of the way from one to the other (``#rrggbb``)."""
    pairs = [(int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


DARK = Palette(
    "okabe-dark",
    True,
    "#0d1117",
    "#d6dde6",
    _coloured(
        {
            "text": "#d6dde6",
            "bright": "#ffffff",
            "muted": "#8e9aa8",
            "faint": "#3a4450",
            "title": "#a9c7e8",
            "blue": "#56b4e9",
            "fill": "#1d4a68",
            "green": "#2dbd94",
            "orange": "#f0a830",
            "red": "#f4764a",
            "yellow": "#f0e442",
            "purple": "#d58fb8",
            "raised": "#1b2430",
            "select": "#26405c",
            "on": "#0d1117",
        }
    ),
)
LIGHT = Palette(
    "okabe-light",
    False,
    "#fbfbf9",
    "#24292f",
    _coloured(
        {
            "text": "#24292f",
            "bright": "#000000",
            "muted": "#5a6570",
            "faint": "#c3cad1",
            "title": "#1b4f7a",
            "blue": "#0072b2",
            "fill": "#a9d0ea",
            "green": "#007a5a",
            "orange": "#9a6200",
            "red": "#b84a00",
            "yellow": "#7a6a00",
            "purple": "#97407a",
            "raised": "#e9ecef",
            "select": "#cfe3f3",
            "on": "#ffffff",
        }
    ),
)
CONTRAST = Palette(
    "high-contrast",
    True,
    "#000000",
    "#ffffff",
    _coloured(
        {
            "text": "#ffffff",
            "bright": "#ffffff",
            "muted": "#d0d0d0",
            "faint": "#8a8a8a",
            "title": "#ffffff",
            "blue": "#6ccbff",
            "fill": "#2f7fae",
            "green": "#3ce0b0",
            "orange": "#ffb52e",
            "red": "#ff8a5c",
            "yellow": "#fff04d",
            "purple": "#f0a6d4",
            "raised": "#262626",
            "select": "#00487a",
            "on": "#000000",
        }
    ),
)
MONO = Palette(
    "mono",
    True,
    "",
    "",
    {
        **dict.fromkeys(DARK.definitions, ""),
        "strong": "bold",
        "faint": "dim",
        "title": "bold",
        "head": "bold",
        "value": "bold",
        "warn": "bold",
        "bad": "bold",
        "stale": "italic",
        "brand": "bold reverse",
        "tab_on": "bold underline",
        "key": "bold",
        "select": "bold underline",
        "select_cell": "reverse",
        "banner_ok": "reverse",
        "banner_bad": "bold reverse",
        "banner_warn": "bold reverse",
        "banner_unknown": "bold reverse",
        "banner_wait": "bold",
    },
)

THEMES: tuple[Palette, ...] = (DARK, LIGHT, CONTRAST)
