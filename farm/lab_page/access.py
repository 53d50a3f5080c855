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
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from aiohttp import web

from farm import ownership
from farm.lab.callers import identify_caller
from farm.lab.entities import Caller
from farm.lab.shared_places import SharedPlaces
from farm.lab_page.http_responses import Forbidden

COOKIE = "farm_lab"
LINK_S = 120.0
SESSION_S = 12 * 3600.0
FORM_TOKEN = "token"  # the field of a form
_MOST = 1 << 16  # links, and sessions
_MOST_LINKS, _MOST_SESSIONS = 10, 50  # of one person: the oldest ends
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
        self._links: dict[str, tuple[Caller, float]] = {}
        self._sessions: dict[str, BrowserSession] = {}
        self._links_of = SharedPlaces[str](_MOST, _MOST_LINKS, self._links.__delitem__)
        self._sessions_of = SharedPlaces[str](_MOST, _MOST_SESSIONS, self._sessions.__delitem__)
        self._peers: WeakKeyDictionary[asyncio.BaseTransport, str] = WeakKeyDictionary()

    def link(self, caller: Caller) -> str:
        """Return the word of a link that is good once, for a short time."""
        word = secrets.token_urlsafe(32)
        self._links[word] = caller, self._clock() + LINK_S
        self._links_of.take(word, caller.name)
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
        self._links_of.leave(word)
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = BrowserSession(
            caller, secrets.token_urlsafe(32), self._clock() + SESSION_S
        )
        self._sessions_of.take(cookie, caller.name)
        return cookie

    def leave(self, request: web.Request) -> None:
        """End the session of a browser."""
        cookie = request.cookies.get(COOKIE, "")
        self._sessions.pop(cookie, None)
        self._sessions_of.leave(cookie)

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
        return self.user(request) == caller.name

    def _peer(self, request: web.Request) -> str:
        return "" if request.transport is None else self.peer(request.transport)

    def user(self, request: web.Request) -> str:
        """Return whose connection a request came by; "" if it is not known."""
        connection = _unix_socket(request)
        return self._peer(request) if connection is None else identify_caller(connection).name

    def peer(self, transport: asyncio.BaseTransport) -> str:
        """Return the user at the other end of a connection of loopback; "" if it is not known."""
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
