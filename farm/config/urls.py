"""Parse device URLs, in their eight forms.

    local:                    an agent on this machine
    qemu:                     an agent under qemu-user on this machine
    rpc://host:port           an agent, or TVM's RPC server
    tracker://host:port/key   a device that a TVM tracker leases under a key
    ssh://[user@]host[:port]  a board with an SSH server
    lab://[user@]host[:port]/kind  a board that a lab leases; its host has an SSH server
    lab:kind                  the same, of this machine's lab
    adb:[serial]              an Android board, by its serial number or as the only one
    exec:[name]               what the command of the device's options runs a shell in

The transport is named by the scheme. In the place of a lab's kind, or after it and a slash, stands
`board=NAME` or `tag=WORD`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from farm.errors import did_you_mean

EXAMPLES = {
    "local": "local:",
    "qemu": "qemu:",
    "rpc": "rpc://192.168.7.2:9090",
    "tracker": "tracker://lab.example.org:9190/rasp3b",
    "ssh": "ssh://pi@raspberrypi.local",
    "adb": "adb:HT7A1B200123",
    "exec": "exec:box",
    "lab": "lab://farm@lab.example.org/pi5",
}
# A ProxyCommand of ~/.ssh/config inserts users and hosts into a shell command, and ssh reads a word
# that begins with `-` as an option.
_HOST = re.compile(r"(?!-)[\w.-]+|[0-9A-Fa-f:.]+(%\w+)?")
# As `adb devices` lists them: of USB, `host:port`, `[address]:port`, or the name of an mDNS service
_SERIAL = re.compile(r"(?!-)[\w.:%@()\[\]-]{1,200}", re.ASCII)
# The name of a container, for example; it is shown to people only
_EXEC = re.compile(r"(?!-)[\w.:@/-]{1,200}", re.ASCII)
# Boards that are in no inventory are called KIND@HOST:PORT, and further ones behind it with #2
_BOARDS = re.compile(r"[\w.@:#\[\]-]{1,200}", re.ASCII)
_USER = re.compile(r"(?!-)[\w.@+-]+")


@dataclass(frozen=True, slots=True)
class DeviceUrl:
    """A device URL in its parts.

    Parts that the scheme does not use are empty; `port` is None for ssh's default port.
    """

    scheme: str
    host: str = ""
    port: int | None = None
    user: str = ""
    key: str = ""
    serial: str = ""
    board: str = ""
    tags: tuple[str, ...] = ()
    name: str = ""


def parse_url(text: str) -> DeviceUrl:
    """Return the parts of a URL.

    Raises ValueError that says in plain words what is wrong with it.
    """
    scheme, colon, rest = text.partition(":")
    if not colon:
        hint = (
            f"did you mean '{text}:'?"
            if text in ("local", "qemu", "adb", "exec")
            else f"write one of {', '.join(EXAMPLES.values())}"
        )
        raise ValueError(f"{text!r} names no transport, {hint}")
    if scheme not in EXAMPLES:
        raise ValueError(f"unknown transport {scheme!r}, {did_you_mean(scheme, EXAMPLES)}")
    if scheme in ("local", "qemu"):
        if rest:
            raise ValueError(f"nothing may follow {scheme!r} and its colon, got {text!r}")
        return DeviceUrl(scheme)
    if scheme == "adb":
        return DeviceUrl(scheme, serial=_serial(rest))
    if scheme == "exec":
        return DeviceUrl(scheme, name=_exec(rest))
    if scheme == "lab" and not rest.startswith("//"):
        return _with_boards(DeviceUrl(scheme), rest)
    if not text.isprintable() or " " in text:
        raise ValueError(f"{text!r} has a space or an unprintable character in it")
    try:
        return _network(scheme, text, urlsplit(text))
    except ValueError as exc:
        raise ValueError(f"{exc}; for example {EXAMPLES[scheme]!r}") from exc


def parse_lab_door_url(text: str) -> DeviceUrl:
    """Return the parts of the door of a lab, `lab://[user@]host[:port]`, as a url of SSH.

    Raises ValueError that says in plain words what is wrong with it.
    """
    if not text.startswith("lab://"):
        raise ValueError("it does not begin with lab://")
    return parse_url(f"ssh://{text.removeprefix('lab://').rstrip('/')}")


def _serial(text: str) -> str:
    if text.startswith("//"):
        raise ValueError(f"adb takes no '//', write 'adb:{text.lstrip('/')}'")
    if text and not _SERIAL.fullmatch(text):
        raise ValueError(f"{text!r} is no serial number of a device; `adb devices` lists them")
    return text


def _exec(text: str) -> str:
    if text.startswith("//"):
        raise ValueError(f"exec takes no '//', write 'exec:{text.lstrip('/')}'")
    if text and not _EXEC.fullmatch(text):
        raise ValueError(
            f"{text!r} is no name for exec:; the command itself belongs into the option `command`"
        )
    return text


def check_host(host: str) -> None:
    """Raise ValueError if a text is not the name or address of a host."""
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is no host name")


def check_user(user: str) -> None:
    """Raise ValueError if a text is not a user name, or has characters special to a shell."""
    if not _USER.fullmatch(user):
        allowed = "letters, digits, '_', '.', '+', '@' and '-', and no '-' at the beginning"
        raise ValueError(
            f"{user!r} is no user that a url may name: {allowed}; others are named by User in "
            "~/.ssh/config"
        )


def _network(scheme: str, text: str, parts: SplitResult) -> DeviceUrl:
    if "?" in text or "#" in text:
        raise ValueError(f"{text!r} takes no '?' or '#', settings belong into options")
    if not parts.hostname:
        raise ValueError(f"{text!r} has no host")
    check_host(parts.hostname)
    if parts.password is not None:
        raise ValueError("a password has no place in a configuration file, use an SSH key")
    if parts.username is not None and scheme not in ("ssh", "lab"):
        raise ValueError(f"{scheme} knows no users, leave out {parts.username + '@'!r}")
    if parts.username == "":
        raise ValueError(f"{text!r} has no user before the '@'")
    if parts.username is not None:
        check_user(parts.username)
    port, user = _port(scheme, text, parts), parts.username or ""
    if scheme == "lab":
        return _with_boards(
            DeviceUrl(scheme, parts.hostname, port, user), parts.path.removeprefix("/")
        )
    return DeviceUrl(scheme, parts.hostname, port, user, _key(scheme, text, parts))


def _with_boards(url: DeviceUrl, text: str) -> DeviceUrl:
    """Return a lab's url with the boards that a path names: KIND, board=NAME, tag=WORD."""
    if not text:
        raise ValueError(f"it names no boards; for example {EXAMPLES['lab']!r}")
    kind, board, tags = "", "", []
    for place, part in enumerate(text.split("/")):
        name, equals, value = part.partition("=")
        if not _BOARDS.fullmatch(value if equals else part):
            raise ValueError(f"{part!r} is no kind, board=NAME or tag=WORD")
        if not equals and place == 0:
            kind = part
        elif equals and name == "board" and not board:
            board = value
        elif equals and name == "tag":
            tags.append(value)
        else:
            raise ValueError(f"{part!r} has no place there: a kind first, then board=, tag=")
    return replace(url, key=kind, board=board, tags=tuple(tags))


def _port(scheme: str, text: str, parts: SplitResult) -> int | None:
    digits = parts.netloc.rpartition("@")[2].rpartition("]")[2].partition(":")[2]
    if not digits:
        if scheme in ("ssh", "lab") and not parts.netloc.endswith(":"):
            return None
        raise ValueError(f"{text!r} has no port")
    if not (
        digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65535
    ):
        raise ValueError(f"port {digits} is not a number from 1 to 65535")
    return int(digits)


def _key(scheme: str, text: str, parts: SplitResult) -> str:
    key = parts.path.removeprefix("/")
    if scheme != "tracker":
        if key:
            raise ValueError(
                f"{scheme} takes nothing after the host and port, leave out {parts.path!r}"
            )
        return ""
    if not key:
        raise ValueError(f"{text!r} has no key")
    if "/" in key:
        raise ValueError(f"the key {key!r} has a '/' in it")
    return key
