"""Authenticate to a hop: by keys, then by the server's prompts, then by password.

This is the order of OpenSSH's client. The user is prompted only for what the server accepts, and
only once per command; see farm.prompts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import paramiko

from farm.errors import DeviceError
from farm.prompts import TRIES, Ask, Question
from farm.transports.ssh.config import Hop
from farm.transports.ssh.login_keys import LoginKeys

_METHODS = ("publickey", "keyboard-interactive", "password")
# Prompts whose answer can be reused; other answers, such as one-time codes, are valid once
_LASTING = re.compile(r"passwor|passphrase|kennwor", re.IGNORECASE)
_THINKING_S = 600.0  # time for the user to answer; servers give up sooner (LoginGraceTime)
_UNUSABLE = "cannot be used for signing"  # paramiko's message if the SSH agent refuses to sign
_PATIENCE_S = 5.0  # every server waits at least this long
_KEYS = (
    "ssh-copy-id -p {port} {user}@{host}, or name the right `user@` in the url and the right "
    "IdentityFile in ~/.ssh/config"
)


class HopAuthStrategy:
    """The credentials for one hop, as a paramiko auth strategy.

    It may be used for several connections: each continues where the last one broke off. paramiko's
    client calls `authenticate` once it has checked the host key.
    """

    def __init__(self, name: str, hop: Hop, ask: Ask) -> None:
        self._name, self._hop, self._user_asked = name, hop, ask
        self._keys = LoginKeys(hop, self._ask)
        # Answers that the server has neither accepted nor refused yet, by question
        self._given: dict[str, str] = {}
        self._wrong: dict[str, str] = {}  # the last refused answer, by question
        self._refusals = 0
        self._thought_s = 0.0  # how long the user took to answer during this connection
        # The server has accepted one method and requires another (partial success)
        self._half = False
        self._cut = False  # the server has closed the connection while the user was answering
        self._lost = 0  # number of lost connections
        self._last: paramiko.AuthenticationException | None = None  # the server's last refusal

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in. Raises DeviceError if the server accepts none of the credentials.

        Errors of the connection are raised as paramiko raises them.
        """
        allowed, used = self._allowed(transport), set[str]()
        while allowed:
            method = next(
                (
                    method
                    for method in _METHODS
                    if method in allowed and method not in used | self._hop.without
                ),
                None,
            )
            if method is None:
                raise self._refused(allowed) from self._last
            used.add(method)
            accepted = self._by(method, transport)
            if accepted is not None:
                allowed, self._half = accepted, True

    def goes_on(self) -> bool:
        """Return whether to connect again after a connection broke.

        This is the case after a wrong answer and if the server gave up while the user was
        answering, but at most TRIES times.
        """
        late = self._cut or self._thought_s >= _PATIENCE_S
        refused = bool(self._given) and not late
        if refused:
            self._note_refusal()
        self._cut, self._thought_s, self._lost = False, 0.0, self._lost + 1
        return (late or refused) and self._lost <= TRIES

    def _allowed(self, transport: paramiko.Transport) -> Sequence[str]:
        """Return the methods that the server accepts for this user; empty if it requires none."""
        try:
            transport.auth_none(self._hop.user)
        except paramiko.BadAuthenticationType as exc:
            self._last = exc
            return list(exc.allowed_types)
        return ()

    def _by(self, method: str, transport: paramiko.Transport) -> Sequence[str] | None:
        """Try a method; return the methods required in addition, or None if it failed.

        Mostly the server requires nothing in addition.
        """
        if method == "publickey":
            return self._by_keys(transport)
        return self._by_word(
            transport, self._answer if method == "keyboard-interactive" else self._tell
        )

    def _by_keys(self, transport: paramiko.Transport) -> Sequence[str] | None:
        for key in self._keys:
            accepted = None
            try:
                accepted = self._tried(transport, transport.auth_publickey, self._hop.user, key)
            except paramiko.SSHException as exc:
                if _UNUSABLE not in str(exc):
                    self._keys.take_back(key)
                    raise
                # Closed by this side: paramiko gives up the connection together with the key
                self._cut = True
                self._keys.useless["a key of the SSH agent"] = str(exc)
                raise
            if accepted is not None:
                self._keys.take_back(key)  # the next connection needs the key, too
                return accepted
        return None

    def _by_word(self, transport: paramiko.Transport, act: Any) -> Sequence[str] | None:
        while self._refusals < TRIES:
            self._given = {}
            accepted = self._tried(transport, act, transport)
            if accepted is not None:
                return accepted
            if not self._given:  # no answer was available
                return None
            self._note_refusal()
        fix = "run the command again with the right one, or with the right `user@` in the url"
        raise DeviceError(
            f"{self._hop.place} refuses the password", f"{TRIES} were wrong", fix
        ) from self._last

    def _tried(
        self, transport: paramiko.Transport, act: Any, *arguments: Any
    ) -> Sequence[str] | None:
        """Return the methods that the server requires in addition after an accepted attempt.

        Returns None after a refused one.
        """
        try:
            accepted: Sequence[str] = act(*arguments)
        except paramiko.AuthenticationException as exc:
            self._last = exc
            if not transport.is_active() or "timeout" in str(exc):
                raise
            return None
        return accepted

    def _note_refusal(self) -> None:
        self._wrong.update(self._given)
        self._given = {}
        self._refusals += 1

    def _tell(self, transport: paramiko.Transport) -> Sequence[str]:
        word = self._word(self._password)
        self._cut = not transport.is_active()
        if word is None:
            raise paramiko.AuthenticationException("no password was given")
        return list(transport.auth_password(self._hop.user, word, fallback=False))

    def _answer(self, transport: paramiko.Transport) -> Sequence[str]:
        """Answer the server's prompts (keyboard-interactive).

        They arrive in the transport's thread.
        """

        def answers(title: str, instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:  # noqa: ARG001
            return [self._reply(prompt, shown) for prompt, shown in prompts]

        timeout_s, transport.auth_timeout = transport.auth_timeout, _THINKING_S
        try:
            return list(transport.auth_interactive(self._hop.user, answers))
        finally:
            transport.auth_timeout = timeout_s

    def _reply(self, prompt: str, shown: bool) -> str:
        text = (
            self._password
            if prompt.strip().lower() in ("password", "password:")
            else f"{self._hop.place} asks: {prompt}"
        )
        return self._word(text, hidden=not shown, once=not _LASTING.search(prompt)) or ""

    def _word(self, text: str, *, hidden: bool = True, once: bool = False) -> str | None:
        word = self._ask(Question(text, hidden, once, self._wrong.get(text)))
        if word is not None:
            self._given[text] = word
        return word

    @property
    def _password(self) -> str:
        return f"password of {self._hop.place}: "

    def _ask(self, question: Question) -> str | None:
        if self._hop.asks_nothing:
            return None
        begin = time.monotonic()
        try:
            return self._user_asked(question)
        finally:
            self._thought_s += time.monotonic() - begin

    def _refused(self, allowed: Sequence[str]) -> DeviceError:
        """Return the error for a login that no method achieved, with what the user can do."""
        hop, keys = self._hop, self._keys
        fix = hop.keys_remedy or _KEYS.format(port=hop.port, user=hop.user, host=hop.host)
        if self._half:
            fix = (
                "run the command on a terminal, which asks for it, or let its SSH server be "
                "content with a key"
            )
            return DeviceError(
                f"{hop.place} wants more than a key", f"it wants one of: {', '.join(allowed)}", fix
            )
        if "publickey" not in allowed:
            fix = (
                "run the command on a terminal, which asks for it, or let its SSH server accept "
                "keys (PubkeyAuthentication)"
            )
            return DeviceError(
                f"{hop.place} does not accept keys", f"it wants one of: {', '.join(allowed)}", fix
            )
        if keys.locked:
            files = ", ".join(map(str, keys.locked))
            fix = "ssh-add, which asks for it once, or run the command on a terminal"
            return DeviceError(f"the key for {hop.place} is locked by a passphrase", files, fix)
        useless = [f"{key}: {why}" for key, why in keys.useless.items()]
        if not keys.offered:
            why = "; ".join(useless) or "the SSH agent has none, and there is no key file"
            return DeviceError(
                f"there is no key to log in to {hop.place} with", why, f"ssh-keygen, then {fix}"
            )
        why = "; ".join([f"it accepts none of {len(keys.offered)} keys", *useless])
        if set(allowed) & {"password", "keyboard-interactive"} - hop.without:
            why += "; a password would be asked for on a terminal"
        return DeviceError(f"{hop.place} refuses the login", why, fix)
