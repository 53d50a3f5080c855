"""Text from outside is safe to show: no control, nothing hidden, no forged line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm import sanitize
from farm.errors import FarmError

ANY = st.text(st.characters()) | st.text("\x1b[]0;m\x07\\\n\r\t\x85\u2028\u202e\u200b\udc80a ")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", r"\x1b]0;title\x07x"),
        ("\x1b]8;;http://x\x1b\\link", r"\x1b]8;;http://x\x1b\link"),
        ("\x1b[2Jx", r"\x1b[2Jx"),
        ("\x1bMup", r"\x1bMup"),
        ("a\x1b[3\x1b[31m1mb", r"a\x1b[31mb"),
        ("one\r\ntwo\tthree", r"one\r\ntwo three"),
        ("a line\r\n", "a line"),
        ("\u202ertl\u2066", r"\u202ertl\u2066"),
        ("no\u200bthing\ufeff", r"no\u200bthing\ufeff"),
        ("a\u3164b\ufe0f", r"a\u3164b\ufe0f"),
        ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
        ("\udc80", r"\udc80"),
        ("\x7f\x9b2J", r"\x7f\x9b2J"),
        ("1\u202f000\xa0ms", "1 000 ms"),
        ("[red]x[/red] [link=http://x]y[/link]", "[red]x[/red] [link=http://x]y[/link]"),
        ("Grüße 板 ✓ \\x1b", "Grüße 板 ✓ \\x1b"),
    ],
)
def test_what_a_terminal_would_act_on_is_shown(text: str, shown: str) -> None:
    assert sanitize.sanitized_line(text) == shown


@given(ANY)
def test_a_line_is_safe_whatever_it_was(text: str) -> None:
    line = sanitize.sanitized_line(text)
    assert sanitize.is_terminal_safe(line) and line.isprintable()
    assert sanitize.sanitized_line(line) == line
    line.encode()


@given(ANY)
def test_lines_end_where_the_text_says_and_are_safe(text: str) -> None:
    found = sanitize.sanitized_lines(text)
    assert all(map(sanitize.is_terminal_safe, found))
    assert len(found) == (
        len(text.rstrip("\r\n").replace("\r\n", "\n").replace("\r", "\n").split("\n"))
        if text
        else 0
    )


@given(st.text(st.characters(categories=["L", "N", "P", "S"])).filter(sanitize.is_terminal_safe))
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert sanitize.sanitized_line(text) == text


@given(ANY.filter(bool), ANY)
def test_no_line_of_an_error_passes_for_another_part(what: str, why: str) -> None:
    parts = [label for label, text in (("error", what), ("why", why)) if text]
    at_the_margin = [
        line for line in str(FarmError(what, why)).split("\n") if not line.startswith(" ")
    ]
    assert [line.partition(": ")[0] for line in at_the_margin] == parts
