from __future__ import annotations

import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.config.toml_parser import parse

TRICKY = '''# a comment with [devices.fake] in it
top = 1

[devices.pi3] # after a header
url = "local:" # = [not.a.table]
"quoted key" = 'it''s'
options.threads = 4
options . deadline_s = 5.0
"a.b"."c\\u0064" = true

[ devices . "my host" ]
text = """
[devices.fake]
url = "x"
\\""" still text"""
raw = \'\'\'
[devices.fake2]
\'\'\'
list = [
  "[x]", # ]
  [1, 2], { a = 1, b = [
    3] },
]
after = 1979-05-27

[[things]]
name = 1
[[things]]
name = 2
'''.replace("'it''s'", "'its'")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("devices",), 4),
        (("devices", "pi3"), 4),
        (("devices", "pi3", "url"), 5),
        (("devices", "pi3", "quoted key"), 6),
        (("devices", "pi3", "options"), 7),
        (("devices", "pi3", "options", "threads"), 7),
        (("devices", "pi3", "options", "deadline_s"), 8),
        (("devices", "pi3", "a.b", "cd"), 9),
        (("devices", "my host"), 11),
        (("devices", "my host", "text"), 12),
        (("devices", "my host", "raw"), 16),
        (("devices", "my host", "list"), 19),
        (("devices", "my host", "list", 0), 20),
        (("devices", "my host", "list", 1, 1), 21),
        (("devices", "my host", "list", 2, "b", 0), 22),
        (("devices", "my host", "after"), 24),
        (("things", 1, "name"), 29),
        (("devices", "pi3", "unheard", "of"), 4),
        (("nowhere",), 1),
    ],
)
def test_every_key_has_its_line(path: tuple[str | int, ...], line: int) -> None:
    assert parse(TRICKY).line(path) == line


def test_valid_toml_is_read_as_tomllib_reads_it() -> None:
    parsed = parse(TRICKY)
    assert parsed.data == tomllib.loads(TRICKY)
    assert (parsed.mistakes, parsed.sound) == ([], True)
    assert "fake" not in parsed.names("devices")


def test_windows_line_ends_change_no_line() -> None:
    parsed = parse(TRICKY.replace("\n", "\r\n"))
    assert parsed.lines == parse(TRICKY).lines
    assert parsed.mistakes == []


def found(text: str) -> list[tuple[int, str]]:
    return [(one.line, ".".join(map(str, one.path))) for one in parse(text).mistakes]


def test_all_duplicates_are_found_and_the_first_is_kept() -> None:
    text = (
        "[a]\nx = 1\nx = 2\n[b]\ny = [\n1]\ny = [\n2,\n3]\n[a]\nx = 4\nz = 5\n[b.c]\n[b.c]\nq = "
        "{r = 1, r = 2}\n"
    )
    assert found(text) == [(3, "a.x"), (7, "b.y"), (10, "a"), (14, "b.c")]
    assert parse(text).data == {"a": {"x": 1}, "b": {"y": [1], "c": {}}}


def test_a_duplicate_tells_where_the_first_one_is() -> None:
    assert (
        parse("a = 1\nb = 2\na = 3\n").mistakes[0].message
        == "defined twice, the first time in line 1"
    )


def test_a_key_repeated_in_an_inline_table_is_found() -> None:
    parsed = parse("a = 1\nq = {r = 1, r = 2}\n")
    assert [(one.line, one.path) for one in parsed.mistakes] == [(2, ("q", "r"))]
    assert parsed.data == {"a": 1}
    assert parsed.is_broken(("q",))


def test_a_key_in_a_value_is_found_after_any_number_of_values() -> None:
    text = "".join(f"[devices.d{each}]\ntags = [\n  1,\n]\n" for each in range(50))
    parsed = parse(text + "q = {r = 1, r = 2}\n")
    assert parsed.line(("devices", "d49", "tags", 0)) == 199
    assert [(one.line, one.path) for one in parsed.mistakes] == [
        (201, ("devices", "d49", "q", "r"))
    ]


def test_a_table_that_was_defined_as_a_key_is_found() -> None:
    assert found("[a]\nb = {}\n[a.b]\n") == [(3, "a.b")]


def test_a_bad_value_is_stepped_over_and_the_rest_is_read() -> None:
    parsed = parse("[a]\nx = local:\ny = 1\nno equals sign\nz = 08\n[b]\nw = 'open\n")
    assert [one.line for one in parsed.mistakes] == [2, 4, 5, 7]
    assert parsed.mistakes[0].message == "not valid TOML: invalid value (text needs quotes)"
    assert (parsed.data, parsed.sound) == ({"a": {"y": 1}, "b": {}}, True)
    assert parsed.is_broken(("a", "x"))
    assert not parsed.is_broken(("a", "y"))


@pytest.mark.parametrize(
    "text",
    ["[a\nx = 1\n", "[a]\nx = [1,\n[b]\ny = 2\n", 'x = """never closed\n[b]\n', "[a]]\n", "[]\n"],
)
def test_what_cannot_be_stepped_over_is_told_without_guesses(text: str) -> None:
    parsed = parse(text)
    assert len(parsed.mistakes) == 1
    assert not parsed.sound


def test_an_unclosed_table_leads_to_no_false_duplicates() -> None:
    parsed = parse("[a]\nx = { p = 1\np = 2\n[b]\np = 3\n")
    assert not any("twice" in one.message for one in parsed.mistakes)
    assert parsed.mistakes


@pytest.mark.parametrize(
    "text",
    [
        *("x = " + part * 100_000 for part in ("[", "{a=", "{", "{=", "[{", "{[", "={")),
        "[" * 100_000,
        "." * 100_000,
    ],
)
def test_deep_nesting_is_told_and_ends(text: str) -> None:
    assert parse(text).mistakes


@settings(suppress_health_check=list(HealthCheck))
@given(st.text("ab.=[]{}\"'#\\,1 \n", max_size=60))
def test_any_text_comes_to_an_end_and_only_valid_toml_has_no_mistakes(text: str) -> None:
    parsed = parse(text)
    try:
        expected = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert parsed.mistakes
    else:
        assert not parsed.mistakes
        assert parsed.data == expected
    assert all(1 <= one.line <= text.count("\n") + 1 for one in parsed.mistakes)


def test_a_number_of_more_digits_than_python_reads_is_told_with_its_line() -> None:
    parsed = parse(f"[a]\nx = 1\ny = {'9' * 5000}\n")
    assert [(one.line, one.path, one.message) for one in parsed.mistakes] == [
        (3, ("a", "y"), "not valid TOML: a number of too many digits")
    ]
    assert parsed.data == {"a": {"x": 1}}


@pytest.mark.parametrize("text", ["[a{}]\n", "[[a{}]]\n", "a{} = 1\n", "x = {{ a{} = 1 }}\n"])
def test_a_key_of_very_many_parts_is_told_and_costs_no_time(text: str) -> None:
    parsed = parse(text.format(".a" * 100_000))
    assert [one.message for one in parsed.mistakes] == [
        "not valid here: a key of more than 40 parts"
    ]
