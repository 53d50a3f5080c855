"""Change the text of a devices.toml: add the table of a device, or remove one.

The rest of the text stays as it is, with its comments, order and line breaks. (A library that edits
TOML takes the comments before a table for the end of the table above it: a removed table would take
the heading of the next section along.) Each change is verified: the changed text has the data of
the old one and the change, and nothing else.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Mapping
from typing import Any

from farm.config.toml_parser import Key, Statement, statements
from farm.errors import ConfigError

HEADING = (
    "# The farm: boards, and how to reach them. The reference of devices.toml lists all keys.\n"
)


def format_table(path: Key, table: Mapping[str, Any]) -> str:
    """Return a table as TOML, with its header and a line for each key."""
    rows = [f"{_key(name)} = {_value(value)}" for name, value in table.items()]
    return "\n".join([f"[{'.'.join(_key(str(part)) for part in path)}]", *rows, ""])


def add_tables(text: str, tables: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Return the text with tables added, such as ("devices", "pi4"), each behind those of its kind.

    Raises ConfigError if the text has no place for one, for example because `devices` is an inline
    table.
    """
    expected = copy.deepcopy(tomllib.loads(text))
    for (kind, name), table in tables.items():
        part = expected.setdefault(kind, {})
        if not isinstance(part, dict) or name in part:
            raise _no_place(kind, name, table)
        part[name] = dict(table)
    newline = "\r\n" if "\r\n" in text else "\n"
    changed = text.replace("\r\n", "\n")
    for (kind, name), table in tables.items():
        changed = _inserted(changed, _behind(changed, kind), format_table((kind, name), table))
        if not _is_toml(changed):
            raise _no_place(kind, name, table)
    if tomllib.loads(changed) != expected:
        raise _no_place(*next(iter(tables)), next(iter(tables.values())))
    return changed.replace("\n", newline)


def remove_tables(text: str, paths: list[tuple[str, str]]) -> str:
    """Return the text without tables; comments outside of them stay.

    Raises ConfigError if they cannot be removed alone, for example because a table is inline.
    """
    expected = copy.deepcopy(tomllib.loads(text))
    for kind, name in paths:
        del expected[kind][name]
    newline = "\r\n" if "\r\n" in text else "\n"
    rows = text.replace("\r\n", "\n").split("\n")
    gone: set[int] = set()
    for path in paths:
        for first, last in _sections("\n".join(rows), path):
            gone.update(range(first, last + 1))
            if last < len(rows) and not rows[last].strip():  # the blank line below, counted from 1
                gone.add(last + 1)
    changed = "\n".join(row for number, row in enumerate(rows, 1) if number not in gone)
    if not _is_toml(changed) or _filled(tomllib.loads(changed)) != _filled(expected):
        names = ", ".join(f"[{kind}.{name}]" for kind, name in paths)
        raise ConfigError(
            f"{names} cannot be removed by a program",
            "it is not a table with a header of its own",
            "remove it in an editor",
        )
    return changed.replace("\n", newline)


def _filled(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data without empty tables: the last table of its kind takes the kind along."""
    return {kind: table for kind, table in data.items() if table != {}}


def _sections(text: str, path: tuple[str, str]) -> list[tuple[int, int]]:
    """Return the first and last lines of the headers at or below a path, with their statements."""
    found: list[tuple[int, int]] = []
    inside = False
    for one in statements(text):
        if one.header:
            inside = one.path[:2] == path
            if inside:
                found.append((one.first, one.last))
        elif inside:
            found[-1] = (found[-1][0], one.last)
    return found


def _behind(text: str, kind: str) -> int:
    """Return the last line of the last table of a kind; 0 if there is none."""
    last, inside = 0, False
    for one in statements(text):
        inside = _is_of(one, kind) if one.header else inside
        last = one.last if inside else last
    return last


def _is_of(header: Statement, kind: str) -> bool:
    return len(header.path) > 1 and header.path[0] == kind


def _inserted(text: str, line: int, table: str) -> str:
    """Return the text with a table below a line, or at its end for line 0, between blank lines."""
    rows = text.split("\n")
    at = line or len(rows)
    before, after = "\n".join(rows[:at]).rstrip("\n"), "\n".join(rows[at:]).lstrip("\n")
    return "\n\n".join(part.rstrip("\n") for part in (before, table, after) if part) + "\n"


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except ValueError:
        return False
    return True


def _no_place(kind: str, name: str, table: Mapping[str, Any]) -> ConfigError:
    why = (
        f"the file defines {kind!r} in another way than by tables [{kind}.NAME], or has the name "
        "already"
    )
    return ConfigError(
        f"{kind}.{name} cannot be added by a program",
        why,
        f"add it in an editor:\n{format_table((kind, name), table)}",
    )


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _value(name)


def _value(value: Any) -> str:
    """Return a value as TOML. JSON's strings, numbers and booleans are TOML's."""
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items())
            + " }"
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
