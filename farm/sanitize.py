"""Make text from outside safe to show on a terminal.

    sanitized_line(text)     a name or a cell: line breaks and controls become visible escapes
    sanitized_lines(text)    a log or a message of several lines, as a list of safe lines
    sanitized_block(text)    the same as one text
    is_utf8_encodable(text)  whether it can be written at all

Names in models, messages of boards, files and environment variables may contain escape sequences
(ECMA-48), marks that change the direction of writing (Unicode TR 9, CVE-2021-42574) and invisible
characters. farm.commands.output passes everything that is printed through here.
"""

from __future__ import annotations

import re
import unicodedata

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")  # SGR, which compilers use in their errors
_LINE_BREAK = re.compile(r"\r\n|\n|\r")
# Invisible but str.isprintable: Default_Ignorable_Code_Point without category Cf.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_terminal_safe(text: str) -> bool:
    """Return whether a terminal shows each character of a text as itself and does nothing else."""
    return text.isprintable() and not _INVISIBLE.search(text)


def is_utf8_encodable(text: str) -> bool:
    """Return whether a text can be written as UTF-8: JSON may hold half a character."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def sanitized_line(text: str) -> str:
    r"""Return a text on one line with everything visible: ESC as \x1b, a line break as \n.

    Colours (SGR sequences) and line breaks at the end are removed. Tabs, and spaces of other
    widths, become a space.
    """
    if is_terminal_safe(text):
        return text
    return "".join(map(_visible, _COLOUR.sub("", text).rstrip("\r\n")))


def sanitized_lines(text: str) -> list[str]:
    r"""Return the lines of a text, each as by `sanitized_line`. Only \n, \r\n and \r end a line."""
    return [sanitized_line(line) for line in _LINE_BREAK.split(text.rstrip("\r\n"))] if text else []


def sanitized_block(text: str, indent: str = "") -> str:
    """Return the lines of a text as one text, each but the first after `indent`."""
    return f"\n{indent}".join(sanitized_lines(text))


def _visible(char: str) -> str:
    if is_terminal_safe(char):
        return char
    if char == "\t" or unicodedata.category(char) == "Zs":
        return " "
    return char.encode("unicode_escape").decode("ascii")
