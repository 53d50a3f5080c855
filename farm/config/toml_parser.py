"""TOML parser with line numbers, duplicate definitions, and recovery after syntax errors.

`tomllib` reports no lines of keys and stops at the first error. A scanner of statements (table
headers and `key = value`, see the TOML 1.0 specification) finds the lines and the duplicates; wrong
statements are blanked out, and `tomllib` parses the rest.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\n\r]|#[^\n]*)*")
_TO_END_OF_LINE = re.compile(r"[^\n]*")
_BARE_KEY = re.compile(r"[^\s.:=\[\]{}\"',#]+")
_QUOTED_KEY = re.compile(r'"(?:\\[^\n]|[^"\\\n])*"?' + r"|'[^'\n]*'?")
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")
_STRING = re.compile(
    r'"""(?:\\.|(?!""").)*(?:"{3,5}|\Z)' + r"|'''(?:(?!''').)*(?:'{3,5}|\Z)|" + _QUOTED_KEY.pattern,
    re.DOTALL,
)
_AT = re.compile(r" \((?:at line (\d+), column \d+|at end of document)\)$")
# 640 digits, the lowest limit that sys.set_int_max_str_digits accepts
_LONG_NUMBER = re.compile(r"[0-9](?:_?[0-9]){639}")
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in the file, at a line and at a key (empty if there is none)."""

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
class ParseResult:
    """The result of parsing.

    `sound` is false if it is unknown what is missing from `data`; `broken` holds the keys left out
    of it.
    """

    data: dict[str, Any]
    lines: Mapping[Key, int]
    mistakes: list[Mistake]
    broken: set[Key]
    sound: bool

    def line(self, path: Key) -> int:
        """Return the line of a key, or of the nearest enclosing table."""
        return next(
            (
                self.lines[path[:size]]
                for size in range(len(path), 0, -1)
                if path[:size] in self.lines
            ),
            1,
        )

    def is_broken(self, path: Key) -> bool:
        """Return whether a statement at or below the key was left out.

        If so, the value of the key is unknown.
        """
        return any(one[: len(path)] == path for one in self.broken)

    def names(self, table: str) -> set[str]:
        """Return the names of the tables `[table.NAME]` of the file, including broken ones."""
        return {str(path[1]) for path in self.lines if len(path) > 1 and path[0] == table}


def parse_valid_without_lines(text: str) -> dict[str, Any]:
    """Return the data of a TOML text that is known to be valid."""
    data: dict[str, Any] = tomllib.loads(text)
    return data


def statements(text: str) -> list[Statement]:
    """Return the table headers and `key = value` statements of a text, in order.

    Line breaks must be "\\n".
    """
    scan = _Scanner(text)
    scan.scan()
    return scan.statements


def parse(text: str) -> ParseResult:
    """Parse TOML. Never raises: errors are in `mistakes`."""
    text = text.replace("\r\n", "\n")
    scan = _Scanner(text)
    scan.scan()
    rows = text.split("\n")
    broken: set[Key] = set()
    mistakes = []
    if scan.long_keys:  # their cost is quadratic in their length, here and in tomllib
        told = [
            Mistake(line, (), f"not valid here: a key of more than {_DEEPEST} parts")
            for line in scan.long_keys
        ]
        return ParseResult({}, scan.lines, told, broken, False)
    for statement, path, line in scan.duplicates:
        mistakes.append(
            Mistake(line, path, f"defined twice, the first time in line {scan.defined[path]}")
        )
        _blank(rows, scan.statements, statement)
        if statement.path != path:
            broken.add(statement.path)
    while True:
        try:
            return ParseResult(tomllib.loads("\n".join(rows)), scan.lines, mistakes, broken, True)
        except RecursionError:
            return ParseResult(
                {},
                scan.lines,
                [*mistakes, Mistake(1, (), "not valid TOML: nested too deeply")],
                broken,
                False,
            )
        # a TOMLDecodeError, or the error for a number with more digits than Python parses
        except ValueError as error:
            line = _line_of(error, rows)
            found = next((one for one in scan.statements if one.first <= line <= one.last), None)
            mistakes.append(Mistake(line, found.path if found else (), _in_words(error)))
            if found is None or found.header or found.first != found.last or not rows[line - 1]:
                return ParseResult({}, scan.lines, mistakes, broken, False)
            rows[line - 1] = ""
            broken.add(found.path)


def _blank(rows: list[str], statements: list[Statement], wrong: Statement) -> None:
    """Blank out a wrong statement; with a header, its whole table."""
    last = wrong.last
    if wrong.header:
        following = (one.first for one in statements if one.header and one.first > wrong.first)
        last = next(following, len(rows) + 1) - 1
    rows[wrong.first - 1 : last] = [""] * (last - wrong.first + 1)


def _line_of(error: ValueError, rows: list[str]) -> int:
    """Return the line of a parse error."""
    if not isinstance(error, tomllib.TOMLDecodeError):
        return next((number for number, row in enumerate(rows, 1) if _LONG_NUMBER.search(row)), 1)
    match = _AT.search(str(error))
    return (
        int(match[1])
        if match and match[1]
        else max((number for number, row in enumerate(rows, 1) if row.strip()), default=1)
    )


def _in_words(error: ValueError) -> str:
    """Return a parse error's message in farm's wording."""
    if not isinstance(error, tomllib.TOMLDecodeError):
        return "not valid TOML: a number of too many digits"
    message = _AT.sub("", str(error))
    hint = " (text needs quotes)" if message == "Invalid value" else ""
    return f"not valid TOML: {message[:1].lower()}{message[1:]}{hint}"


@dataclass(slots=True)
class _Scanner:
    """A scanner that accepts any text, valid or not, and always terminates."""

    text: str
    at: int = 0
    lines: dict[Key, int] = field(default_factory=dict)
    defined: dict[Key, int] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    duplicates: list[tuple[Statement, Key, int]] = field(default_factory=list)
    long_keys: list[int] = field(default_factory=list)  # lines of keys with too many parts
    _repeated: list[tuple[Key, int]] = field(default_factory=list)
    _in_repeated_table: bool = False
    _depth: int = 0  # nesting of arrays and inline tables, with or without a key
    _newlines: list[int] = field(default_factory=list)

    def scan(self) -> None:
        """Scan the whole text, and record its statements and duplicates."""
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
        """Scan a table header; return its path."""
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
        """Scan a `key = value` in a table; return its path."""
        line = self._line()
        path = table + self._key()
        if path != table:
            self._define(path, line)
        if self.text.startswith("=", self.at):
            self.at += 1
            self._value(path)
        return path

    def _key(self) -> Key:
        """Return a dotted key, and move behind it."""
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
                break
            self.at += 1
        if len(parts) > _DEEPEST:
            self.long_keys.append(self._line())
        return tuple(parts[:_DEEPEST])

    def _value(self, path: Key) -> None:
        """Skip a value, and record the keys in it."""
        self._skip(_SPACE)
        following = self.text[self.at : self.at + 1]
        if following in ('"', "'"):
            self._skip(_STRING)
        elif following in ("[", "{") and self._depth < _DEEPEST:
            self._depth += 1
            self._items(path, "]" if following == "[" else "}")
            self._depth -= 1
        else:
            self._skip(_BARE_VALUE)

    def _items(self, path: Key, closing: str) -> None:
        """Skip an array or an inline table, over any number of lines, and record the keys in it."""
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
        self._repeated.clear()  # it was never closed: the text after it does not belong to it

    def _define(self, path: Key, line: int) -> None:
        """Record a definition of a key, or that it is repeated."""
        if self._in_repeated_table:  # the content of a repeated table is repeated with it
            return
        if path in self.defined:
            self._repeated.append((path, line))
        self.defined.setdefault(path, line)
        self._mention(path, line)

    def _mention(self, path: Key, line: int) -> None:
        """Record the line of a key and of the tables around it, if not known yet."""
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
        """Return the current line, counted from 1."""
        return bisect.bisect_left(self._newlines, self.at) + 1


def _unquoted(text: str) -> str:
    """Return a quoted key's text."""
    try:
        return str(tomllib.loads(f"key = {text}")["key"])
    except ValueError:
        return text.strip("\"'")
