"""Messages between farm's agents and a lab, beside TVM's protocol, as types with named fields.

An agent says `farm` in UPDATE_INFO, and learns from the answer to the PING that follows whether
the tracker is a lab. Then it sends its whole state regularly, in sessions too, and how each session
has ended. It is a stranger: what it says is bounded here in length, range and form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.tracker.errors import ProtocolError

HEARTBEAT_S = 10.0
ENDINGS = ("closed", "error", "signal", "timeout", "gone", "told")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MOST_CHARACTERS = 100
_MOST_MATCH_KEY_CHARACTERS = 1024
_LONGEST_S = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class BoardSession:
    """A session that runs: its match key, since how long, and how long it may still last.

    `ends_s` is None where its client has set no limit.
    """

    match_key: str
    since_s: float
    ends_s: float | None = None


@dataclass(frozen=True, slots=True)
class AgentHello:
    """Who an agent is: its board's name (may be empty), its version, and the boot of its system."""

    board: str
    version: str
    boot: str
    session: BoardSession | None = None


@dataclass(frozen=True, slots=True)
class BoardState:
    """How a board is doing; None for what it does not tell."""

    temperature_c: float | None = None
    throttled: int | None = None
    load_1m: float | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The whole state of a board. Without a session it is idle, and its offer says so."""

    session: BoardSession | None
    state: BoardState


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session that has ended: one of ENDINGS, with the number of the signal that killed it."""

    match_key: str
    how: str
    signal: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EndSessionRequest:
    """A session that a lab wants its agent to end, and why."""

    match_key: str
    why: str


@dataclass(frozen=True, slots=True)
class AgentRequests:
    """The requests of a lab to an agent: end a session; hold, that is, do not offer the board."""

    end: EndSessionRequest | None = None
    hold: bool = False


def parse_hello(value: object) -> AgentHello | None:
    """Return the `farm` of an UPDATE_INFO; None for TVM's own servers. Raises ProtocolError."""
    if value is None:
        return None
    body = _object(value, "farm")
    board = _text(body, "board")
    if board and not _NAME.fullmatch(board):
        raise ProtocolError("a board's name that is none")
    return AgentHello(board, _text(body, "agent"), _text(body, "boot"), _session(body))


def parse_heartbeat(value: object) -> Heartbeat:
    """Return a heartbeat. Raises ProtocolError."""
    body = _object(value, "heartbeat")
    state = _object(body.get("state"), "state")
    throttled, free = _number(state, "throttled"), _number(state, "free_bytes")
    return Heartbeat(
        _session(body),
        BoardState(
            _number(state, "temperature_c"),
            None if throttled is None else int(throttled),
            _number(state, "load_1m"),
            None if free is None else int(free),
        ),
    )


def parse_session_ended(value: object) -> SessionEnded:
    """Return the end of a session. Raises ProtocolError."""
    body = _object(value, "end of a session")
    how = _text(body, "how")
    if how not in ENDINGS:
        raise ProtocolError("a session that has ended in no known way")
    signal = int(_number(body, "signal") or 0)
    return SessionEnded(_match_key(body), how, signal, _seconds(body, "seconds"))


def _session(body: Mapping[str, Any]) -> BoardSession | None:
    if body.get("session") is None:
        return None
    session = _object(body["session"], "session")
    ends = None if session.get("ends_s") is None else _seconds(session, "ends_s")
    return BoardSession(_match_key(session), _seconds(session, "since_s"), ends)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"a {what} that is no object")
    return value


def _text(body: Mapping[str, Any], name: str, most: int = _MOST_CHARACTERS) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > most:
        raise ProtocolError(f"a {name} that is no text of at most {most} characters")
    return value


def _match_key(body: Mapping[str, Any]) -> str:
    return _text(body, "match_key", _MOST_MATCH_KEY_CHARACTERS)


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    try:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and math.isfinite(number := float(value)):
            return number
    except OverflowError:
        pass
    raise ProtocolError(f"a {name} that is no number")


def _seconds(body: Mapping[str, Any], name: str) -> float:
    """Return a duration; one that is longer than a year is a year."""
    value = _number(body, name)
    if value is None or value < 0:
        raise ProtocolError(f"a {name} that is no duration")
    return min(value, _LONGEST_S)
