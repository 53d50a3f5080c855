"""The control socket: one JSON object a line, each answered by one line.

    {"do": "boards"}                                {"ok": {"boards": [...]}}
    {"do": "end", "lease": 7}                       {"error": {"kind": ..., "what": ..., "why": ..., "fix": ...}}
    {"do": "events", "since": 41, "follow": true}   one line for each event, from then on
    {"do": "speak-for", "user": "alice"}            the door's: from then on, alice asks
    {"do": "board", "lease": 7}                     a board's connection beside the answer; from then
    {"do": "watch", "lease": 7}                     on, as for this one, a line when the lease ends

Who asks is what the kernel says of the socket. What is answered is kept.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from farm.errors import FarmError, UnavailableError, UsageError, did_you_mean
from farm.lab import refusals
from farm.lab.callers import ControlConnections, identify_caller
from farm.lab.care.health_controller import BoardHealthController
from farm.lab.care.health_state_machine import Health
from farm.lab.change_budget import ChangeBudget
from farm.lab.door.board_socket_broker import WAIT_S, BoardSocketBroker, LabCallbacks
from farm.lab.door.commands import is_user_name
from farm.lab.entities import (
    Caller,
    Event,
    Lease,
    LeaseRequest,
    LeaseState,
    Reservation,
    ReservationRequest,
)
from farm.lab.lender import LabLender
from farm.lab.storage.entity_json import (
    board_for_display,
    health_for_display,
    lease_for_display,
    reservation_for_display,
)
from farm.lab.storage.lab_database import LabDatabase
from farm.lab.storage.lab_database_writer import LabDatabaseWriter
from farm.lab_client.control_client import PROTOCOL, loopback_if_wildcard_address
from farm.sanitize import is_utf8_encodable
from farm.types import new_lease_key

MOST_LINE_BYTES = 1 << 16
_MOST_WAIT_S = 20.0
_MOST_SESSION_END_S = 75.0  # less than clients wait for an answer
_AFTER_SILENCE_S = 10.0
_LOOK_S = 0.1
_MOST_EVENTS = 1000
_MOST_BEHIND = 10_000  # events of a reader who does not read
_MOST_COUNT = 10_000
_MOST_LABELS = 4000  # characters, as they are kept
_LONGEST_S = 366 * 86400.0
_LAST_TIME = 253_402_214_400.0  # the last day of the year 9999

Watcher = Callable[
    [list[Lease], list[Event]], None
]  # leases that changed, and events, once they are kept


class RequestFields:
    """The fields of a request, each of which is checked as it is read."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def text(self, name: str, usual: str | None = None) -> str:
        """Return a text of at most 200 characters. Raises UsageError."""
        value = self._body.get(name, usual)
        if not isinstance(value, str) or len(value) > 200 or not is_utf8_encodable(value):
            raise _bad(name, "a text of at most 200 characters")
        return value

    def whole(self, name: str, usual: int | None = None, most: int = 1 << 53) -> int:
        """Return a whole number from 0. Raises UsageError."""
        value = self._body.get(name, usual)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise _bad(name, f"a whole number from 0 to {most}")
        return value

    def seconds(self, name: str, usual: float | None = None) -> float:
        """Return a duration above 0. Raises UsageError."""
        value = self._body.get(name, usual)
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not 0 < value <= _LONGEST_S
        ):
            raise _bad(name, "a number of seconds above 0")
        return float(value)

    def optional_seconds(self, name: str) -> float | None:
        """Return a duration, or None if there is none. Raises UsageError."""
        return None if self._body.get(name) is None else self.seconds(name)

    def time(self, name: str) -> float:
        """Return a time, in seconds since 1970. Raises UsageError."""
        value = self._body.get(name)
        if (
            not isinstance(value, (int, float))
            or isinstance(value, bool)
            or not 0 <= value <= _LAST_TIME
        ):
            raise _bad(name, "a time in seconds since 1970")
        return float(value)

    def labels(self) -> dict[str, str]:
        """Return texts by name. Raises UsageError."""
        value = self._body.get("labels", {})
        fits = isinstance(value, dict) and len(value) <= 20
        if not fits or not all(
            isinstance(one, str) and len(one) <= 200 and is_utf8_encodable(one)
            for pair in value.items()
            for one in pair
        ):
            raise _bad("labels", "at most 20 texts of at most 200 characters, by name")
        if len(json.dumps(value)) > _MOST_LABELS:
            raise _bad("labels", f"at most {_MOST_LABELS} characters in all, as JSON")
        return dict(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; none if there is none. Raises UsageError."""
        value = self._body.get(name, [])
        if not isinstance(value, list) or len(value) > 20:
            raise _bad(name, "at most 20 texts of at most 200 characters")
        return tuple(RequestFields({name: one}).text(name) for one in value)

    def flag(self, name: str) -> bool:
        """Return whether a field is true."""
        return self._body.get(name) is True


class ControlSocket:
    """The lab's answers to its people. `tracker` is where TVM's clients find it.

    `last_event` is the number of the newest event. With a page, `open_page` returns a link to it
    that is good once, for one caller.
    """

    def __init__(
        self,
        lender: LabLender,
        journal: LabDatabase,
        writer: LabDatabaseWriter,
        clock: Callable[[], float],
        tracker: tuple[str, int],
        last_event: int = 0,
        budget: ChangeBudget | None = None,
    ) -> None:
        self.tracker = tracker
        self.last_event = last_event
        self.open_page: Callable[[Caller], str] | None = None
        self.keeper: BoardHealthController | None = None
        self._watchers: list[Watcher] = []
        self.lender = lender
        self._journal = journal
        self._writer = writer
        self._clock = clock
        self._budget = budget or ChangeBudget(0)
        self._unkept: dict[asyncio.Future[None], int | None] = {}  # who waits until it is kept
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}  # by lease
        self._readers: set[asyncio.Queue[Event]] = set()
        self._connections = ControlConnections()
        self._board_sockets = BoardSocketBroker(
            LabCallbacks(
                lender.scheduler.lease,
                self._changed,
                lender.address,
                lender.is_listed,
                lender.connection,
                lambda: (loopback_if_wildcard_address(self.tracker[0]), self.tracker[1]),
            )
        )
        self._actions: dict[str, Callable[[RequestFields, Caller], Awaitable[dict[str, Any]]]] = {
            "hello": self._hello,
            "boards": self._boards,
            "leases": self._leases,
            "lease": self._lease,
            "request": self._request,
            "wait": self._wait,
            "heartbeat": self._heartbeat,
            "keep": self._keep,
            "extend": self._extend,
            "end": self._end,
            "reserve": self._reserve,
            "reservations": self._reservations,
            "cancel": self._cancel,
            "session-end": self._session_end,
            "events": self._events,
            "page": self._page,
            "speak-for": self._speak_for,
            "expel": self._expel,
            "health": self._health,
            "check": self._care,
            "power": self._care,
            "drain": self._care,
            "return": self._care,
        }

    def watch(self, watcher: Watcher) -> None:
        """Tell a function of all that changes from now on."""
        self._watchers.append(watcher)

    def tell(self, leases: list[Lease], events: list[Event]) -> None:
        """Wake those who wait for a lease, and pass events on."""
        if events:
            self.last_event = events[-1].number
        for lease in leases:
            for future in self._waiting.pop(lease.number, ()):
                if not future.done():
                    future.set_result(None)
        for reader in self._readers:
            for event in events:
                if reader.qsize() < _MOST_BEHIND:
                    reader.put_nowait(event)
        for watcher in self._watchers:
            watcher(leases, events)

    async def ask(self, body: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        """Return the answer to a request. Raises FarmError."""
        fields, action = self._action(body)
        return await action(fields, caller)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client until it hangs up."""
        caller = identify_caller(writer.get_extra_info("socket"))
        try:
            await self._answer_all(reader, writer, caller, self._refused(writer, caller))
        except (
            OSError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.CancelledError,
        ):
            pass  # it has gone, or sent what is no line, or the server ends
        finally:
            self._connections.close(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer_all(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: Caller,
        refused: FarmError | None = None,
    ) -> None:
        while True:
            line = await reader.readuntil(b"\n")
            try:
                if refused:
                    raise refused
                body = _parsed(line)
                if body.get("do") in ("board", "watch"):
                    await self._hand_over(RequestFields(body), caller, reader, writer)
                    return
                fields, action = self._action(body)
                if action == self._speak_for:
                    caller = self._speaker(fields, caller, writer)
                answer = {"ok": await action(fields, caller)}
                if action == self._events and fields.flag("follow"):
                    await self._follow(fields.whole("since", 0), reader, writer)
                    return
            except FarmError as exc:
                answer = {"error": dataclasses.asdict(exc.as_failure())}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            if refused:
                return

    def _refused(self, writer: asyncio.StreamWriter, caller: Caller) -> FarmError | None:
        """Take a connection in, or return why not."""
        try:
            self._connections.open(writer, caller)
        except FarmError as exc:
            return exc
        return None

    def _action(
        self, body: Mapping[str, Any]
    ) -> tuple[RequestFields, Callable[[RequestFields, Caller], Awaitable[dict[str, Any]]]]:
        do = body.get("do")
        if not isinstance(do, str) or do not in self._actions:
            raise UsageError(
                f"the lab cannot do {str(do)[:100]!r}",
                did_you_mean(str(do)[:100], self._actions),
                '{"do": "hello"}',
            )
        return RequestFields(body), self._actions[do]

    async def _hand_over(
        self,
        fields: RequestFields,
        caller: Caller,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Give the caller a board of a lease, or only tell how the lease ends. Raises FarmError."""
        number = fields.whole("lease")
        self._connections.keep(writer)
        if fields.text("do") == "watch":
            await self._board_sockets.watch(number, caller, reader, writer)
        else:
            wait_s = fields.seconds("wait_s", WAIT_S)
            await self._board_sockets.board(number, wait_s, caller, reader, writer)

    def _speaker(
        self, fields: RequestFields, caller: Caller, writer: asyncio.StreamWriter
    ) -> Caller:
        """Return who is behind the door, which runs as the server's account. Raises UsageError."""
        name = fields.text("user")
        if not caller.is_server:
            raise refusals.impersonation_error(caller)
        if not is_user_name(name):
            raise refusals.invalid_user_name_error(name)
        self._connections.speak_for(writer, name)
        return Caller(name)

    async def _speak_for(self, _: RequestFields, caller: Caller) -> dict[str, Any]:
        return {"you": caller.name}

    async def _expel(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        """End all leases and reservations of a user, and hang up on their connections."""
        if not caller.admin:
            raise refusals.not_an_administrator_error(caller)
        name, why = fields.text("user"), fields.text("why", "")
        scheduler = self.lender.scheduler
        self._connections.hang_up_on(name)
        owned = [one for one in scheduler.leases() if one.request.owner == name]
        for lease in owned:
            scheduler.end(lease.number, caller, self._clock(), why)
        for one in scheduler.reservations():
            if one.request.owner == name:
                because = why or "its owner was removed"
                scheduler.cancel_reservation(one.number, caller, self._clock(), because)
        self.lender.settle()
        await self._kept()
        return {"leases": [lease.number for lease in owned]}

    async def _hello(self, _: RequestFields, caller: Caller) -> dict[str, Any]:
        host, port = self.tracker
        return {
            "protocol": PROTOCOL,
            "you": caller.name,
            "admin": caller.admin,
            "tracker": {"host": host, "port": port},
        }

    async def _boards(self, _: RequestFields, __: Caller) -> dict[str, Any]:
        shown = [
            board_for_display(
                board,
                self.lender.address(board.name),
                self.lender.agent(board.name),
                self.lender.last_word_s(board.name),
            )
            for board in self.lender.scheduler.boards()
        ]
        await self._kept_if_possible()
        return {"boards": shown}

    async def _leases(self, fields: RequestFields, _: Caller) -> dict[str, Any]:
        scheduler = self.lender.scheduler
        found = scheduler.remembered() if fields.flag("ended") else scheduler.leases()
        waiting = [lease for lease in found if lease.state is LeaseState.QUEUED]
        prospects = scheduler.prospects(waiting, self._clock())
        shown = [
            lease_for_display(lease, prospects.get(lease.number))
            for lease in sorted(found, key=lambda one: one.number)
        ]
        await self._kept_if_possible()
        return {"leases": shown}

    async def _lease(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        return await self._told(self.lender.scheduler.lease(fields.whole("lease")), caller)

    async def _request(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        request = LeaseRequest(
            caller.name,
            fields.text("kind"),
            fields.seconds("for_s"),
            fields.text("class", "interactive"),
            max(1, fields.whole("count", 1, _MOST_COUNT)),
            fields.text("board", ""),
            fields.optional_seconds("wait_s"),
            fields.optional_seconds("heartbeat_s"),
            fields.labels(),
            fields.text("nonce", ""),
            tags=fields.texts("tags"),
            any_health=fields.flag("any_health"),
        )
        if (number := fields.whole("reservation", 0)) != 0:  # asks for the boards of that one
            scheduler, now = self.lender.scheduler, self._clock()
            return await self._told(
                scheduler.lease_of_reservation(number, request.kind, caller, now), caller
            )
        self._check_may_change(caller)
        lease = self.lender.scheduler.request(request, new_lease_key(), self._clock())
        self.lender.know(lease)
        self.lender.settle()
        try:
            return await self._told(lease, caller)
        except UnavailableError as exc:  # the disk is full: its owner is not told of the lease
            if not self.lender.scheduler.lease(lease.number).state.ended:
                self.lender.scheduler.end(lease.number, caller, self._clock(), exc.what)
                self.lender.settle()
            raise

    async def _wait(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        lease = self.lender.scheduler.lease(fields.whole("lease"))
        if lease.state is LeaseState.QUEUED:
            future = self._changed(lease.number)
            try:
                async with asyncio.timeout(
                    min(_MOST_WAIT_S, fields.seconds("timeout_s", _MOST_WAIT_S))
                ):
                    await future
            except TimeoutError:
                pass
        return await self._told(self.lender.scheduler.lease(lease.number), caller)

    def _changed(self, number: int) -> asyncio.Future[None]:
        """Return a future that is done when a lease changes; one that is cancelled is forgotten."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(number, set()).add(future)

        def forget(done: asyncio.Future[None]) -> None:
            futures = self._waiting.get(number, set())
            futures.discard(done)
            if not futures:
                self._waiting.pop(number, None)

        future.add_done_callback(forget)
        return future

    async def _heartbeat(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        lease = self.lender.scheduler.heartbeat(fields.whole("lease"), caller, self._clock())
        if self.lender.disk_full:  # what runs goes on
            return {"lease": self._shown(lease, key=caller.name == lease.request.owner)}
        return await self._told(lease, caller)

    async def _keep(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        self._check_may_change(caller)
        scheduler, number = self.lender.scheduler, fields.whole("lease")
        heartbeat_s = scheduler.lease(number).request.heartbeat_s
        lease = scheduler.keep(number, caller, self._clock())
        self.lender.settle()
        try:
            return await self._told(lease, caller)
        except UnavailableError:  # the disk is full: what is refused is not done later
            scheduler.take_back_keep(number, heartbeat_s, self._clock())
            self.lender.settle()
            raise

    async def _extend(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        by_s = fields.seconds("by_s")
        self._check_may_change(caller)
        scheduler = self.lender.scheduler
        lease = scheduler.extend(fields.whole("lease"), caller, by_s, self._clock())
        self.lender.settle()
        try:
            return await self._told(lease, caller)
        except UnavailableError as exc:  # the disk is full: what is refused is not done later
            scheduler.take_back_extension(lease.number, by_s, self._clock(), exc.what)
            self.lender.settle()
            raise

    async def _end(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        lease = self.lender.scheduler.end(
            fields.whole("lease"), caller, self._clock(), fields.text("why", "")
        )
        self.lender.settle()
        return await self._told(lease, caller)

    async def _reserve(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        """Reserve boards from a time on, or from so many seconds from now on."""
        now, in_s = self._clock(), fields.optional_seconds("in_s")
        request = ReservationRequest(
            caller.name,
            fields.text("kind"),
            fields.time("starts_at") if in_s is None else now + in_s,
            fields.seconds("for_s"),
            fields.text("class", "interactive"),
            max(1, fields.whole("count", 1, _MOST_COUNT)),
            fields.texts("tags"),
            fields.labels(),
            fields.text("nonce", ""),
        )
        self._check_may_change(caller)
        key = new_lease_key()
        reservation = self.lender.scheduler.reserve(request, key, now)
        try:
            return await self._told_of_reservation(reservation)
        except UnavailableError as exc:  # the disk is full: what is refused is not done later
            if reservation.key == key:  # not one that was asked for before
                self._give_up(reservation.number, caller, exc.what)
            raise

    def _give_up(self, number: int, caller: Caller, why: str) -> None:
        """Cancel a reservation, or end its lease if its time has come meanwhile."""
        scheduler, now = self.lender.scheduler, self._clock()
        with contextlib.suppress(UsageError):  # it is over already
            one = scheduler.reservation(number)
            if one.lease is None:
                scheduler.cancel_reservation(number, caller, now, why)
            else:
                scheduler.end(one.lease, caller, now, why)
        self.lender.settle()

    async def _reservations(self, _: RequestFields, __: Caller) -> dict[str, Any]:
        scheduler = self.lender.scheduler
        missing = scheduler.missing(self._clock())
        shown = [
            reservation_for_display(one, missing.get(one.number, 0))
            for one in scheduler.reservations()
        ]
        await self._kept_if_possible()
        return {"reservations": shown}

    async def _cancel(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        """Cancel a reservation once that is kept: until then its boards are promised."""
        number, why = fields.whole("reservation"), fields.text("why", "")
        if self.lender.disk_full:
            raise refusals.no_space_error()
        scheduler = self.lender.scheduler
        scheduler.prepare_cancellation(number, caller, self._clock(), why)
        self.lender.settle()
        try:
            await self._kept()
        except UnavailableError:  # the disk is full: what is refused is not done later
            scheduler.take_back_cancellation(number)
            self.lender.settle()
            raise
        cancelled = scheduler.cancel_reservation(number, caller, self._clock(), why)
        shown = self._reservation_shown(cancelled)
        self.lender.settle()
        return shown

    async def _told_of_reservation(self, reservation: Reservation) -> dict[str, Any]:
        shown = self._reservation_shown(reservation)
        self.lender.settle()
        await self._kept()
        return shown

    def _reservation_shown(self, reservation: Reservation) -> dict[str, Any]:
        missing = self.lender.scheduler.missing(self._clock()).get(reservation.number, 0)
        return {"reservation": reservation_for_display(reservation, missing)}

    async def _session_end(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        """Say how a session of a lease has ended, and whether that was the board's own fault.

        Its agent tells that at once, or its silence, once it has lasted; None if neither does.
        """
        lease = self.lender.scheduler.lease(fields.whole("lease"))
        if lease.request.owner != caller.name:
            raise refusals.lease_of_another_error(lease)
        match_key = fields.text("match_key")
        until = self._clock() + min(_MOST_SESSION_END_S, self.lender.silent_s + _AFTER_SILENCE_S)
        while (end := self.lender.sessions.how_ended(match_key)) is None:
            if self._clock() >= until:
                return {"session": None}
            await asyncio.sleep(_LOOK_S)
        return {"session": dataclasses.asdict(end)}

    async def _events(self, fields: RequestFields, _: Caller) -> dict[str, Any]:
        if fields.flag("follow"):
            return {}
        most = min(_MOST_EVENTS, max(1, fields.whole("most", _MOST_EVENTS)))
        events = await self._read(fields.whole("since", 0), most)
        return {"events": [dataclasses.asdict(event) for event in events]}

    async def _page(self, _: RequestFields, caller: Caller) -> dict[str, Any]:
        if self.open_page is None:
            raise UsageError(
                "the lab has no page",
                "its server was started without one",
                "farm lab serve --page 9180",
            )
        return {"url": self.open_page(caller)}

    async def _health(self, fields: RequestFields, _: Caller) -> dict[str, Any]:
        """Tell what is known of the health of a board, and how its checks went."""
        board, scheduler = fields.text("board"), self.lender.scheduler
        kind = scheduler.kind_of(board)
        if kind is None:
            raise refusals.unknown_board_error(board, [one.name for one in scheduler.boards()])
        record = self.lender.records.of(board)
        found = (record.health if record else None) or Health()
        await self._kept_if_possible()
        return {"health": health_for_display(board, kind, found, self._clock())}

    async def _care(self, fields: RequestFields, caller: Caller) -> dict[str, Any]:
        """Do what an administrator wants with a board."""
        board, why = fields.text("board"), fields.text("why", "")
        if (keeper := self.keeper) is None:
            raise UsageError("this server looks after no boards", "it is ending", "try again")
        match fields.text("do"):
            case "check":
                keeper.check(board, caller)
            case "power":
                keeper.power(board, caller)
            case "drain":
                keeper.drain(board, why or "no reason was given", caller)
            case _:
                keeper.give_back(board, why, caller)
        self.lender.settle()
        return await self._boards(fields, caller)

    async def _follow(
        self, since: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass events on until the reader has gone, or is too slow."""
        gone = asyncio.ensure_future(reader.read(1))
        passing = asyncio.ensure_future(self._pass_on(since, writer))
        try:
            await asyncio.wait({passing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            gone.cancel()
            passing.cancel()

    async def _pass_on(self, since: int, writer: asyncio.StreamWriter) -> None:
        async with contextlib.aclosing(self.follow(since)) as events:
            async for event in events:
                await _write_event(writer, event)

    async def oldest_event(self) -> int:
        """Return the number of the oldest event that is kept; 0 if there is none."""
        return await asyncio.get_running_loop().run_in_executor(None, self._journal.oldest_event)

    async def follow(self, since: int) -> AsyncGenerator[Event]:
        """Yield the events after a number: first those that are kept, then new ones, without a gap.

        It ends for a reader that is too slow, who can resume from its last event.
        """
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._readers.add(queue)
        try:
            while events := await self._read(since, _MOST_EVENTS):
                for event in events:
                    since = event.number
                    yield event
            while queue.qsize() < _MOST_BEHIND:
                event = await queue.get()
                if event.number > since:
                    since = event.number
                    yield event
        finally:
            self._readers.discard(queue)

    async def _read(self, since: int, most: int) -> list[Event]:
        return await asyncio.get_running_loop().run_in_executor(
            None, self._journal.events, since, most
        )

    async def _told(self, lease: Lease, caller: Caller) -> dict[str, Any]:
        if caller.name == lease.request.owner:
            self.lender.scheduler.claim(lease.number)
        shown = self._shown(lease, key=caller.name == lease.request.owner)
        await self._kept(lease.number)
        return {"lease": shown}

    def _check_may_change(self, caller: Caller) -> None:
        """Raise UnavailableError if the disk is full, or the caller asks for too much at once."""
        if self.lender.disk_full:
            raise refusals.no_space_error()
        if not caller.admin:
            self._budget.spend(caller.name)

    async def _kept_if_possible(self) -> None:
        """Wait until what is shown is kept; not for space on the disk."""
        with contextlib.suppress(UnavailableError):
            await self._kept()

    async def _kept(self, lease: int | None = None) -> None:
        """Wait until all that has changed so far is kept, or one lease is.

        Raises UnavailableError if there is no space on the disk.
        """
        if self.lender.disk_full:
            if lease is None or self._writer.waits_for_space(lease):
                raise refusals.no_space_error()
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer.after(lambda: None if future.done() else future.set_result(None))
        self._unkept[future] = lease
        try:
            await future
        finally:
            del self._unkept[future]

    def give_up_waiting(self) -> None:
        """Tell those who wait until something is kept that the disk is full."""
        for future, lease in self._unkept.items():
            if future.done():
                continue
            if lease is not None and not self._writer.waits_for_space(lease):
                future.set_result(None)
            else:
                future.set_exception(refusals.no_space_error())

    def _shown(self, lease: Lease, key: bool = False) -> dict[str, Any]:
        with contextlib.suppress(UsageError):
            lease = self.lender.scheduler.lease(lease.number)
        prospect = (
            self.lender.scheduler.prospect(lease, self._clock())
            if lease.state is LeaseState.QUEUED
            else None
        )
        return lease_for_display(lease, prospect, key)


async def _write_event(writer: asyncio.StreamWriter, event: Event) -> None:
    writer.write(json.dumps({"event": dataclasses.asdict(event)}).encode() + b"\n")
    await writer.drain()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise UsageError(
            "a request is one line of JSON", "this is none", '{"do": "hello"}'
        ) from exc
    if not isinstance(body, dict):
        raise UsageError("a request is an object of JSON", "this is none", '{"do": "hello"}')
    return body


def _bad(name: str, wanted: str) -> UsageError:
    return UsageError(
        f"the field {name!r} of the request is wrong",
        f"it is to be {wanted}",
        "correct the request",
    )
