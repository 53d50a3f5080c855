"""The messages of TVM's tracker protocol, as types with named fields.

A message is JSON: a list whose first item is a code (`TrackerCode` of tvm/rpc/base.py). What a
stranger sends is bounded in length and form here: beyond this module a message is one of `Message`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

from farm.sanitize import is_utf8_encodable
from farm.tracker.agent_messages import (
    AgentHello,
    AgentRequests,
    Heartbeat,
    SessionEnded,
    parse_heartbeat,
    parse_hello,
    parse_session_ended,
)
from farm.tracker.errors import ProtocolError
from farm.tracker.scheduler import Summary

MAGIC = struct.pack("<i", 0x2F271)
SUCCESS, FAIL = 0, -1
MOST_KEY_CHARACTERS = 256
MOST_MATCH_KEY_CHARACTERS = 1024
MOST_HOST_CHARACTERS = 255


class Code(IntEnum):
    """What a message is: TrackerCode of TVM."""

    PING = 1
    STOP = 2
    PUT = 3
    REQUEST = 4
    UPDATE_INFO = 5
    SUMMARY = 6
    PENDING = 7


class AgentCode(IntEnum):
    """The messages of farm's agents to a lab, beside TVM's."""

    HEARTBEAT = 101
    ENDED = 102


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients find a server. A host of None is the one that the server connects from.

    The port of an agent in C++ may be a string, and is handed out as it came.
    """

    host: str | None
    port: int | str


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask whether the tracker is there."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the tracker to end, which a stranger may not."""


@dataclass(frozen=True, slots=True)
class Put:
    """Offer a board for one session, under a match key."""

    key: str
    place: Address
    match_key: str


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for a board of a key."""

    key: str
    priority: float


@dataclass(frozen=True, slots=True)
class UpdateInfo:
    """Tell who one is: "server:KEY" for a server, and where clients find it."""

    name: str
    place: Address
    agent: AgentHello | None = None


@dataclass(frozen=True, slots=True)
class AskSummary:
    """Ask for the servers and the queues."""


@dataclass(frozen=True, slots=True)
class AskPendingMatchKeys:
    """Ask which of the match keys that one has offered nobody has been given."""


Message = (
    Ping
    | Stop
    | Put
    | Request
    | UpdateInfo
    | AskSummary
    | AskPendingMatchKeys
    | Heartbeat
    | SessionEnded
)


def parse_message(content: bytes) -> Message:
    """Return the message in a frame. Raises ProtocolError."""
    try:
        value = json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:  # UnicodeDecodeError is a ValueError
        raise ProtocolError("a message that is not JSON, or is nested too deeply") from exc
    match value:
        case [int(code), *_] if isinstance(code, bool):
            raise ProtocolError("a message without a code")
        case [Code.PING]:
            return Ping()
        case [Code.STOP, *_]:
            return Stop()
        case [Code.PUT, key, [port, match_key]] | [Code.PUT, key, [port, match_key], None]:
            return Put(_key(key), Address(None, _port(port)), _match_key(match_key))
        case [Code.PUT, key, [port, match_key], host]:
            return Put(_key(key), Address(_host(host), _port(port)), _match_key(match_key))
        case [Code.REQUEST, key, _, int(priority) | float(priority)] if not isinstance(
            priority, bool
        ):
            return Request(_key(key), _priority(priority))
        case [Code.UPDATE_INFO, {"key": key, "addr": [host, port]}]:
            place = Address(None if host is None else _host(host), _port(port))
            name = _text(key, "key", MOST_KEY_CHARACTERS + len("server:"))
            return UpdateInfo(name, place, parse_hello(value[1].get("farm")))
        case [Code.SUMMARY]:
            return AskSummary()
        case [Code.PENDING]:
            return AskPendingMatchKeys()
        case [AgentCode.HEARTBEAT, body]:
            return parse_heartbeat(body)
        case [AgentCode.ENDED, body]:
            return parse_session_ended(body)
        case [int(code), *_] if code in set(Code):
            raise ProtocolError(f"a {Code(code).name} in another form than TVM's")
        case [int(code), *_] if abs(code) < 1 << 31:
            raise ProtocolError(f"a message of the unknown code {code}")
    raise ProtocolError("a message without a code")


def frame_message(value: Any) -> bytes:
    """Return a value as a message: the length of its JSON, then the JSON."""
    content = json.dumps(value).encode()
    return struct.pack("<i", len(content)) + content


def granted_answer(host: str, port: int | str, match_key: str) -> bytes:
    """Return the answer to a request that gets a board."""
    return frame_message([SUCCESS, [host, port, match_key]])


def refused_answer(why: str) -> bytes:
    """Return the answer to a request that gets none; TVM's client shows it."""
    return frame_message([FAIL, why])


def summary_answer(summary: Summary) -> bytes:
    """Return the answer to AskSummary."""
    queues = {
        key: {"free": queue.free, "pending": queue.waiting} for key, queue in summary.queues.items()
    }
    servers = [
        {"key": server.name, "addr": [server.host, server.port]} for server in summary.servers
    ]
    return frame_message([SUCCESS, {"queue_info": queues, "server_info": servers}])


def welcome_answer(heartbeat_s: float) -> bytes:
    """Return a lab's answer to the ping of an agent, which sends heartbeats from then on."""
    return frame_message([SUCCESS, {"farm": 1, "heartbeat_s": heartbeat_s}])


def agent_requests_answer(asked: AgentRequests) -> bytes:
    """Return a lab's answer to a heartbeat or the end of a session."""
    body: dict[str, Any] = {}
    if asked.hold:
        body["hold"] = True
    if asked.end:
        body["end"] = {"match_key": asked.end.match_key, "why": asked.end.why}
    return frame_message([SUCCESS, body])


def pending_match_keys_answer(match_keys: Sequence[str]) -> bytes:
    """Return the answer to AskPending."""
    return frame_message(list(match_keys))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _priority(value: float) -> float:
    """Return a priority as a float, so that a number of any length is cheap to compare."""
    try:
        return float(value)
    except OverflowError as exc:
        raise ProtocolError("a priority beyond all bounds") from exc


def _text(value: object, what: str, most: int) -> str:
    if not isinstance(value, str) or len(value) > most or not is_utf8_encodable(value):
        raise ProtocolError(f"a {what} that is no text of at most {most} characters")
    return value


def _key(value: object) -> str:
    return _text(value, "key", MOST_KEY_CHARACTERS)


def _match_key(value: object) -> str:
    return _text(value, "match key", MOST_MATCH_KEY_CHARACTERS)


def _host(value: object) -> str:
    return _text(value, "host", MOST_HOST_CHARACTERS)


def _port(value: object) -> int | str:
    match value:
        case bool():
            pass
        case int(number) if 0 <= number < 1 << 16:
            return number
        case str(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 5:
            return digits
    raise ProtocolError("a port that is none")
