"""Who asks, and what a browser may be made to ask.

On the Unix socket the kernel says who it is. On loopback anyone may read; a browser is known by a
cookie, which it gets for a link that is good once. Both are good only on connections of the user
who asked for the link: a browser sends a cookie to every port of loopback, those of other users,
too. A page of another origin may make a browser send requests to loopback: so the name of the host,
the origin, and a token of the form are checked.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from aiohttp import web

from farm import ownership
from farm.lab.callers import identify_caller
from farm.lab.entities import Caller
from farm.lab_page.json_responses import Forbidden

COOKIE = "farm_lab"
LINK_S = 120.0
SESSION_S = 12 * 3600.0
FORM_TOKEN = "token"  # the field of a form
_MOST = 1000  # links, and sessions
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A browser that is known, and what its forms must send along. It ends at a time."""

    caller: Caller
    form_token: str
    until: float


class BrowserLogins:
    """The links and sessions of one server: they end with it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._links: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._sessions: OrderedDict[str, BrowserSession] = OrderedDict()
        self._peers: WeakKeyDictionary[asyncio.BaseTransport, str] = WeakKeyDictionary()

    def link(self, caller: Caller) -> str:
        """Return the word of a link that is good once, for a short time."""
        word = secrets.token_urlsafe(32)
        self._links[word] = caller, self._clock() + LINK_S
        _limit(self._links)
        return word

    def enter(self, request: web.Request, word: str) -> str | None:
        """Return the cookie for the word of a link, which is used up; None for any other.

        Raises Forbidden if the link is another user's.
        """
        caller, until = self._links.get(word, (Caller(""), -1.0))
        if self._clock() >= until:
            return None
        if not self._is_of(request, caller):
            why = (
                f"{caller.name} asked for it, and the connection is of "
                f"{self._peer(request) or 'a process that is gone'}"
            )
            raise Forbidden(
                "this link is somebody else's",
                why,
                "farm lab page, as the user of the browser or of ssh -L",
            )
        del self._links[word]
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = BrowserSession(
            caller, secrets.token_urlsafe(32), self._clock() + SESSION_S
        )
        _limit(self._sessions)
        return cookie

    def leave(self, request: web.Request) -> None:
        """End the session of a browser."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    def session(self, request: web.Request) -> BrowserSession | None:
        """Return the session of a browser, if it has one."""
        found = self._sessions.get(request.cookies.get(COOKIE, ""))
        return (
            found
            if found and self._clock() < found.until and self._is_of(request, found.caller)
            else None
        )

    def caller(self, request: web.Request) -> Caller | None:
        """Return who asks, if that is known."""
        if (connection := _unix_socket(request)) is not None:
            return identify_caller(connection)
        session = self.session(request)
        return session.caller if session else None

    def changer(self, request: web.Request) -> Caller:
        """Return who asks for a change. Raises Forbidden if that is not known."""
        if (caller := self.caller(request)) is None:
            raise Forbidden(
                "the lab does not know who you are",
                "without that it can be read only",
                "open the page with: farm lab page",
            )
        return caller

    def check_form(self, request: web.Request, token: str) -> Caller:
        """Return whose form was sent. Raises Forbidden for one that is not of our own page."""
        session = self.session(request)
        if session is None:
            return self.changer(request)
        if not hmac.compare_digest(session.form_token.encode(), token.encode()):
            raise Forbidden(
                "this form is not of the lab's page",
                "its token is missing or old",
                "load the page again",
            )
        return session.caller

    def _is_of(self, request: web.Request, caller: Caller) -> bool:
        connection = _unix_socket(request)
        return (
            identify_caller(connection).name if connection is not None else self._peer(request)
        ) == caller.name

    def _peer(self, request: web.Request) -> str:
        """Return the user at the other end of a connection of loopback; "" if it is not known."""
        if (transport := request.transport) is None:
            return ""
        if transport not in self._peers:
            user = ownership.user_of_peer(transport.get_extra_info("socket"))
            if user is None:
                return ""
            self._peers[transport] = ownership.user_name(user)
        return self._peers[transport]


def check_origin(request: web.Request) -> None:
    """Raise Forbidden for a request that a page of elsewhere has a browser send.

    A name that was made to point at loopback is in the host (DNS rebinding).
    """
    if _unix_socket(request) is not None:
        return
    host = request.headers.get("Host", "")
    if _name(f"http://{host}") not in _LOOPBACK:
        raise Forbidden(
            "the lab does not answer under this name",
            f"it was asked as {host[:100]!r}",
            "use http://127.0.0.1:PORT, or ssh -L",
        )
    if request.method in ("GET", "HEAD"):
        return
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"http://{host}":
        raise Forbidden(
            "a page of elsewhere asks for this",
            f"its origin is {origin[:100]!r}",
            "use the lab's own page",
        )
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden(
            "a page of elsewhere asks for this", "the browser says so", "use the lab's own page"
        )


def _name(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return ""
    return parts.hostname or "" if not (parts.path or parts.username) else ""


def _unix_socket(request: web.Request) -> socket.socket | None:
    connection = request.transport.get_extra_info("socket") if request.transport else None
    return connection if connection is not None and connection.family == socket.AF_UNIX else None


def _limit(found: OrderedDict[str, Any]) -> None:
    while len(found) > _MOST:
        found.popitem(last=False)
