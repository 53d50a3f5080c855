"""The file of keys that sshd reads for the lab's account: one line for each key.

    restrict,command="python -I -m farm lab door alice --socket S --keys F" ssh-ed25519 AAAA... a@b
    restrict,port-forwarding,permitlisten="127.0.0.1:20007",permitopen="127.0.0.1:9190",command="..."

The second is the key of a board behind NAT. With -I, Python takes nothing from the environment,
some of which is the client's where sshd_config has AcceptEnv. The file is farm's own, and written
whole or not at all. Lines that are not farm's stay as they are.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import os
import re
import shlex
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm import ownership
from farm.errors import DeviceError, UsageError
from farm.lab.door.commands import ACCOUNT, TUNNEL, USER

USUAL = Path("~/.ssh/farm_keys")
LOOPBACK = "127.0.0.1"
_MOST_FILE_BYTES = 16 << 20
_MOST_KEY_BYTES = 16 << 10  # a key of RSA with 16,384 bits has 2,100
_LEAST_RSA_BITS = 2048
_COMMENT = re.compile(r"[\w.@+:-]{0,100}", re.ASCII)
_UINT32 = struct.Struct(">I")
# The fields after the type, by type: the length of each in bytes, or None if any will do
_FIELDS: dict[str, tuple[int | None, ...]] = {
    "ssh-ed25519": (32,),
    "ssh-rsa": (None, None),
    "ecdsa-sha2-nistp256": (8, 65),
    "ecdsa-sha2-nistp384": (8, 97),
    "ecdsa-sha2-nistp521": (8, 133),
    "sk-ssh-ed25519@openssh.com": (32, None),
    "sk-ecdsa-sha2-nistp256@openssh.com": (8, 65, None),
}
_LINE = re.compile(
    rf'restrict,(?P<forwards>port-forwarding,permitlisten="{re.escape(LOOPBACK)}:(?P<port>\d+)",'
    r'permitopen="[^"]*",)?command="(?P<command>[^"]*)" (?P<type>\S+) (?P<blob>\S+)'
    r"(?: (?P<comment>\S*))?"
)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key: its type, its base64 text, and a comment."""

    type: str
    blob: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class AuthorizedKey:
    """A line: a user and a key. A board behind NAT has the `port` of its tunnel.

    With `is_account` the user is who has the account of this name on the lab's machine.
    """

    user: str
    key: PublicKey
    port: int | None = None
    is_account: bool = False


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """The content of the lines: the Python that has farm, the control socket, the tracker."""

    python: Path
    socket: Path
    tracker: tuple[str, int]


def parse_key(text: str, source: str) -> PublicKey:
    """Return the public key in the content of a file such as id_ed25519.pub. Raises UsageError."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    fix = "give the one line of a file such as ~/.ssh/id_ed25519.pub"
    if "PRIVATE KEY" in text:
        why = "a private key stays with its owner"
        raise UsageError(f"{source} is a private key", why, "give the file that ends in .pub")
    if len(lines) != 1:
        why = f"it has {len(lines)} lines that could be keys"
        raise UsageError(f"{source} is not one public key", why, fix)
    words = lines[0].split(None, 2)
    try:
        if words[0] not in _FIELDS:
            raise ValueError(f"it begins with {words[0][:50]!a}, and options are not taken over")
        if len(words) < 2:
            raise ValueError("it ends after the type")
        _check(words[0], words[1])
    except ValueError as exc:
        raise UsageError(f"{source} is no public key of OpenSSH", str(exc), fix) from exc
    comment = words[2].strip() if len(words) > 2 else ""
    return PublicKey(words[0], words[1], comment if _COMMENT.fullmatch(comment) else "")


def _check(type_: str, blob: str) -> None:
    """Raise ValueError unless a base64 text is a key of a type, and nothing beside it."""
    if len(blob) > _MOST_KEY_BYTES:
        raise ValueError("it is too long for a key")
    try:
        data = base64.b64decode(blob.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as exc:
        raise ValueError("its second word is not base64") from exc
    if base64.b64encode(data).decode() != blob:
        raise ValueError("its base64 is not in the usual form")
    name, *fields = _strings(data)
    if name != type_.encode():
        raise ValueError("its two words say different types")
    wanted = _FIELDS[type_]
    if len(fields) != len(wanted) or any(
        size is not None and len(field) != size for size, field in zip(wanted, fields, strict=True)
    ):
        raise ValueError(f"it is cut, or no key of the type {type_}")
    if type_ == "ssh-rsa":
        bits = int.from_bytes(fields[1], "big").bit_length()
        if bits < _LEAST_RSA_BITS:
            raise ValueError(
                f"an RSA key of {bits} bits is too short; {_LEAST_RSA_BITS} are needed"
            )


def _strings(data: bytes) -> list[bytes]:
    """Return the strings of SSH's wire format (RFC 4251). Raises ValueError."""
    found, at = [], 0
    while at < len(data):
        if at + _UINT32.size > len(data):
            raise ValueError("it is cut")
        (length,) = _UINT32.unpack_from(data, at)
        at += _UINT32.size
        if at + length > len(data):
            raise ValueError("it is cut")
        found.append(data[at : at + length])
        at += length
    if not found:
        raise ValueError("it is empty")
    return found


class AuthorizedKeysFile:
    """The file of keys. Its folder is made if it is missing; both are this user's alone."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    def entries(self) -> list[AuthorizedKey]:
        """Return the users and keys of farm's lines. Raises DeviceError."""
        return [entry for line in self._lines() if (entry := parse_line(line))]

    def add(self, entry: AuthorizedKey, door: DoorSettings) -> None:
        """Add a line. Raises UsageError for a key, or a board's port, that is there already."""
        with self._locked():
            lines = self._lines()
            for other in filter(None, map(parse_line, lines)):
                if other.key.blob == entry.key.blob:
                    raise UsageError(
                        f"this key is {other.user}'s already",
                        "a key tells who one is, so it has one owner",
                        f"give another key, or first: farm lab user remove {other.user}",
                    )
                if entry.port is not None and entry.port == other.port:
                    raise UsageError(
                        f"port {entry.port} is {other.user}'s already",
                        "the tunnel of a board needs a port of its own",
                        f"leave --port out, or first: farm lab user remove {other.user}",
                    )
                if entry.user == other.user and (entry.port is None) != (other.port is None):
                    one = "a board" if other.port is not None else "a person"
                    raise UsageError(
                        f"{entry.user} is {one} already",
                        "a name is a person's, or a board's with its one key",
                        "choose another name",
                    )
            self._write([*lines, format_line(entry, door, self.path)])

    def remove(self, user: str) -> list[AuthorizedKey]:
        """Remove all keys of a user, and return them."""
        with self._locked():
            removed, kept = [], []
            for line in self._lines():
                entry = parse_line(line)
                if entry and entry.user == user:
                    removed.append(entry)
                else:
                    kept.append(line)
            if removed:
                self._write(kept)
        return removed

    def _lines(self) -> list[str]:
        try:
            with self.path.open("rb") as file:
                data = file.read(_MOST_FILE_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise _unusable(self.path, exc) from exc
        if len(data) > _MOST_FILE_BYTES:
            why = f"it has more than {_MOST_FILE_BYTES >> 20} MiB"
            raise DeviceError(f"{self.path} is no file of keys", why, "name another with --keys")
        return data.decode("utf-8", "surrogateescape").splitlines()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from changing the file meanwhile. Raises DeviceError."""
        try:
            ownership.make_private_folder(self.path.parent)
            lock = ownership.open_private(self.path.with_name(f".{self.path.name}.lock"))
        except OSError as exc:
            raise _unusable(self.path, exc) from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _write(self, lines: Sequence[str]) -> None:
        """Replace the file by one with these lines, which is on the disk before."""
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:  # of mode 0600
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as exc:
            raise _unusable(self.path, exc) from exc


def format_line(entry: AuthorizedKey, door: DoorSettings, keys: Path) -> str:
    """Return the line of a key. Raises UsageError for a path that has no place in one."""
    words = [str(door.python), "-I", "-m", "farm", "lab", "door", entry.user]
    words += ["--socket", str(door.socket), "--keys", str(keys)]
    if entry.port is not None:
        words.append(TUNNEL)
    if entry.is_account:
        words.append(ACCOUNT)
    if bad := next((word for word in words if re.search(r'["\\\x00-\x1f\x7f]', word)), None):
        why = "in a line of authorized_keys, a path has no quotes and no backslashes"
        raise UsageError(f"{bad!a} has no place there", why, "use a plain path")
    forwards = ""
    if entry.port is not None:
        host, port = door.tracker
        forwards = f'port-forwarding,permitlisten="{LOOPBACK}:{entry.port}",'
        forwards += f'permitopen="{host}:{port}",'
    command = " ".join(map(shlex.quote, words))
    key = f"{entry.key.type} {entry.key.blob} {entry.key.comment}".rstrip()
    return f'restrict,{forwards}command="{command}" {key}'


def parse_line(line: str) -> AuthorizedKey | None:
    """Return the user and key of a line, or None if it is not one of farm's."""
    found = _LINE.fullmatch(line.strip())
    if not found:
        return None
    try:
        words = shlex.split(found["command"])
    except ValueError:
        return None
    at = 5 if words[1:4] == ["-I", "-m", "farm"] else 2  # that of `farm` by itself is an older one
    if words[at - 1 : at + 1] != ["lab", "door"] or not USER.fullmatch(
        "".join(words[at + 1 :][:1])
    ):
        return None
    key = PublicKey(found["type"], found["blob"], found["comment"] or "")
    port = int(found["port"]) if found["port"] else None
    return AuthorizedKey(words[at + 1], key, port, ACCOUNT in words)


def fingerprint(key: PublicKey) -> str:
    """Return the fingerprint of a key as ssh-keygen -l prints it."""
    import hashlib

    digest = hashlib.sha256(base64.b64decode(key.blob)).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _unusable(path: Path, cause: OSError) -> DeviceError:
    why = f"{path}: {cause.strerror or cause}"
    return DeviceError("the lab's keys cannot be read or written", why, "name a file with --keys")
