"""The colours of farm's output.

Each is readable on a light and on a dark background, unlike a terminal's own colours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.theme import Theme

# Indices of xterm's 256 colours, by the names that styles use. All are mid-tones: only these have
# contrast with both white and black.
COLOURS = {"red": 161, "green": 28, "yellow": 130, "cyan": 30, "magenta": 164, "bright_black": 243}


def theme() -> Theme:
    """Return a rich theme with the colours by name, also in bold."""
    from rich.theme import Theme

    return Theme(
        {
            f"{weight}{name}": f"{weight}color({number})"
            for name, number in COLOURS.items()
            for weight in ("", "bold ")
        }
    )
