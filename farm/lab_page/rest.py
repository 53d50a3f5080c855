"""Boards, leases, reservations and events as JSON, by the same actions as the control socket's."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from farm.errors import UsageError, did_you_mean
from farm.lab import refusals
from farm.lab.control_socket import ControlSocket
from farm.lab.entities import Caller, Reservation
from farm.lab_page.access import BrowserLogins
from farm.lab_page.http_responses import Forbidden, NotFound, json_response
from farm.views.schema import NAMES, schema

_NOBODY = Caller("")
_CHANGES = {
    "by_s": "extend",
    "heartbeat": "heartbeat",
    "keep": "keep",
}  # by the field that asks for it


class RestHandlers:
    """The answers of /api/1."""

    def __init__(self, control: ControlSocket, access: BrowserLogins) -> None:
        self._control = control
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Return what is answered where."""
        return [
            web.get("/api/1/boards", self.boards),
            web.get("/api/1/boards/{name:.+}/health", self.health),
            web.post("/api/1/boards/{name:.+}/{do:check|power|drain|return}", self.care),
            web.get("/api/1/boards/{name:.+}", self.board),
            web.get("/api/1/leases", self.leases),
            web.post("/api/1/leases", self.request),
            web.get(r"/api/1/leases/{lease:\d{1,15}}", self.lease),
            web.patch(r"/api/1/leases/{lease:\d{1,15}}", self.change),
            web.delete(r"/api/1/leases/{lease:\d{1,15}}", self.end),
            web.get("/api/1/queue", self.queue),
            web.get("/api/1/reservations", self.reservations),
            web.post("/api/1/reservations", self.reserve),
            web.get(r"/api/1/reservations/{reservation:\d{1,15}}", self.reservation),
            web.delete(r"/api/1/reservations/{reservation:\d{1,15}}", self.cancel),
            web.get("/api/1/events", self.events),
            web.get("/api/1/schemas/{name}", self.schema),
        ]

    async def boards(self, request: web.Request) -> web.Response:
        """Answer with all boards, or those of a kind."""
        kind = request.query.get("kind")
        found = (await self._ask(request, "boards"))["boards"]
        return json_response(
            "lab_boards", {"boards": [one for one in found if kind in (None, one["kind"])]}
        )

    async def board(self, request: web.Request) -> web.Response:
        """Answer with one board."""
        return self._board(request, (await self._ask(request, "boards"))["boards"])

    async def health(self, request: web.Request) -> web.Response:
        """Answer with the health of a board: its state and reason, its checks, and its faults."""
        name = self._known_board(request)
        return json_response("lab_health", await self._ask(request, "health", board=name))

    async def care(self, request: web.Request) -> web.Response:
        """Check a board, cycle its power, take it out of service, or return it, with a reason."""
        caller = self._access.changer(request)
        body = await _body(request) if request.body_exists else {}
        wanted = {"do": request.match_info["do"], "board": self._known_board(request)}
        if not caller.admin:
            raise Forbidden(*refusals.not_an_administrator_error(caller).parts())
        found = await self._control.ask({**wanted, "why": body.get("because", "")}, caller)
        return self._board(request, found["boards"])

    def _board(self, request: web.Request, boards: list[dict[str, Any]]) -> web.Response:
        name = request.match_info["name"]
        for one in boards:
            if one["name"] == name:
                return json_response("lab_board", {"board": one})
        raise NotFound(*refusals.unknown_board_error(name, [one["name"] for one in boards]).parts())

    def _known_board(self, request: web.Request) -> str:
        """Return the name of a board that is known. Raises NotFound."""
        name, scheduler = request.match_info["name"], self._control.lender.scheduler
        if scheduler.kind_of(name) is None:
            names = [one.name for one in scheduler.boards()]
            raise NotFound(*refusals.unknown_board_error(name, names).parts())
        return name

    async def leases(self, request: web.Request) -> web.Response:
        """Answer with the leases that have not ended; with ?ended=1 also those that have lately."""
        return json_response(
            "lab_leases",
            await self._ask(request, "leases", ended=request.query.get("ended") == "1"),
        )

    async def queue(self, request: web.Request) -> web.Response:
        """Answer with the leases that wait, by kind and place."""
        waiting = [one for one in (await self._ask(request, "leases"))["leases"] if one["queue"]]
        return json_response(
            "lab_leases",
            {"leases": sorted(waiting, key=lambda one: (one["kind"], one["queue"]["place"]))},
        )

    async def lease(self, request: web.Request) -> web.Response:
        """Answer with one lease."""
        return self._lease(await self._ask(request, "lease", lease=self._known(request)))

    async def request(self, request: web.Request) -> web.Response:
        """Take a request in, and answer with its lease."""
        caller = self._access.changer(request)
        wanted = await _body(request)
        return self._lease(await self._control.ask({**wanted, "do": "request"}, caller), 201)

    async def change(self, request: web.Request) -> web.Response:
        """Extend a lease, or note that its owner is alive or needs no heartbeats."""
        caller = self._access.changer(request)
        body = await _body(request)
        asked = [action for name, action in _CHANGES.items() if body.get(name)]
        if len(asked) != 1:
            example = '{"by_s": 3600}, {"heartbeat": true} or {"keep": true}'
            raise UsageError(
                "a change of a lease has one field", f"one of {', '.join(_CHANGES)}", example
            )
        return self._lease(await self._change(request, caller, {**body, "do": asked[0]}))

    async def end(self, request: web.Request) -> web.Response:
        """Give the boards of a lease back, or leave the queue.

        ?because= is an administrator's reason.
        """
        caller = self._access.changer(request)
        if request.content_length:
            await _body(request)
        return self._lease(
            await self._change(
                request, caller, {"do": "end", "why": request.query.get("because", "")}
            )
        )

    async def reservations(self, request: web.Request) -> web.Response:
        """Answer with the reservations that are not over."""
        return json_response("lab_reservations", await self._ask(request, "reservations"))

    async def reservation(self, request: web.Request) -> web.Response:
        """Answer with one reservation."""
        number = self._known_reservation(request).number
        found = (await self._ask(request, "reservations"))["reservations"]
        one = next(one for one in found if one["reservation"] == number)
        return json_response("lab_reservation", {"reservation": one})

    async def reserve(self, request: web.Request) -> web.Response:
        """Reserve boards from a time on, and answer with the reservation."""
        caller = self._access.changer(request)
        wanted = await _body(request)
        found = await self._control.ask({**wanted, "do": "reserve"}, caller)
        return json_response("lab_reservation", found, 201)

    async def cancel(self, request: web.Request) -> web.Response:
        """Give up a reservation that has not begun; ?because= is an administrator's reason."""
        caller = self._access.changer(request)
        if request.content_length:
            await _body(request)
        known = self._known_reservation(request)
        why = request.query.get("because", "")
        asked = {"do": "cancel", "reservation": known.number, "why": why}
        if not (caller.admin or known.request.owner == caller.name):
            raise Forbidden(*refusals.reservation_of_another_error(known).parts())
        return json_response("lab_reservation", await self._control.ask(asked, caller))

    def _known_reservation(self, request: web.Request) -> Reservation:
        """Return a reservation that is not over. Raises NotFound."""
        try:
            return self._control.lender.scheduler.reservation(
                int(request.match_info["reservation"])
            )
        except UsageError as exc:
            raise NotFound(*exc.parts()) from exc

    async def events(self, request: web.Request) -> web.Response:
        """Answer with the events after the number ?since=, ?most= at once."""
        found = await self._ask(
            request,
            "events",
            since=parse_whole_number(request, "since", 0),
            most=parse_whole_number(request, "most", 1000),
        )
        return json_response("lab_events", found)

    async def schema(self, request: web.Request) -> web.Response:
        """Answer with the JSON Schema of a document."""
        if (name := request.match_info["name"]) not in NAMES:
            raise NotFound(
                f"there is no schema {name[:100]!r}",
                did_you_mean(name, NAMES),
                "farm schema",
            )
        return web.json_response(schema(name), content_type="application/schema+json")

    def _known(self, request: web.Request) -> int:
        return parse_known_lease_number(self._control, request.match_info["lease"])

    async def _ask(self, request: web.Request, do: str, **fields: Any) -> dict[str, Any]:
        return await self._control.ask(
            {"do": do, **fields}, self._access.caller(request) or _NOBODY
        )

    async def _change(
        self, request: web.Request, caller: Caller, body: dict[str, Any]
    ) -> dict[str, Any]:
        number = self._known(request)
        owner = self._control.lender.scheduler.lease(number).request.owner
        try:
            return await self._control.ask({**body, "lease": number}, caller)
        except UsageError as exc:
            if owner != caller.name:
                raise Forbidden(*exc.parts()) from exc
            raise

    def _lease(self, found: dict[str, Any], status: int = 200) -> web.Response:
        host, port = self._control.tracker
        return json_response(
            "lab_lease", {**found, "tracker": {"host": host, "port": port}}, status
        )


def parse_known_lease_number(control: ControlSocket, text: str) -> int:
    """Return the number of a lease that is remembered. Raises NotFound."""
    try:
        return control.lender.scheduler.lease(int(text)).number
    except UsageError as exc:
        raise NotFound(*exc.parts()) from exc


def parse_whole_number(request: web.Request, name: str, usual: int) -> int:
    """Return a whole number of the query. Raises UsageError."""
    text = request.query.get(name, str(usual))
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise UsageError(
            f"?{name}= is wrong", "it is to be a whole number from 0", f"?{name}={usual}"
        )
    return int(text)


async def _body(request: web.Request) -> dict[str, Any]:
    """Return the object that was sent: as JSON, which no form can send. Raises UsageError."""
    fix = "Content-Type: application/json"
    if request.content_type != "application/json":
        raise UsageError(
            "a change is asked for in JSON", f"this is {request.content_type[:100]}", fix
        )
    try:
        found = json.loads(await request.read())
    except (ValueError, RecursionError) as exc:
        raise UsageError(
            "a change is asked for in JSON", "this cannot be read as JSON", fix
        ) from exc
    if not isinstance(found, dict):
        raise UsageError(
            "a change is asked for by a JSON object",
            f"this is a {type(found).__name__}",
            '{"kind": "pi5", "for_s": 600}',
        )
    return found
