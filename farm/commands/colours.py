"""The colours that farm writes in: each stands out from a light ground and from a dark one, which a terminal's own need not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.theme import Theme

# Of the 256 of xterm, by the names that styles use. A mid-tone is the only one that has contrast with white and with black.
COLOURS = {"red": 161, "green": 28, "yellow": 130, "cyan": 30, "magenta": 164, "bright_black": 243}


def theme() -> Theme:
    """For a console: the colours by name, and bold."""
    from rich.theme import Theme

    return Theme({f"{weight}{name}": f"{weight}color({number})" for name, number in COLOURS.items() for weight in ("", "bold ")})
