"""What farm writes in colour can be read in a light terminal and in a dark one."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.color import Color
from rich.console import Console

import farm
from farm.commands.rich_theme import COLOURS, theme

LEAST = 4.0  # WCAG 2 asks for 4.5, on the very white and the very black
STYLE = re.compile(r'"(?:bold |dim )?(red|green|yellow|blue|cyan|magenta|white|black|bright_\w+)"')


def luminance(red: int, green: int, blue: int) -> float:
    """Relative luminance, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    parts = [
        value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4
        for value in (red, green, blue)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("name", COLOURS)
def test_a_colour_has_contrast_with_white_and_with_black(name: str) -> None:
    light = luminance(*Color.from_ansi(COLOURS[name]).get_truecolor())
    assert min((light + 0.05) / 0.05, 1.05 / (light + 0.05)) >= LEAST


def test_every_colour_that_tables_and_the_dashboard_use_is_one_of_them() -> None:
    root = Path(farm.__file__).parent
    sources = [
        root / "formatting.py",
        *(path for room in ("dashboard", "views") for path in (root / room).glob("*.py")),
    ]
    used = {name for path in sources for name in STYLE.findall(path.read_text("utf-8"))}
    assert used == set(COLOURS)


def test_a_style_by_its_usual_name_is_written_in_the_colour() -> None:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, color_system="256", theme=theme(), no_color=False
    )
    console.print("x", style="bold cyan", end="")
    assert file.getvalue() == f"\x1b[1;38;5;{COLOURS['cyan']}mx\x1b[0m"
