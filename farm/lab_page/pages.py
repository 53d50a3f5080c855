"""The page for people: what the lab is like now, the past day and week, each board, and buttons."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from markupsafe import Markup

from farm.errors import FarmError, UsageError
from farm.lab import refusals
from farm.lab.care.health_state_machine import Health
from farm.lab.control_socket import ControlSocket
from farm.lab.durations import parse_duration
from farm.lab.entities import HOUR_S, RANKS, Caller, Event
from farm.lab_page import gantt, history, templates
from farm.lab_page.access import COOKIE, FORM_TOKEN, SESSION_S, BrowserLogins, BrowserSession
from farm.lab_page.history import DAY_S
from farm.lab_page.http_responses import Forbidden, NotFound, http_status
from farm.lab_page.live_parts import LiveParts
from farm.lab_page.rest import parse_known_lease_number
from farm.lab_page.snapshot import board_health_cell

_MOST_ROWS = 200  # of a table that is not the lab's own
_MOST_OF_BOARD = 1000
_LAST_EVENTS = 1000  # among which those of a board are looked for
_BUTTONS: Mapping[str, Mapping[str, Any]] = {
    "extend": {"do": "extend", "by_s": HOUR_S},
    "end": {"do": "end"},
}
_CARE = ("check", "power", "drain", "return")
_WAIT_S = HOUR_S  # in the queue, for a lease that a page asks for: nobody may be there any more


class PageHandlers:
    """The answers of everything but /api."""

    def __init__(self, control: ControlSocket, access: BrowserLogins, live: LiveParts) -> None:
        self._control = control
        self._access = access
        self._live = live

    def routes(self) -> list[web.RouteDef]:
        """Return what is answered where."""
        return [
            web.get("/", self.now),
            web.get("/changes", self.changes),
            web.get("/use", self.use),
            web.get("/board", self.board),
            web.get("/page.css", _style),
            web.get("/page.js", _script),
            web.get("/enter", self.enter),
            web.post("/board", self.care),
            web.post("/leases", self.lease),
            web.post(r"/leases/{lease:\d{1,15}}", self.change),
        ]

    async def now(self, request: web.Request) -> web.Response:
        """Answer with the page of what the lab is like now."""
        await self._live.look(now=True)
        parts = {
            name: Markup(self._live.part(name))
            for name in ("tiles", "hands", "queue", "reservations", "events")
        }
        shown = {
            "version": self._live.version,
            "kinds": self._live.kinds(),
            "ranks": RANKS,
            "mine": Markup(self._mine(request)),
        }
        return self._page(request, "lab.html", {**parts, **shown})

    async def use(self, request: web.Request) -> web.Response:
        """Answer with the page of the past day and week."""
        now = time.time()
        day, week = now - DAY_S, now - 7 * DAY_S
        found = await self._live.history.stretches(week)
        loop = asyncio.get_running_loop()
        of_day = [one for one in found if (one.until or now) > day]
        rows, uses = await loop.run_in_executor(
            None,
            lambda: (gantt.gantt_rows(of_day, day, now), history.use_by_owner(found, week, now)),
        )
        shown, left = rows[:_MOST_ROWS], max(0, len(rows) - _MOST_ROWS)
        total = sum(one.board_s for one in uses) or 1.0
        cut = history.MOST if len(found) >= history.MOST else 0
        coming = gantt.reserved_rows(self._control.lender.scheduler.reservations(), now)
        values = {
            "rows": shown,
            "left": left,
            "coming": coming[:_MOST_ROWS],
            "coming_left": max(0, len(coming) - _MOST_ROWS),
            "since": day,
            "now": now,
            "uses_found": uses[:_MOST_ROWS],
            "total": total,
            "cut": cut,
        }
        return self._page(request, "usage.html", values)

    async def board(self, request: web.Request) -> web.Response:
        """Answer with the page of a board."""
        name, lender, now = request.query.get("name", ""), self._control.lender, time.time()
        boards = {one.name: one for one in lender.scheduler.boards()}
        if name not in boards:
            raise NotFound(*refusals.unknown_board_error(name, boards).parts())
        since = now - DAY_S
        found = await self._live.history.stretches(now - 7 * DAY_S, name, _MOST_OF_BOARD)
        rows = gantt.gantt_rows([one for one in found if (one.until or now) > since], since, now)
        last = await self._control.ask(
            {"do": "events", "since": max(0, self._control.last_event - _LAST_EVENTS)}, Caller("")
        )
        events = [
            Event(**one)
            for one in last["events"]
            if one["board"] == name or name in one["detail"].split(", ")
        ]
        values = {
            "board": boards[name],
            "address": lender.address(name),
            "rows": rows,
            "since": since,
            "now": now,
            "found": found,
        }
        return self._page(
            request, "board.html", {**values, **self._health(name, now), "events": events[::-1]}
        )

    def _health(self, name: str, now: float) -> dict[str, object]:
        """Return what the page of a board says of its health."""
        lender, keeper = self._control.lender, self._control.keeper
        record, view = (
            lender.records.of(name),
            next(one for one in lender.scheduler.boards() if one.name == name),
        )
        health, shown = (
            (record.health if record else None) or Health(),
            board_health_cell(lender, view, now),
        )
        last = health.checks[-1] if health.checks else None
        return {
            "health": health,
            "reduced_stability": shown.reduced_stability,
            "latencies": shown.latencies,
            "temperature_c": shown.temperature_c,
            "next_check": health.due_at if health.checks and math.isfinite(health.due_at) else None,
            "facts": {key: str(value) for key, value in (last.facts if last else {}).items()},
            "has_power": keeper is not None and keeper.has_power(name),
        }

    async def care(self, request: web.Request) -> web.Response:
        """Check a board, cycle its power, take it out of service, or return it."""
        form = await _form(request)
        caller = self._access.check_form(request, form.get(FORM_TOKEN, ""))
        name, do = request.query.get("name", ""), form.get("do", "")
        if do not in _CARE:
            raise UsageError(
                "this button is not known", "the page may be an old one", "load the page again"
            )
        wanted = {"do": do, "board": name, "why": form.get("because", "")}
        await self._control.ask(wanted, caller)
        raise web.HTTPSeeOther(f"/board?{urlencode({'name': name})}")

    async def changes(self, request: web.Request) -> web.Response:
        """Answer with the parts of the page that have changed since a version."""
        await self._live.look()
        parts = self._live.changes(request.query.get("version", ""))
        if parts is not None:
            parts["mine"] = self._mine(request)
        return web.json_response({"version": self._live.version, "parts": parts})

    async def enter(self, request: web.Request) -> web.Response:
        """Take the link of `farm lab page`, and let the browser be known from now on."""
        cookie = self._access.enter(request, request.query.get("link", ""))
        if cookie is None:
            raise Forbidden(
                "this link is used up", "each is good once, and for two minutes", "farm lab page"
            )
        answer = web.HTTPSeeOther("/")
        answer.set_cookie(
            COOKIE, cookie, max_age=int(SESSION_S), httponly=True, samesite="Strict", path="/"
        )
        raise answer

    async def lease(self, request: web.Request) -> web.Response:
        """Take in a request for boards."""
        form = await _form(request)
        caller = self._access.check_form(request, form.get(FORM_TOKEN, ""))
        count = form.get("count", "")
        if not (count.isascii() and count.isdigit() and len(count) <= 5):
            raise UsageError(
                f"{count[:20]!r} is no number of boards", "it is to be a whole number from 1", "1"
            )
        wanted = {
            "kind": form.get("kind", ""),
            "class": form.get("class", RANKS[0]),
            "count": int(count),
            "wait_s": _WAIT_S,
        }
        await self._control.ask(
            {"do": "request", **wanted, "for_s": parse_duration(form.get("for", ""))}, caller
        )
        raise web.HTTPSeeOther("/#mine-title")

    async def change(self, request: web.Request) -> web.Response:
        """Extend a lease by an hour, or end it."""
        form = await _form(request)
        caller = self._access.check_form(request, form.get(FORM_TOKEN, ""))
        number = parse_known_lease_number(self._control, request.match_info["lease"])
        asked = _BUTTONS.get(form.get("do", ""))
        if asked is None:
            raise UsageError(
                "this button is not known", "the page may be an old one", "load the page again"
            )
        await self._control.ask({**asked, "lease": number}, caller)
        raise web.HTTPSeeOther("/#mine-title")

    def error(self, request: web.Request, exc: FarmError) -> web.Response:
        """Return an error as a page."""
        return self._page(request, "error.html", {"error": exc}, http_status(exc))

    def _mine(self, request: web.Request) -> str:
        session = self._access.session(request)
        caller = session.caller if session else None
        return templates.render_part(
            "mine", leases=self._live.shown.of(caller), session=session, now=time.time()
        )

    def _page(
        self, request: web.Request, name: str, values: Mapping[str, object], status: int = 200
    ) -> web.Response:
        session: BrowserSession | None = self._access.session(request)
        clock = time.strftime("%Y-%m-%d %H:%M, the lab's time is %Z")
        text = templates.render_page(
            name, here=request.path, session=session, clock=clock, **values
        )
        return web.Response(text=text, content_type="text/html", status=status)


async def _form(request: web.Request) -> dict[str, str]:
    """Return the fields of a form. Raises UsageError."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise UsageError(
            "this is no form", f"it is {request.content_type[:100]}", "use POST /api/1/leases"
        )
    found = await request.post()
    return {name: value for name, value in found.items() if isinstance(value, str)}


async def _style(_: web.Request) -> web.Response:
    return web.Response(text=templates.style_sheet(), content_type="text/css")


async def _script(_: web.Request) -> web.Response:
    return web.Response(text=templates.page_script(), content_type="text/javascript")
