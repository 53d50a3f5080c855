"""The boards, the leases and the reservations of a lab, as tables.

Times are shown as how long is left, or has passed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from farm.lab.durations import clock_time, format_duration
from farm.views.tables import Column, build_table

USE_STYLE = {"free": "green", "leased": "yellow", "in session": "yellow", "away": "red"}
Row = Mapping[str, Any]


def lab_boards_table(boards: Sequence[Row], now: float, width: int) -> Table:
    """Return a table of a lab's boards: their use, by whom, and for how long."""
    columns: list[Column[Row]] = [
        Column("board", lambda row: str(row["name"]), style="bold"),
        Column("kind", lambda row: str(row["kind"])),
        Column("use", lambda row: Text(str(row["use"]), USE_STYLE.get(str(row["use"]), ""))),
        Column("why", lambda row: str(row["barred"])),
        Column("owner", lambda row: str(row["owner"])),
        Column("lease", lambda row: "" if row["lease"] is None else str(row["lease"]), right=True),
        Column("ends in", lambda row: _left(row["until"], now), right=True),
        Column("tags", lambda row: " ".join(row["tags"]), 90, style="bright_black"),
        Column("address", lambda row: str(row["address"]), 100, style="bright_black"),
    ]
    return build_table(columns, boards, width)


def lab_leases_table(leases: Sequence[Row], now: float, width: int) -> Table:
    """Return a table of leases: in force with what is left, waiting with place, reason and time."""
    columns: list[Column[Row]] = [
        Column("lease", lambda row: str(row["lease"]), right=True, style="bold"),
        Column("owner", lambda row: str(row["owner"])),
        Column(
            "kind",
            lambda row: f"{row['count']} {row['kind']}" if row["count"] > 1 else str(row["kind"]),
        ),
        Column("class", lambda row: str(row["class"])),
        Column("state", lambda row: _state(row)),
        Column(
            "ends in", lambda row: "" if row["ended_at"] else _left(row["ends_at"], now), right=True
        ),
        Column("boards", lambda row: " ".join(row["boards"])),
        Column("why", lambda row: _why(row, now)),
    ]
    return build_table(columns, leases, width)


def lab_reservations_table(reservations: Sequence[Row], now: float, width: int) -> Table:
    """Return a table of reservations: of whom, of what, from when until when."""
    columns: list[Column[Row]] = [
        Column("reservation", lambda row: str(row["reservation"]), right=True, style="bold"),
        Column("owner", lambda row: str(row["owner"])),
        Column(
            "kind",
            lambda row: f"{row['count']} {row['kind']}" if row["count"] > 1 else str(row["kind"]),
        ),
        Column("tags", lambda row: " ".join(row["tags"]), 90, style="bright_black"),
        Column("from", lambda row: clock_time(row["starts_at"], now)),
        Column("until", lambda row: clock_time(row["until"], now)),
        Column("state", lambda row: _state_of_reservation(row)),
        Column("lease", lambda row: "" if row["lease"] is None else str(row["lease"]), right=True),
    ]
    return build_table(columns, reservations, width)


def _state_of_reservation(row: Row) -> str:
    lacks = f", {row['missing']} of {row['count']} boards missing" if row["missing"] else ""
    return f"{row['state']}{lacks}"


def lab_checks_table(checks: Sequence[Row], width: int) -> Table:
    """Return a table of the checks of a board, the newest first."""
    columns: list[Column[Row]] = [
        Column("checked", lambda row: _moment(row["at"])),
        Column("verdict", lambda row: str(row["verdict"]), style="bold"),
        Column("latency", lambda row: _milliseconds(row["median_s"]), right=True),
        Column("why", lambda row: str(row["why"])),
    ]
    return build_table(columns, list(reversed(checks)), width)


def lab_authorized_keys_table(users: Sequence[Row], width: int) -> Table:
    """Return a table of the keys by which people and boards come into a lab."""
    columns: list[Column[Row]] = [
        Column("user", lambda row: str(row["user"]), style="bold"),
        Column("tunnel", lambda row: "" if row["port"] is None else f"port {row['port']}"),
        Column("key", lambda row: str(row["type"])),
        Column("fingerprint", lambda row: str(row["fingerprint"])),
        Column("comment", lambda row: str(row["comment"]), 100, style="bright_black"),
    ]
    return build_table(columns, users, width)


def _state(row: Row) -> str:
    return f"queued, {row['queue']['place']}." if row["queue"] else str(row["state"])


def _why(row: Row, now: float) -> str:
    if not row["queue"]:
        return str(row["why"])
    surely_by = row["queue"]["surely_by"]
    return str(row["queue"]["reason"]) + (
        f"; in {_left(surely_by, now)} at the latest" if surely_by is not None else ""
    )


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.4g} ms"


def _left(at: float | None, now: float) -> str:
    return "" if at is None else format_duration(at - now)
