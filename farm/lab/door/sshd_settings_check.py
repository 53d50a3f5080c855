"""Check how the lab server's sshd limits the keys of the account, by its own `sshd -T`.

A key of a board may forward ports. No option of a key limits forwarding to Unix sockets: with it a
board could make sockets wherever the account may write, in the place of the lab's own. And with
`GatewayPorts yes` the port of a tunnel would listen beyond loopback. sshd's own settings decide on
both.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.processes import subprocesses
from farm.processes.deadline import Deadline

USUAL = Path("/etc/ssh/sshd_config")
_READ_S = 10.0
_LONGEST_ALIVE_S = 30  # between two questions of sshd to a client that says nothing


@dataclass(frozen=True, slots=True)
class SettingFinding:
    """A setting that is not as the lab needs it: why, and the line for sshd_config.

    A `dangerous` one lets the key of a board do more than it may.
    """

    why: str
    line: str
    dangerous: bool = False


def effective_settings(account: str, file: Path) -> Mapping[str, str]:
    """Return sshd's settings for an account that comes from elsewhere, by their small names.

    Raises FarmError if there is no sshd, or it cannot read its configuration.
    """
    sshd = (
        subprocesses.first_installed_program("sshd", "/usr/sbin/sshd", "/usr/local/sbin/sshd")
        or "sshd"
    )
    connection = f"user={account},host=elsewhere,addr=192.0.2.1,laddr=192.0.2.2,lport=22"
    with tempfile.TemporaryDirectory(prefix="farm-sshd-") as folder:
        key = Path(folder) / "host_key"  # the server's own is root's, and sshd wants to have one
        key.touch(0o600)
        key.write_bytes(_host_key())
        command = [sshd, "-T", "-f", str(file), "-h", str(key), "-C", connection]
        text = subprocesses.run_program(command, deadline=Deadline(_READ_S), what="sshd's settings")
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def setting_findings(
    settings: Mapping[str, str], keys: Path, home: Path, account: str, *, board: bool
) -> Iterator[SettingFinding]:
    """Yield what has to be changed for the keys of a file to be good, those of a `board` too."""
    read = [_expanded(word, home, account) for word in settings["authorizedkeysfile"].split()]
    if keys not in read:
        near = keys.is_relative_to(home)
        line = f"AuthorizedKeysFile {keys.relative_to(home) if near else shlex.quote(str(keys))}"
        yield SettingFinding(f"sshd does not read {keys}", line)
    if settings.get("pubkeyauthentication") == "no":
        yield SettingFinding("sshd takes no keys", "PubkeyAuthentication yes")
    if not board:
        return
    if settings.get("allowstreamlocalforwarding") != "no":
        why = "the key of a board could make Unix sockets in the place of the lab's"
        yield SettingFinding(why, "AllowStreamLocalForwarding no", dangerous=True)
    if settings.get("gatewayports") == "yes":
        why = "the port of a board's tunnel would listen beyond loopback"
        yield SettingFinding(why, "GatewayPorts no", dangerous=True)
    if settings.get("allowtcpforwarding") not in ("yes", "all") or (
        settings.get("disableforwarding") == "yes"
    ):
        yield SettingFinding(
            "sshd opens no tunnels", "AllowTcpForwarding yes, and DisableForwarding no"
        )
    if not 0 < int(settings.get("clientaliveinterval", "0")) <= _LONGEST_ALIVE_S:
        why = "a board whose connection was cut would find its port taken for minutes"
        yield SettingFinding(why, "ClientAliveInterval 8")


def _expanded(word: str, home: Path, account: str) -> Path:
    """Return the file that AuthorizedKeysFile names for an account."""
    for token, value in (("%h", str(home)), ("%u", account), ("%%", "%")):
        word = word.replace(token, value)
    return home / word


def _host_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
