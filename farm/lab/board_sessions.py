"""The sessions that boards have: of whom, for which lease, and whether they are to end.

A session begins as a board is handed out. The agent of the board says under which match key it has
one, so that a session is joined with its lease again after a restart of the server, or a cut.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from farm.errors import UsageError
from farm.lab.board_records import BoardRecords, OpenSession
from farm.lab.durations import format_duration
from farm.lab.entities import Lease, LeaseRequest, LeaseState, SharingRules
from farm.lab.scheduling.scheduler import LeaseScheduler
from farm.lab.storage.lab_database import EndedSession
from farm.lab.storage.lab_database_writer import LabDatabaseWriter
from farm.tracker.agent_messages import BoardSession, EndSessionRequest

_MOST_CUT = 4096  # sessions of boards that have hung up, or of an earlier server
_MOST_ENDS = 4096  # sessions of which it is known how they have ended


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """How a session has ended: one of ENDINGS, or "" where the board did not say.

    `fault` is what happened if that was the board's own fault.
    """

    board: str
    how: str = ""
    fault: str = ""


class OpenSessions:
    """The sessions by board, as far as they are known. `clock` is the time of leases."""

    def __init__(
        self,
        scheduler: LeaseScheduler,
        writer: LabDatabaseWriter,
        records: BoardRecords,
        rules: SharingRules,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._writer = writer
        self._records = records
        self._rules = rules
        self._clock = clock
        self._open: dict[str, tuple[str, OpenSession]] = {}  # kind and session, by board
        self._cut: OrderedDict[str, OpenSession] = OrderedDict()  # by match key
        self._ends: OrderedDict[str, SessionEnd] = OrderedDict()  # by match key
        for record in records.all():
            if record.session:
                self._cut[record.session.match_key] = record.session

    def of(self, board: str) -> OpenSession | None:
        """Return the session of a board, as far as it is known."""
        found = self._open.get(board)
        return found[1] if found else None

    def hand_out(
        self, board: str, kind: str, match_key: str, lease: Lease, agent: str = ""
    ) -> None:
        """Note that a board was handed out to a client of a lease. `agent` is its agent's version.

        Of TVM's own servers nothing is kept: they do not say which session they have.
        """
        if agent:
            self._records.change(board, kind, self._clock(), agent=agent)
        implicit = lease.request.implicit
        number = None if implicit else lease.number
        self._begin(
            board,
            kind,
            OpenSession(match_key, lease.request.owner, self._clock(), number, implicit),
        )
        self._scheduler.claim(lease.number)

    def join(self, board: str, kind: str, match_key: str) -> None:
        """Note that a board says that it has a session, which may be one that was known before."""
        known = self.of(board)
        if known and known.match_key == match_key:
            return
        self.end(board)
        self._ends.pop(match_key, None)  # it was cut off from the lab, and goes on
        now, holder = self._clock(), self._scheduler.holder(board)
        cut = self._cut.pop(match_key, None)
        if cut is None and holder is not None and not holder.request.implicit:
            cut = OpenSession(match_key, holder.request.owner, now, holder.number)
        if cut is None:
            cut = OpenSession(match_key, "", now)
        if cut.implicit and holder is None:
            rank = self._rules.implicit_rank
            longest_s = self._rules.classes[rank].longest_s
            request = LeaseRequest(cut.owner, kind, longest_s, rank, implicit=True)
            self._scheduler.adopt(request, board, now)
        session = OpenSession(match_key, cut.owner, now, cut.lease, cut.implicit)
        self._begin(board, kind, session)
        self._scheduler.note(
            "session-joined", now, board, session.lease, session.owner, f"match key {match_key}"
        )

    def cut(self, board: str) -> None:
        """Note that a board has hung up: its session may go on."""
        if session := self.of(board):
            self._cut[session.match_key] = session
            while len(self._cut) > _MOST_CUT:
                self._cut.popitem(last=False)
        self.end(board)

    def how_ended(self, match_key: str) -> SessionEnd | None:
        """Return how a session has ended, or whose fault it is that it will; None if neither."""
        return self._ends.get(match_key)

    def note_end(self, match_key: str, end: SessionEnd) -> None:
        """Keep how a session has ended; a fault of its board that is known stays known."""
        if (before := self._ends.get(match_key)) and before.fault:
            return
        self._ends[match_key] = end
        while len(self._ends) > _MOST_ENDS:
            self._ends.popitem(last=False)

    def end(self, board: str) -> None:
        """Note that a board has no session any more."""
        if (found := self._open.pop(board, None)) is None:
            return
        kind, session = found
        if session.match_key not in self._ends:
            self.note_end(session.match_key, SessionEnd(board))
        now = self._clock()
        if session.owner:
            ended = EndedSession(board, kind, session.owner, session.since, now, session.lease)
            self._writer.note(ended)
        if self._records.of(board):
            self._records.change(board, kind, now, session=None)

    def to_end(self, board: str, told: BoardSession) -> EndSessionRequest | None:
        """Return why the session that a board has is to end, or None if it may go on."""
        session = self.of(board)
        if session is None or session.match_key != told.match_key:
            return None
        if session.lease is not None:
            try:
                lease = self._scheduler.lease(session.lease)
            except UsageError:
                return EndSessionRequest(told.match_key, f"lease {session.lease} has ended")
            if not lease.state.ended:
                return None
            how = "released" if lease.state is LeaseState.RELEASED else lease.state.value
            why = f": {lease.why}" if lease.why else ""
            return EndSessionRequest(told.match_key, f"lease {lease.number} has ended ({how}{why})")
        longest_s = self._rules.classes[self._rules.implicit_rank].longest_s
        if told.since_s <= longest_s:
            return None
        return EndSessionRequest(
            told.match_key, f"a session without a lease lasts {format_duration(longest_s)} at most"
        )

    def _begin(self, board: str, kind: str, session: OpenSession) -> None:
        self._open[board] = (kind, session)
        if self._records.of(board):
            self._records.change(board, kind, self._clock(), session=session)
