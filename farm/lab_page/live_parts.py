"""The parts of the page, rendered again only where the lab has changed, each with its version.

The lab's event loop renders them, in small portions: a grant never waits for a thousand rows.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from farm.lab.entities import BoardView, Caller, Event, Lease
from farm.lab.run import LabServer
from farm.lab_page import snapshot, templates
from farm.lab_page.history import LabHistory
from farm.lab_page.snapshot import BoardHealthCell, LabSnapshot

PERIOD_S = 1.0  # between two looks at the lab
_LEAST_PERIOD_S = 0.1  # the same, after something has happened
_PORTION = 25  # rows that are rendered at once
_EVENTS = 15  # that are shown


@dataclass(frozen=True, slots=True)
class _Row:
    """A board's row. `number` is its name in the page: boards' own names are strangers' words."""

    number: int
    view: BoardView
    spark: str
    health: BoardHealthCell
    html: str
    version: int


@dataclass(frozen=True, slots=True)
class _Part:
    html: str
    version: int


@dataclass(frozen=True, slots=True)
class KindRows:
    """The boards of a kind on the page: its heading, and its rows as HTML."""

    name: str
    number: int
    heading: str
    rows: tuple[str, ...]


class LiveParts:
    """The page's parts. Used as a context, it looks at the lab for as long as somebody watches."""

    def __init__(self, lab: LabServer) -> None:
        self.history = LabHistory(lab.journal)
        self.shown = snapshot.take_snapshot(lab.lender, time.time())
        self._lab = lab
        self._epoch = secrets.token_hex(4)
        self._version = 0
        self._layout: tuple[tuple[str, str], ...] = ()
        self._layout_version = 0
        self._rows: dict[str, _Row] = {}
        self._kinds: dict[str, int] = {}
        self._parts: dict[str, _Part] = {}
        self._numbers = 0
        self._events: deque[Event] = deque(maxlen=_EVENTS)
        self._looked_at = float("-inf")
        self._stale = False  # something has happened since
        self._looking = asyncio.Lock()
        self._watching = 0
        self._changed: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        lab.control.watch(self._note)

    async def __aenter__(self) -> LiveParts:
        """Return the parts, which are looked after from now on."""
        control = self._lab.control
        last = await control.ask(
            {"do": "events", "since": max(0, control.last_event - _EVENTS)}, Caller("")
        )
        self._events.extend(Event(**one) for one in last["events"])
        await self.look()  # the templates are compiled before anybody waits for them
        self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Look no more."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def version(self) -> str:
        """The version of the page, in this process."""
        return f"{self._epoch}.{self._version}"

    async def changed(self, version: str) -> str:
        """Return the version of the page once it is another one."""
        self._watching += 1
        try:
            while version == self.version:
                if self._changed is None or self._changed.done():
                    self._changed = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._changed)
        finally:
            self._watching -= 1
        return self.version

    async def look(self, now: bool = False) -> None:
        """Render what has changed since the last look.

        Without `now`, one a moment ago will do if nothing has happened.
        """
        async with self._looking:
            passed_s = time.monotonic() - self._looked_at
            if passed_s < PERIOD_S and not (now or self._stale):
                return
            await asyncio.sleep(max(0.0, _LEAST_PERIOD_S - passed_s))
            self._stale = False
            await self.history.refresh()
            self.shown = shown = snapshot.take_snapshot(self._lab.lender, time.time())
            version = self._version + 1
            changed = await self._render_rows(shown, version)
            changed |= self._render_parts(shown, version)
            self._looked_at = time.monotonic()
            if changed:
                self._version = version
                if self._changed and not self._changed.done():
                    self._changed.set_result(None)

    def kinds(self) -> list[KindRows]:
        """Return the boards, by kind."""
        found: dict[str, list[str]] = {}
        for kind, board in self._layout:
            found.setdefault(kind, []).append(self._rows[board].html)
        return [
            KindRows(
                kind, self._kinds[kind], self._parts[f"k{self._kinds[kind]}"].html, tuple(rows)
            )
            for kind, rows in found.items()
        ]

    def part(self, name: str) -> str:
        """Return a part of the page as HTML."""
        return self._parts[name].html

    def changes(self, version: str) -> dict[str, str] | None:
        """Return the parts that have changed since a version, by their name.

        None if the page has to be loaded anew.
        """
        epoch, _, number = version.partition(".")
        if (
            epoch != self._epoch
            or not (number.isascii() and number.isdigit() and len(number) <= 15)
            or int(number) < self._layout_version
        ):
            return None
        parts = {
            name: part.html for name, part in self._parts.items() if part.version > int(number)
        }
        return parts | {
            f"b{row.number}": row.html for row in self._rows.values() if row.version > int(number)
        }

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            if self._watching:
                await self.look()

    def _note(self, _: list[Lease], events: list[Event]) -> None:
        self._events.extend(events)
        self._stale = True

    async def _render_rows(self, shown: LabSnapshot, version: int) -> bool:
        changed, now = False, shown.at
        for start in range(0, len(shown.boards), _PORTION):
            for view in shown.boards[start : start + _PORTION]:
                before, spark = self._rows.get(view.name), self.history.spark(view.name)
                health = shown.healths[view.name]
                if before and (before.view, before.spark, before.health) == (view, spark, health):
                    continue
                number = before.number if before else self._number()
                html = templates.render_board_row(view, number, spark, health, now)
                self._rows[view.name] = _Row(number, view, spark, health, html, version)
                changed = True
            await asyncio.sleep(0)
        layout = tuple((view.kind, view.name) for view in shown.boards)
        if layout != self._layout:
            names = {name for _, name in layout}
            self._rows = {name: row for name, row in self._rows.items() if name in names}
            for kind in dict.fromkeys(kind for kind, _ in layout):
                self._kinds.setdefault(kind, self._number())
            gone = self._kinds.keys() - {kind for kind, _ in layout}
            for kind in gone:
                self._parts.pop(f"k{self._kinds.pop(kind)}", None)
            self._layout, self._layout_version, changed = layout, version, True
        return changed

    def _render_parts(self, shown: LabSnapshot, version: int) -> bool:
        drawn: dict[str, Callable[[], str]] = {
            "tiles": lambda: templates.render_part("tiles", shown=shown),
            "hands": lambda: templates.render_part("hands", found=shown.wants_hands()),
            "queue": lambda: templates.render_part("queue", shown=shown, now=shown.at),
            "reservations": lambda: templates.render_part(
                "reservations", reservations=shown.reservations, now=shown.at
            ),
            "events": lambda: templates.render_part(
                "events", events=list(self._events)[::-1], now=shown.at
            ),
        }
        uses: dict[str, dict[str, int]] = {}
        for board in shown.boards:
            of_kind = uses.setdefault(board.kind, {})
            of_kind[board.use] = of_kind.get(board.use, 0) + 1
        for kind, number in self._kinds.items():
            drawn[f"k{number}"] = _heading(kind, number, uses.get(kind, {}))
        changed = False
        for name, draw in drawn.items():
            html, before = draw(), self._parts.get(name)
            if before is None or before.html != html:
                self._parts[name], changed = _Part(html, version), True
        return changed

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _heading(kind: str, number: int, uses: dict[str, int]) -> Callable[[], str]:
    return lambda: templates.render_part("heading", kind=kind, number=number, uses=uses)
