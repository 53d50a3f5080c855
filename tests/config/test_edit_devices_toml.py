"""A devices.toml that a program changes: the change is there, and everything else is as it was, to
the byte.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.config.edit import add_tables, format_table, remove_tables
from farm.config.locate import SHIPPED
from farm.errors import ConfigError

PI = {
    "profile": "rasp4",
    "url": "ssh://pi@pi4",
    "tags": ["lab"],
    "options": {"threads": 2, "store": "/data/a b"},
}
TEXT = SHIPPED.read_text()


def without_lines(text: str, begin: str, count: int) -> str:
    rows = text.split("\n")
    at = rows.index(begin)
    return "\n".join(rows[:at] + rows[at + count :])


def test_a_device_is_added_behind_the_others_and_above_the_next_section() -> None:
    changed = add_tables(TEXT, {("devices", "pi4"): PI})
    assert tomllib.loads(changed) == {
        **tomllib.loads(TEXT),
        "devices": {**tomllib.loads(TEXT)["devices"], "pi4": PI},
    }
    assert without_lines(changed, "[devices.pi4]", 6) == TEXT
    assert (
        changed.index("[devices.rk3399]")
        < changed.index("[devices.pi4]")
        < changed.index("# The same boards on SSH")
    )


def test_a_device_that_is_removed_leaves_the_comments_of_others() -> None:
    changed = remove_tables(TEXT, [("devices", "rk3399")])
    assert changed == without_lines(TEXT, "[devices.rk3399]", 5)
    assert "# --- Profiles" in changed and "rk3399" not in tomllib.loads(changed)["devices"]


def test_what_was_added_and_removed_leaves_no_trace() -> None:
    tables: dict[tuple[str, str], dict[str, Any]] = {
        ("devices", "a.b"): PI,
        ("profiles", "a.b"): {"inherits": "rasp4", "target": {"mcpu": "x"}},
    }
    assert remove_tables(add_tables(TEXT, tables), list(tables)) == TEXT


def test_line_breaks_stay_as_they_are() -> None:
    changed = add_tables(TEXT.replace("\n", "\r\n"), {("devices", "pi4"): PI})
    assert changed == add_tables(TEXT, {("devices", "pi4"): PI}).replace("\n", "\r\n")


def test_sub_tables_are_removed_with_their_table() -> None:
    text = (
        "[devices.a]\nurl = 'x'\n[devices.b]\nurl = 'y'\n[devices.a.options]\nkey = "
        "'''\n[devices.b]\n'''\n"
    )
    assert tomllib.loads(remove_tables(text, [("devices", "a")])) == {
        "devices": {"b": {"url": "y"}}
    }


@pytest.mark.parametrize(
    "text",
    [
        "devices = { a = { url = 'x' } }\n",
        "devices.a.url = 'x'\n",
        "[devices]\na = { url = 'x' }\n",
    ],
)
def test_what_a_program_cannot_change_is_left_to_an_editor(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        remove_tables(text, [("devices", "a")])
    assert caught.value.fix == "remove it in an editor"


def test_a_table_without_a_place_is_given_to_the_user() -> None:
    text = "devices = { a = { url = 'x' } }\n"
    with pytest.raises(ConfigError, match=r"devices\.pi4 cannot be added by a program") as caught:
        add_tables(text, {("devices", "pi4"): PI})
    assert format_table(("devices", "pi4"), PI) in caught.value.fix


VALUES = st.recursive(
    st.text()
    | st.integers(-(2**53), 2**53)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}", fullmatch=True)
TABLES = st.dictionaries(
    NAMES, st.dictionaries(st.text(min_size=1), VALUES, max_size=4), max_size=4
)


@given(
    before=TABLES,
    name=NAMES,
    table=st.dictionaries(st.text(), VALUES, max_size=4),
    comment=st.sampled_from(["", "# x\n", "\n\n# [devices.q]\n"]),
)
def test_any_table_is_added_and_removed(
    before: dict[str, Any], name: str, table: dict[str, Any], comment: str
) -> None:
    text = "".join(
        comment + format_table(("devices", one), content)
        for one, content in before.items()
        if one != name
    )
    changed = add_tables(text, {("devices", name): table})
    expected = {one: content for one, content in before.items() if one != name}
    assert tomllib.loads(changed)["devices"] == {**expected, name: table}
    assert tomllib.loads(remove_tables(changed, [("devices", name)])).get("devices", {}) == expected


def test_a_written_file_is_found_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "devices.toml"
    file.write_text(add_tables("", {("devices", "pi4"): PI}))
    assert file.read_text() == format_table(("devices", "pi4"), PI)
