"""How we prove to a hop who we are: by keys, then by what its server asks, then by the password. In the order of OpenSSH's client.

The user is asked only for what the server accepts, and only once per command; see farm.asking.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import paramiko

from farm.asking import TRIES, Ask, Question
from farm.errors import DeviceError
from farm.transports.ssh_config import Hop
from farm.transports.ssh_keys import Keys

_METHODS = ("publickey", "keyboard-interactive", "password")
_LASTING = re.compile(r"passwor|passphrase|kennwor", re.IGNORECASE)  # asked for: other answers, such as codes, are good once
_THINKING_S = 600.0  # for the user; servers lose patience sooner (LoginGraceTime)
_UNUSABLE = "cannot be used for signing"  # what paramiko says where the agent refuses
_PATIENCE_S = 5.0  # that every server has
_KEYS = "ssh-copy-id -p {port} {user}@{host}, or name the right `user@` in the url and the right IdentityFile in ~/.ssh/config"


class Login:
    """What we have to show to one hop. It may be used for several connections: each goes on where the last one broke off.

    A paramiko auth strategy: its client calls `authenticate` once it has checked the host key.
    """

    def __init__(self, name: str, hop: Hop, ask: Ask) -> None:
        self._name, self._hop, self._user_asked = name, hop, ask
        self._keys = Keys(hop, self._ask)
        self._given: dict[str, str] = {}  # answers on which the server has not spoken yet, by question
        self._wrong: dict[str, str] = {}  # the last ones that it refused
        self._refusals = 0
        self._thought_s = 0.0  # the user, during this connection
        self._half = False  # the server has accepted something, and wants more
        self._cut = False  # it has hung up while the user was thinking
        self._lost = 0  # connections
        self._last: paramiko.AuthenticationException | None = None  # what it has said

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in. Raises DeviceError where we have nothing that is accepted; what breaks is raised as it comes."""
        allowed, used = self._allowed(transport), set[str]()
        while allowed:
            method = next((method for method in _METHODS if method in allowed and method not in used | self._hop.without), None)
            if method is None:
                raise self._refused(allowed) from self._last
            used.add(method)
            accepted = self._by(method, transport)
            if accepted is not None:
                allowed, self._half = accepted, True

    def goes_on(self) -> bool:
        """Whether it is worth connecting again after a connection that broke: over a wrong answer, or while the user was thinking."""
        late = self._cut or self._thought_s >= _PATIENCE_S
        refused = bool(self._given) and not late
        if refused:
            self._note_refusal()
        self._cut, self._thought_s, self._lost = False, 0.0, self._lost + 1
        return (late or refused) and self._lost <= TRIES

    def _allowed(self, transport: paramiko.Transport) -> Sequence[str]:
        """The methods that the server accepts of this user; none where it wants no proof at all."""
        try:
            transport.auth_none(self._hop.user)
        except paramiko.BadAuthenticationType as exc:
            self._last = exc
            return list(exc.allowed_types)
        return ()

    def _by(self, method: str, transport: paramiko.Transport) -> Sequence[str] | None:
        """None where the method did not work; else what the server wants in addition, which mostly is nothing."""
        if method == "publickey":
            return self._by_keys(transport)
        return self._by_word(transport, self._answer if method == "keyboard-interactive" else self._tell)

    def _by_keys(self, transport: paramiko.Transport) -> Sequence[str] | None:
        for key in self._keys:
            accepted = None
            try:
                accepted = self._tried(transport, transport.auth_publickey, self._hop.user, key)
            except paramiko.SSHException as exc:
                if _UNUSABLE not in str(exc):
                    self._keys.take_back(key)
                    raise
                self._cut = True  # by ourselves: paramiko gives the connection up with the key
                self._keys.useless["a key of the SSH agent"] = str(exc)
                raise
            if accepted is not None:
                self._keys.take_back(key)  # the next connection needs it too
                return accepted
        return None

    def _by_word(self, transport: paramiko.Transport, act: Any) -> Sequence[str] | None:
        while self._refusals < TRIES:
            self._given = {}
            accepted = self._tried(transport, act, transport)
            if accepted is not None:
                return accepted
            if not self._given:  # nobody knows an answer
                return None
            self._note_refusal()
        fix = "run the command again with the right one, or with the right `user@` in the url"
        raise DeviceError(f"{self._hop.place} refuses the password", f"{TRIES} were wrong", fix) from self._last

    def _tried(self, transport: paramiko.Transport, act: Any, *arguments: Any) -> Sequence[str] | None:
        """What the server wants in addition after an attempt that it accepted; None after one that it refused."""
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
        """Have the server's questions answered, which come in the transport's thread."""

        def answers(title: str, instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:  # noqa: ARG001
            return [self._reply(prompt, shown) for prompt, shown in prompts]

        timeout_s, transport.auth_timeout = transport.auth_timeout, _THINKING_S
        try:
            return list(transport.auth_interactive(self._hop.user, answers))
        finally:
            transport.auth_timeout = timeout_s

    def _reply(self, prompt: str, shown: bool) -> str:
        text = self._password if prompt.strip().lower() in ("password", "password:") else f"{self._hop.place} asks: {prompt}"
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
        """Nothing has helped: what the user can do about it."""
        hop, keys = self._hop, self._keys
        fix = _KEYS.format(port=hop.port, user=hop.user, host=hop.host)
        if self._half:
            fix = "run the command on a terminal, which asks for it, or let its SSH server be content with a key"
            return DeviceError(f"{hop.place} wants more than a key", f"it wants one of: {', '.join(allowed)}", fix)
        if "publickey" not in allowed:
            fix = "run the command on a terminal, which asks for it, or let its SSH server accept keys (PubkeyAuthentication)"
            return DeviceError(f"{hop.place} does not accept keys", f"it wants one of: {', '.join(allowed)}", fix)
        if keys.locked:
            files = ", ".join(map(str, keys.locked))
            fix = "ssh-add, which asks for it once, or run the command on a terminal"
            return DeviceError(f"the key for {hop.place} is locked by a passphrase", files, fix)
        useless = [f"{key}: {why}" for key, why in keys.useless.items()]
        if not keys.offered:
            why = "; ".join(useless) or "the SSH agent has none, and there is no key file"
            return DeviceError(f"there is no key to log in to {hop.place} with", why, f"ssh-keygen, then {fix}")
        why = "; ".join([f"it accepts none of {len(keys.offered)} keys", *useless])
        if set(allowed) & {"password", "keyboard-interactive"} - hop.without:
            why += "; a password would be asked for on a terminal"
        return DeviceError(f"{hop.place} refuses the login", why, fix)
