"""lab.toml: where the lab keeps and listens, its classes, owners' shares, and its boards."""

from __future__ import annotations

import re
import shlex
import sys
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm import sanitize
from farm.config.profiles import built_in_profile_tables
from farm.config.toml_parser import ParseResult, parse
from farm.errors import ConfigError, UsageError, did_you_mean
from farm.lab.care.board_checks import MODELS
from farm.lab.care.health_state_machine import DAY_S, HealthRules
from farm.lab.durations import parse_duration
from farm.lab.entities import (
    RANKS,
    CooldownRule,
    InventoryBoard,
    LeaseClass,
    NoticeChannels,
    ReservationRules,
    SharingRules,
)
from farm.tracker.agent_messages import HEARTBEAT_S
from farm.types.postgres_url import is_postgres_url, parse_postgres_url

SOCKET_MODES = {"owner": 0o600, "group": 0o660, "everyone": 0o666}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_PDU = re.compile(r"pdudaemon://(?P<place>[\w.-]+:\d{1,5})/(?P<pdu>[\w.-]+)/(?P<outlet>[\w.-]+)")
_WEBHOOK = re.compile(r"https?://[^\s/]+(/\S*)?")
_ASK = "import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=30).read()"
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LabSettings:
    """What lab.toml says. A store of None, and a folder of None, are those of this user."""

    store: str | None = None
    tracker: tuple[str, int] = ("127.0.0.1", 9190)
    people: str = "owner"  # who may use the control socket
    page: int | None = None  # its port on loopback
    heartbeat_s: float = HEARTBEAT_S  # of farm's agents
    keep_s: float = 90 * DAY_S  # leases that have ended, sessions and events
    changes: int = 1200  # leases, reservations and extensions that a person asks for in a minute
    notify: NoticeChannels = field(default_factory=NoticeChannels)
    health: HealthRules = field(default_factory=HealthRules)
    rules: SharingRules = field(default_factory=SharingRules)
    boards: tuple[InventoryBoard, ...] = ()


def read_settings(path: Path | None) -> LabSettings:
    """Return the settings of a file; the usual ones without a file. Raises ConfigError."""
    if path is None:
        return LabSettings()
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror or str(exc) if isinstance(exc, OSError) else "it is no UTF-8"
        raise ConfigError(
            f"{path} cannot be read", why, "name a lab.toml that you may read"
        ) from exc
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{path} cannot be read", "it is larger than 4 MiB", "name a lab.toml")
    return _Reader(path, parse(text)).settings()


class _Reader:
    """Reads the tables of one file, and collects what is wrong with them."""

    def __init__(self, path: Path, parsed: ParseResult) -> None:
        self._path = path
        self._parsed = parsed
        self._wrong = [(one.line, one.message) for one in parsed.mistakes]

    def settings(self) -> LabSettings:
        """Return the settings. Raises ConfigError with all mistakes and their lines."""
        settings = LabSettings()
        if self._parsed.sound:
            self._only((), self._parsed.data, ("lab",))
            settings = self._lab(self._table(("lab",), self._parsed.data))
        if self._wrong:
            lines = [
                sanitize.sanitized_line(f"{self._path}:{line}: {message}")
                for line, message in sorted(self._wrong)
            ]
            count = "a mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
            raise ConfigError(
                f"{self._path} has {count}",
                "\n".join(lines),
                f"correct {'this line' if len(lines) == 1 else 'these lines'}",
            )
        return settings

    def _lab(self, lab: Mapping[str, Any]) -> LabSettings:
        at = ("lab",)
        keys = (
            "store",
            "tracker",
            "people",
            "page",
            "tracker_class",
            "aging",
            "half_life",
            "gather",
            "pickup",
            "heartbeat",
            "keep",
            "changes",
            "notify",
            "health",
            "reservations",
            "classes",
            "owners",
            "boards",
        )
        self._only(at, lab, keys)
        usual = SharingRules()
        rules = SharingRules(
            self._classes(self._table((*at, "classes"), lab)),
            self._shares(self._table((*at, "owners"), lab)),
            self._get(at, lab, "aging", usual.aging_s, _seconds),
            self._get(at, lab, "half_life", usual.half_life_s, _seconds),
            self._get(at, lab, "gather", usual.gather_s, _seconds),
            pickup_s=self._get(at, lab, "pickup", usual.pickup_s, _seconds),
            implicit_rank=self._get(at, lab, "tracker_class", usual.implicit_rank, _one_of(RANKS)),
            reservations=self._reservations(self._table((*at, "reservations"), lab)),
        )
        settings = LabSettings()
        return LabSettings(
            self._get(at, lab, "store", None, self._store),
            self._get(at, lab, "tracker", settings.tracker, _host_and_port),
            self._get(at, lab, "people", "owner", _one_of(SOCKET_MODES)),
            self._get(at, lab, "page", None, _port),
            self._get(at, lab, "heartbeat", HEARTBEAT_S, _seconds),
            self._get(at, lab, "keep", settings.keep_s, _at_least_a_day),
            self._get(at, lab, "changes", settings.changes, _count),
            self._get(at, lab, "notify", settings.notify, _notify),
            self._health(self._table((*at, "health"), lab), "health" in lab),
            rules,
            self._boards(self._table((*at, "boards"), lab)),
        )

    def _health(self, table: Mapping[str, Any], there: bool) -> HealthRules:
        """Return how boards are checked: not at all without the table [lab.health]."""
        at, usual = ("lab", "health"), HealthRules()
        if not there:
            return usual
        keys = ("every", "models", "recheck", "probation", "sessions", "back", "between_cycles")
        self._only(at, table, keys)
        return HealthRules(
            self._get(at, table, "every", DAY_S, _seconds),
            self._get(at, table, "models", usual.models, _golden),
            self._get(at, table, "recheck", usual.recheck_s, _durations),
            self._get(at, table, "probation", usual.probation_s, _seconds),
            self._get(at, table, "sessions", usual.probation_sessions, _count),
            cycle_s=self._get(at, table, "between_cycles", usual.cycle_s, _seconds),
            back_s=self._get(at, table, "back", usual.back_s, _seconds),
        )

    def _reservations(self, table: Mapping[str, Any]) -> ReservationRules:
        at, usual = ("lab", "reservations"), ReservationRules()
        self._only(at, table, ("ahead", "of_owner", "pickup", "share", "within"))
        return ReservationRules(
            self._get(at, table, "ahead", usual.ahead_s, _seconds),
            self._get(at, table, "of_owner", usual.of_owner, _count),
            self._get(at, table, "pickup", usual.pickup_s, _seconds),
            self._get(at, table, "share", usual.share, _part),
            self._get(at, table, "within", usual.within_s, _seconds),
        )

    def _classes(self, tables: Mapping[str, Any]) -> dict[str, LeaseClass]:
        at = ("lab", "classes")
        self._only(at, tables, RANKS)
        found = {}
        for rank in RANKS:
            table = self._table((*at, rank), tables)
            self._only((*at, rank), table, ("longest", "boards"))
            longest_s = self._get((*at, rank), table, "longest", LeaseClass().longest_s, _seconds)
            found[rank] = LeaseClass(longest_s, self._get((*at, rank), table, "boards", 0, _count))
        return found

    def _shares(self, tables: Mapping[str, Any]) -> dict[str, float]:
        shares = {}
        for owner in tables:
            at = ("lab", "owners", owner)
            table = self._table(at, tables)
            self._only(at, table, ("share",))
            shares[owner] = self._get(at, table, "share", 1.0, _share)
        return shares

    def _boards(self, tables: Mapping[str, Any]) -> tuple[InventoryBoard, ...]:
        boards: list[InventoryBoard] = []
        places: dict[tuple[str, str], str] = {}
        for name in tables:
            at = ("lab", "boards", name)
            table = self._table(at, tables)
            keys = ("kind", "address", "tags", "profile", "power", "cooldown")
            self._only(at, table, keys)
            if not _NAME.fullmatch(name):
                self._note(at, "a board's name is made of letters, digits, '_', '-' and '.'")
            if "kind" not in table and isinstance(tables[name], dict):
                self._note(at, f"the board {name!r} needs the key 'kind'")
            board = InventoryBoard(
                name,
                self._get(at, table, "kind", "", _kind),
                self._get(at, table, "address", "", _address),
                self._get(at, table, "tags", (), _texts),
                self._get(at, table, "profile", "", _one_of(tuple(built_in_profile_tables()))),
                self._get(at, table, "power", (), _power),
                self._get(at, table, "cooldown", None, _cooldown),
            )
            other = places.setdefault((board.kind, board.address), name)
            if not board.address:  # its agent says its name
                del places[board.kind, board.address]
            elif other != name:
                self._note(
                    at,
                    f"the boards {other!r} and {name!r} are one: {board.kind} at {board.address}",
                )
            boards.append(board)
        return tuple(boards)

    def _store(self, value: Any) -> str:
        text = _text(value)
        if is_postgres_url(text):
            parse_postgres_url(text)
            return text
        if "://" in text:
            raise ValueError("a path, or postgresql://USER@HOST/DATABASE")
        return str(self._path.absolute().parent / Path(text).expanduser())

    def _table(self, at: tuple[str, ...], tables: Mapping[str, Any]) -> Mapping[str, Any]:
        found = tables.get(at[-1], {})
        if isinstance(found, dict):
            return found
        self._note(at, f"{'.'.join(at)} is a table: [{'.'.join(at)}]")
        return {}

    def _only(self, at: tuple[str, ...], table: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                self._note(
                    (*at, key),
                    f"there is no key {key!r} here; {did_you_mean(key, known)}",
                )

    def _get(
        self,
        at: tuple[str, ...],
        table: Mapping[str, Any],
        key: str,
        usual: Any,
        read: Callable[[Any], Any],
    ) -> Any:
        if key not in table:
            return usual
        try:
            return read(table[key])
        except UsageError as exc:
            self._note((*at, key), f"{key}: {exc.what}; {exc.why}")
        except ValueError as exc:
            self._note((*at, key), f"{key}: {exc}")
        return usual

    def _note(self, at: tuple[str, ...], message: str) -> None:
        self._wrong.append((self._parsed.line(at), message))


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("this is to be a text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("this is to be a list of texts")
    return tuple(_text(one) for one in value)


def _golden(value: Any) -> tuple[str, ...]:
    names = _texts(value)
    for name in names:
        if name not in MODELS:
            raise ValueError(f"{name!r} is none of {', '.join(MODELS)}")
    if not names:
        raise ValueError("at least one model")
    return names


def _durations(value: Any) -> tuple[float, ...]:
    found = tuple(parse_duration(one) for one in _texts(value))
    if not found:
        raise ValueError("at least one duration")
    return found


def _power(value: Any) -> tuple[str, ...]:
    """Return the command that cycles a board's power."""
    if isinstance(value, dict):
        if set(value) != {"cycle"} or not (words := shlex.split(_text(value["cycle"]))):
            raise ValueError('{ cycle = "COMMAND" }, or "pdudaemon://HOST:PORT/PDU/OUTLET"')
        return tuple(words)
    found = _PDU.fullmatch(_text(value))
    if not found:
        raise ValueError('"pdudaemon://HOST:PORT/PDU/OUTLET", or { cycle = "COMMAND" }')
    query = urllib.parse.urlencode({"hostname": found["pdu"], "port": found["outlet"]})
    url = f"http://{found['place']}/power/control/reboot?{query}"
    return (sys.executable, "-I", "-c", _ASK, url)


def _cooldown(value: Any) -> CooldownRule:
    if isinstance(value, str):
        return CooldownRule(_seconds(value))
    if not isinstance(value, dict) or not {"below_c"} <= set(value) <= {"below_c", "at_most"}:
        raise ValueError('"60s", or { below_c = 55, at_most = "5m" }')
    below = value["below_c"]
    if not isinstance(below, (int, float)) or isinstance(below, bool):
        raise ValueError("below_c: a temperature in degrees Celsius")
    return CooldownRule(_seconds(value.get("at_most", "5m")), float(below))


def _notify(value: Any) -> NoticeChannels:
    if not isinstance(value, dict) or not value or not set(value) <= {"webhook", "command"}:
        raise ValueError('{ webhook = "https://chat.example/...", command = "COMMAND" }, or one')
    webhook = _text(value["webhook"]) if "webhook" in value else ""
    if webhook and not _WEBHOOK.fullmatch(webhook):
        raise ValueError("webhook: a url that begins with https:// or http://")
    words = tuple(shlex.split(_text(value["command"]))) if "command" in value else ()
    return NoticeChannels(webhook, words)


def _at_least_a_day(value: Any) -> float:
    seconds = _seconds(value)
    if seconds < DAY_S:
        raise ValueError("a day or more")
    return seconds


def _part(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
        raise ValueError("a number above 0, and 1 at most")
    return float(value)


def _seconds(value: Any) -> float:
    return parse_duration(_text(value))


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError("this is to be a whole number, 0 or more")
    return value


def _share(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e9:
        raise ValueError("this is to be a number above 0")
    return float(value)


def _kind(value: Any) -> str:
    if not _NAME.fullmatch(text := _text(value)):
        raise ValueError("a kind is made of letters, digits, '_', '-' and '.'")
    return text


def _address(value: Any) -> str:
    _host_and_port(value)
    return str(value)


def _host_and_port(value: Any) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(_text(value))
    if not found or int(found["port"]) > 65535:
        raise ValueError("an address is HOST:PORT")
    return found["host"].strip("[]"), int(found["port"])


def _port(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise ValueError("this is to be a port, from 1 to 65535")
    return value


def _one_of(known: Mapping[str, Any] | tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in known:
            raise ValueError(f"one of {', '.join(known)}")
        return str(value)

    return read
