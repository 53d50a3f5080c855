"""TOML with line numbers: where each key stands, what is defined twice, and every syntax error that can be stepped over.

`tomllib` tells no lines and stops at the first error. A scanner of statements (table headers and `key = value`, see the TOML 1.0
specification) finds the lines and the duplicates; statements that are wrong are blanked out, and `tomllib` reads the rest.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Key = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\n\r]|#[^\n]*)*")
_TO_END_OF_LINE = re.compile(r"[^\n]*")
_BARE_KEY = re.compile(r"[^\s.:=\[\]{}\"',#]+")
_QUOTED_KEY = re.compile(r'"(?:\\[^\n]|[^"\\\n])*"?' + r"|'[^'\n]*'?")
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")
_STRING = re.compile(r'"""(?:\\.|(?!""").)*(?:"{3,5}|\Z)' + r"|'''(?:(?!''').)*(?:'{3,5}|\Z)|" + _QUOTED_KEY.pattern, re.DOTALL)
_AT = re.compile(r" \((?:at line (\d+), column \d+|at end of document)\)$")
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something wrong in the file, at a line and at a key (empty where there is none)."""

    line: int
    path: Key
    message: str


@dataclass(frozen=True, slots=True)
class Statement:
    """A table header or a `key = value`, from its first to its last line (counted from 1)."""

    path: Key
    first: int
    last: int
    header: bool


@dataclass(slots=True)
class Parsed:
    """What was read. `sound` is false where what is missing from `data` cannot be told; `broken` holds keys left out of it."""

    data: dict[str, Any]
    lines: Mapping[Key, int]
    mistakes: list[Mistake]
    broken: set[Key]
    sound: bool

    def line(self, path: Key) -> int:
        """The line of a key, or of the nearest table around it."""
        return next((self.lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in self.lines), 1)

    def is_broken(self, path: Key) -> bool:
        """Whether a statement at or beneath the key was left out, so that it is not known what is there."""
        return any(one[: len(path)] == path for one in self.broken)

    def names(self, table: str) -> set[str]:
        """The tables `[table.NAME]` of the file, the broken ones too."""
        return {str(path[1]) for path in self.lines if len(path) > 1 and path[0] == table}


def loads(text: str) -> dict[str, Any]:
    """Read TOML that is known to be right."""
    data: dict[str, Any] = tomllib.loads(text)
    return data


def parse(text: str) -> Parsed:
    """Read TOML. Never raises: what is wrong is in `mistakes`."""
    text = text.replace("\r\n", "\n")
    scan = _Scanner(text)
    scan.scan()
    rows = text.split("\n")
    broken: set[Key] = set()
    mistakes = []
    for statement, path, line in scan.duplicates:
        mistakes.append(Mistake(line, path, f"defined twice, the first time in line {scan.defined[path]}"))
        _blank(rows, scan.statements, statement)
        if statement.path != path:
            broken.add(statement.path)
    while True:
        try:
            return Parsed(tomllib.loads("\n".join(rows)), scan.lines, mistakes, broken, True)
        except RecursionError:
            return Parsed({}, scan.lines, [*mistakes, Mistake(1, (), "not valid TOML: nested too deeply")], broken, False)
        except tomllib.TOMLDecodeError as error:
            line = _line_of(error, rows)
            found = next((one for one in scan.statements if one.first <= line <= one.last), None)
            mistakes.append(Mistake(line, found.path if found else (), _in_words(error)))
            if found is None or found.header or found.first != found.last or not rows[line - 1]:
                return Parsed({}, scan.lines, mistakes, broken, False)
            rows[line - 1] = ""
            broken.add(found.path)


def _blank(rows: list[str], statements: list[Statement], wrong: Statement) -> None:
    last = wrong.last
    if wrong.header:
        following = (one.first for one in statements if one.header and one.first > wrong.first)
        last = next(following, len(rows) + 1) - 1
    rows[wrong.first - 1 : last] = [""] * (last - wrong.first + 1)


def _line_of(error: ValueError, rows: list[str]) -> int:
    match = _AT.search(str(error))
    return int(match[1]) if match and match[1] else max((number for number, row in enumerate(rows, 1) if row.strip()), default=1)


def _in_words(error: ValueError) -> str:
    message = _AT.sub("", str(error))
    hint = " (text needs quotes)" if message == "Invalid value" else ""
    return f"not valid TOML: {message[:1].lower()}{message[1:]}{hint}"


@dataclass(slots=True)
class _Scanner:
    """Goes over any text, valid or not, and always comes to its end."""

    text: str
    at: int = 0
    lines: dict[Key, int] = field(default_factory=dict)
    defined: dict[Key, int] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    duplicates: list[tuple[Statement, Key, int]] = field(default_factory=list)
    _repeated: list[tuple[Key, int]] = field(default_factory=list)
    _in_repeated_table: bool = False
    _newlines: list[int] = field(default_factory=list)

    def scan(self) -> None:
        self._newlines = [match.start() for match in re.finditer("\n", self.text)]
        table: Key = ()
        while self._skip(_BLANK) < len(self.text):
            first = self._line()
            header = self.text[self.at] == "["
            if header:
                table = path = self._header()
            else:
                path = self._key_value(table)
            last = self._line()
            self._skip(_TO_END_OF_LINE)
            statement = Statement(path, first, last, header)
            self.statements.append(statement)
            self.duplicates += [(statement, twice, line) for twice, line in self._repeated]
            if header:
                self._in_repeated_table = bool(self._repeated)
            self._repeated.clear()

    def _header(self) -> Key:
        self._in_repeated_table = False
        line = self._line()
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        path = self._key()
        if array:
            index = 0
            while (*path, index) in self.lines:
                index += 1
            path = (*path, index)
            self._mention(path, line)
        else:
            self._define(path, line)
        return path

    def _key_value(self, table: Key) -> Key:
        line = self._line()
        path = table + self._key()
        if path != table:
            self._define(path, line)
        if self.text.startswith("=", self.at):
            self.at += 1
            self._value(path)
        return path

    def _key(self) -> Key:
        """A dotted key; what follows it is the next to read."""
        parts: list[str | int] = []
        while True:
            self._skip(_SPACE)
            start = self.at
            if match := _BARE_KEY.match(self.text, self.at):
                parts.append(match[0])
                self.at = match.end()
            elif self.text.startswith(('"', "'"), self.at):
                self._skip(_QUOTED_KEY)
                parts.append(_unquoted(self.text[start : self.at]))
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _value(self, path: Key) -> None:
        self._skip(_SPACE)
        following = self.text[self.at : self.at + 1]
        if following in ('"', "'"):
            self._skip(_STRING)
        elif following in ("[", "{") and len(path) < _DEEPEST:
            self._items(path, "]" if following == "[" else "}")
        else:
            self._skip(_BARE_VALUE)

    def _items(self, path: Key, closing: str) -> None:
        """An array or an inline table, over as many lines as it takes."""
        self.at += 1
        index = 0
        while self._skip(_BLANK) < len(self.text):
            start = self.at
            if self.text[self.at] == closing:
                self.at += 1
                return
            if closing == "}" and self.text[self.at] == "[":
                break
            if closing == "]":
                self._mention((*path, index), self._line())
                self._value((*path, index))
            else:
                self._key_value(path)
            index += 1
            self._skip(_BLANK)
            if self.text.startswith(",", self.at) or self.at == start:
                self.at += 1
        self._repeated.clear()  # it was never closed: what came after is not of it

    def _define(self, path: Key, line: int) -> None:
        if self._in_repeated_table:  # what a repeated table holds is repeated with it
            return
        if path in self.defined:
            self._repeated.append((path, line))
        self.defined.setdefault(path, line)
        self._mention(path, line)

    def _mention(self, path: Key, line: int) -> None:
        if self._in_repeated_table:
            return
        for size in range(1, len(path)):
            self.lines.setdefault(path[:size], line)
        if path in self.defined:
            self.lines[path] = self.defined[path]
        else:
            self.lines.setdefault(path, line)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def _line(self) -> int:
        return bisect.bisect_left(self._newlines, self.at) + 1


def _unquoted(text: str) -> str:
    try:
        return str(tomllib.loads(f"key = {text}")["key"])
    except ValueError:
        return text.strip("\"'")
