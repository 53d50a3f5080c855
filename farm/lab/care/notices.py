"""Tell people what they want to know of a lab: by a webhook, or by a command.

A board is bad, needs hands, or is back; a kind has no board left; a lease ends soon, or has lost a
board; a reservation begins soon, begins with too few boards, has lapsed, or was cancelled by an
administrator; the server was down, or its disk is full. Each is told once. What happens to one
board in a short time is one notice. Programs that run are looked at, and never waited for.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from farm import sanitize
from farm.lab.care.health_state_machine import BAD, GOOD, HANDS, PROBATION
from farm.lab.durations import format_duration
from farm.lab.entities import (
    HOUR_S,
    Event,
    InventoryBoard,
    Lease,
    LeaseState,
    NoticeChannels,
    Reservation,
    ReservationState,
)
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.processes import subprocesses
from farm.processes.output_end import OutputEnd

if TYPE_CHECKING:
    from subprocess import Popen

FLAPPING_S = 600.0  # in which what happens to one board is told once
SOON_S = 600.0  # before its end, a lease's owner is told; before its beginning, a reservation's
_SHORT_S = 1200.0  # leases that are no longer end, and what was reserved later begins, untold
_TOLD_S = 60.0  # for a program that tells
_TRIES = 3
_MOST_WAITING = 200
_MOST_OF_OTHERS = 10  # notices in an hour of boards that are not in lab.toml
_RESERVATION = re.compile(r"reservation (\d+)(?:: (.*))?", re.DOTALL)  # in an event's detail
_MENTION = re.compile(r"(?<!\w)@(?=\w)")
_POST = """
import os, urllib.request
body = os.environ["FARM_NOTICE_JSON"].encode()
webhook = os.environ["FARM_NOTICE_WEBHOOK"]
request = urllib.request.Request(webhook, body, {"Content-Type": "application/json"})
urllib.request.urlopen(request, timeout=20).read()
"""
_OF_HEALTH = {
    BAD: "is bad",
    HANDS: "needs hands",
    PROBATION: "is back, in probation",
    GOOD: "is good again",
}
_OF_RESERVATIONS = {
    "reservation-lapsed": "has lapsed",
    "reservation-cancelled": "was cancelled by {who}",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people want to know: its kind, the words, and whom and what it concerns."""

    kind: str
    text: str
    owner: str = ""
    board: str = ""
    lease: int | None = None


@dataclass(slots=True)
class _Telling:
    notice: Notice
    way: str
    child: Popen[bytes]
    output: OutputEnd
    began_at: float
    tries: int = 1
    ended: bool = False
    code: int | None = None  # None: it did not end in time


class Notifier:
    """Tells by the ways that are set. `clock` is the time of leases; `say` is for the operator."""

    def __init__(
        self,
        scheduler: LeaseScheduler,
        ways: NoticeChannels,
        inventory: Iterable[InventoryBoard],
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._listed = frozenset(board.name for board in inventory)
        self._kinds = {board.kind for board in inventory}  # of which people are told
        self._of_others: deque[float] = deque(maxlen=_MOST_OF_OTHERS)  # when those were told
        self._commands: dict[str, tuple[str, ...]] = {}
        self._variables: dict[str, dict[str, str]] = {"webhook": {}, "command": {}}
        if ways.webhook:
            self._commands["webhook"] = (sys.executable, "-I", "-c", _POST)
            # whoever knows a webhook may post there: command lines are read by every user
            self._variables["webhook"] = {"FARM_NOTICE_WEBHOOK": ways.webhook}
        if ways.command:
            self._commands["command"] = tuple(ways.command)
        self._clock, self._say = clock, say
        self._waiting: deque[tuple[Notice, str, int]] = deque()
        self._telling: _Telling | None = None
        self._told_at: dict[str, float] = {}  # of boards
        self._held: dict[str, list[str]] = {}  # what has happened to a board since it was told
        self._bad: set[str] = set()
        self._with: set[str] = set()  # kinds that have had a board that can be used
        self._ends_told: dict[int, float] = {}  # ends that were told, by lease
        self._lost_told: dict[int, frozenset[str]] = {}
        self._reserved: dict[int, Reservation] = {}  # those that were not over when last looked at
        self._begins_told: set[int] = set()
        self._short_told: set[int] = set()  # leases of reservations, with fewer boards

    def note(self, leases: list[Lease], events: list[Event]) -> None:
        """Take in what has changed and happened."""
        if not self._commands:
            return
        self._note_reservations()
        for event in events:
            self._of_event(event)
            self._of_reservation(event)
        for lease in leases:
            if not lease.request.check:
                self._kinds.add(lease.request.kind)
            self._of_lost(lease)
            self._of_reserved(lease)

    def down(self, seconds: float) -> None:
        """Tell that the server was down for so long."""
        self._tell(
            Notice("server-down", f"the lab's server was down for {format_duration(seconds)}")
        )

    def disk_full(self, full: bool) -> None:
        """Tell that the disk of the server is full, or is so no more."""
        if full:
            self._tell(Notice("disk-full", "the disk of the lab's server is full: nothing is lent"))
        else:
            self._tell(Notice("disk-space", "there is space on the disk of the lab's server again"))

    def tick(self) -> None:
        """Do what is due."""
        if not self._commands:
            return
        now = self._clock()
        for board, since in list(self._told_at.items()):
            if now - since >= FLAPPING_S:
                del self._told_at[board]
                if happened := self._held.pop(board, None):
                    self._tell_of_board(board, "; then ".join(happened[-3:]), len(happened))
        self._of_kinds()
        self._of_ends(now)
        self._of_beginnings(now)
        self._look()

    def close(self) -> None:
        """End what runs."""
        if self._telling:
            subprocesses.end_program(self._telling.child, group=True)

    # what is told

    def _of_event(self, event: Event) -> None:
        health = event.what.removeprefix("board-").replace("-", " ")
        if not event.what.startswith("board-") or health not in _OF_HEALTH:
            return
        if health in (BAD, HANDS):
            self._bad.add(event.board)
        elif event.board not in self._bad:
            return  # it was good before
        elif health == GOOD:
            self._bad.discard(event.board)
        words = _OF_HEALTH[health] + (f": {event.detail}" if event.detail else "")
        if event.board in self._told_at and health != HANDS:
            self._held.setdefault(event.board, []).append(words)
        else:
            self._tell_of_board(event.board, words)

    def _tell_of_board(self, board: str, words: str, count: int = 1) -> None:
        self._told_at[board] = now = self._clock()
        if board not in self._listed:  # anybody who reaches the tracker may have offered it
            if len(self._of_others) == _MOST_OF_OTHERS and now - self._of_others[0] < HOUR_S:
                return
            self._of_others.append(now)
        often = f" ({count} changes in {format_duration(FLAPPING_S)})" if count > 1 else ""
        self._tell(Notice("board", f"the board {board} {words}{often}", board=board))

    def _of_lost(self, lease: Lease) -> None:
        if lease.state is not LeaseState.ACTIVE:
            self._lost_told.pop(lease.number, None)
            self._ends_told.pop(lease.number, None)
            return
        lost = frozenset(lease.lost)
        for board in sorted(lost - self._lost_told.get(lease.number, frozenset())):
            owner, why = lease.request.owner, lease.lost[board]
            text = f"lease {lease.number} of {owner} has lost {board}: {why}"
            self._tell(Notice("lease-lost", text, owner, board, lease.number))
        self._lost_told[lease.number] = lost

    def _note_reservations(self) -> None:
        """Note what is reserved: an event tells of one that is over, and no longer found."""
        self._reserved |= {one.number: one for one in self._scheduler.reservations()}

    def _forget_reservation(self, number: int) -> None:
        self._reserved.pop(number, None)
        self._begins_told.discard(number)

    def _of_reservation(self, event: Event) -> None:
        """Tell of a reservation that has lapsed, or that another than its owner has cancelled."""
        found = _RESERVATION.match(event.detail) if event.what in _OF_RESERVATIONS else None
        reservation = self._reserved.get(int(found[1])) if found else None
        if found is None or reservation is None:
            return
        self._forget_reservation(reservation.number)
        if event.what == "reservation-cancelled" and event.who == reservation.request.owner:
            return
        words = _OF_RESERVATIONS[event.what].format(who=event.who)
        why = f": {found[2]}" if found[2] else ""
        self._tell_of_reservation(event.what, reservation, f"{words}{why}", event.lease)

    def _of_reserved(self, lease: Lease) -> None:
        """Tell of a reservation whose lease began with fewer boards than were promised."""
        number, wanted = lease.request.reservation, lease.request.count
        if number is None:
            return
        if lease.state.ended:
            self._forget_reservation(number)
            self._short_told.discard(lease.number)
        elif (
            lease.state is LeaseState.ACTIVE
            and len(lease.boards) < wanted
            and lease.number not in self._short_told
            and (reservation := self._reserved.get(number)) is not None
        ):
            self._short_told.add(lease.number)
            words = f"began with {len(lease.boards)} of its {wanted} boards"
            self._tell_of_reservation("reservation-short", reservation, words, lease.number)

    def _of_beginnings(self, now: float) -> None:
        self._note_reservations()
        soon = {
            one.number: one
            for one in self._reserved.values()
            if one.state is ReservationState.PLANNED
            and one.number not in self._begins_told
            and 0 < one.request.starts_at - now <= SOON_S
            and one.request.starts_at - one.made_at > _SHORT_S
        }
        missing = self._scheduler.missing(now) if soon else {}
        for number, one in soon.items():
            self._begins_told.add(number)
            words = f"begins in {format_duration(one.request.starts_at - now)}"
            if lacks := missing.get(number, 0):
                words += f"; {lacks} of its {one.request.count} boards are missing as things stand"
            self._tell_of_reservation("reservation-begins", one, words)

    def _tell_of_reservation(
        self, kind: str, one: Reservation, words: str, lease: int | None = None
    ) -> None:
        request = one.request
        which = f"reservation {one.number} of {request.owner} ({request.count} {request.kind})"
        self._tell(Notice(kind, f"{which} {words}", request.owner, lease=lease))

    def _of_kinds(self) -> None:
        views = self._scheduler.boards()
        usable = {one.kind for one in views if one.use not in ("away", "silent", "out")}
        for kind in sorted((self._with - usable) & self._kinds):
            self._tell(Notice("kind-empty", f"no board of kind {kind} is left"))
        self._with = usable

    def _of_ends(self, now: float) -> None:
        for lease in self._scheduler.leases():
            if lease.ends_at is None or lease.request.implicit or lease.request.check:
                continue
            left_s = lease.ends_at - now
            if lease.request.for_s <= _SHORT_S or not 0 < left_s <= SOON_S:
                continue
            if self._ends_told.get(lease.number) != lease.ends_at:
                self._ends_told[lease.number] = lease.ends_at
                owner, number = lease.request.owner, lease.number
                which = f"lease {number} of {owner} ({', '.join(lease.boards)})"
                text = f"{which} ends in {format_duration(left_s)}"
                self._tell(Notice("lease-ends", text, owner, lease=number))

    # how it is told

    def _tell(self, notice: Notice) -> None:
        text, board = sanitize.sanitized_line(notice.text), sanitize.sanitized_line(notice.board)
        notice = replace(notice, text=text, board=board)
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.extend((notice, way, 1) for way in self._commands)

    def _look(self) -> None:
        if (telling := self._telling) is not None:
            if not telling.ended:
                telling.code = telling.child.poll()
                if telling.code is None and time.monotonic() - telling.began_at <= _TOLD_S:
                    return
                # with what it has started, which would keep its output open
                subprocesses.end_program(telling.child, group=True, grace_s=0)
                telling.ended = True
                if telling.output.is_open:
                    return  # what it wrote last is there at the next look
            self._finish(telling)
        if self._waiting:
            self._begin(*self._waiting.popleft())

    def _begin(self, notice: Notice, way: str, tries: int) -> None:
        output = OutputEnd()
        try:
            child = subprocesses.start_program(
                self._commands[way],
                log=output,
                own_group=True,
                env={**notice_environment(notice), **self._variables[way]},
            )
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            self._say(f"a notice cannot be told by the {way}: {reason}")
            return
        self._telling = _Telling(notice, way, child, output, time.monotonic(), tries)

    def _finish(self, telling: _Telling) -> None:
        self._telling = None
        if telling.code == 0:
            return
        if telling.tries < _TRIES:
            self._waiting.append((telling.notice, telling.way, telling.tries + 1))
            return
        why = (
            sanitize.sanitized_line(subprocesses.last_lines(telling.output.text(0), 1))[:200]
            or f"no end in {_TOLD_S:.0f} s"
        )
        self._say(f"a notice was not told by the {telling.way}: {why}")


def notice_environment(notice: Notice) -> dict[str, str]:
    """Return a notice as variables of a program."""
    lease = "" if notice.lease is None else str(notice.lease)
    body = {
        "text": escape_for_chat(notice.text),
        "kind": notice.kind,
        "owner": notice.owner,
        "board": notice.board,
        "lease": notice.lease,
    }
    return {
        "FARM_NOTICE": notice.text,
        "FARM_NOTICE_KIND": notice.kind,
        "FARM_NOTICE_OWNER": notice.owner,
        "FARM_NOTICE_BOARD": notice.board,
        "FARM_NOTICE_LEASE": lease,
        "FARM_NOTICE_JSON": json.dumps(body),
    }


def escape_for_chat(text: str) -> str:
    """Return a text that a chat shows as it is: words of strangers mention and link nobody.

    Slack's escapes (https://docs.slack.dev/messaging/formatting-message-text), and a space in what
    other chats take for a mention, a link, or a url.
    """
    for character, escape in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, escape)
    return _MENTION.sub("@ ", text).replace("](", "] (").replace("://", ": //")
