"""Install a tunnel to a lab as a systemd service of a board behind NAT, beside its agent.

The board opens it: `ssh -N -R` makes the agent's port one of the lab's loopback, and `-L` the lab's
tracker one of the board's. Its key is made on the board and never leaves it; the lab's host key is
the one that this machine trusts.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from farm.config.urls import parse_lab_door_url
from farm.errors import DeviceError, UsageError
from farm.transports.ssh import install_and_removal_scripts as scripts
from farm.transports.ssh.board import SshBoard
from farm.transports.ssh.config import SSH_PORT, Hop, resolve_hops
from farm.transports.ssh.known_hosts import known_keys
from farm.transports.ssh.systemd_service import check_no_control_characters, unit_command_line

UNIT = "farm-tunnel.service"
LOOPBACK = "127.0.0.1"
TRACKER = f"{LOOPBACK}:9190"  # as the board sees the lab's, and usually the lab itself, too
KEY, HOSTS = "lab_key", "lab_hosts"  # the board's own key, and the lab's line of known_hosts
_UNIT = """# Made by farm provision --service --lab; farm provision --remove removes it.
[Unit]
Description=farm tunnel to a lab
StartLimitIntervalSec=0
{after}
[Service]
WorkingDirectory={folder}
ExecStart={command}
Restart=always
RestartSec=5
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy={target}
"""
_AFTER = """Wants=network-online.target
After=network-online.target
"""
# The files have names without a folder: ssh would read spaces and % in one in its own way
_OPTIONS = (
    "BatchMode=yes",
    "IdentitiesOnly=yes",
    "ExitOnForwardFailure=yes",
    "StrictHostKeyChecking=yes",
    f"UserKnownHostsFile={HOSTS}",
    "GlobalKnownHostsFile=/dev/null",
    "ServerAliveInterval=8",
    "ServerAliveCountMax=3",
    "ConnectTimeout=20",
)


_PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68} farm-[a-z0-9_.-]{1,32}")


@dataclass(frozen=True, slots=True)
class LabTunnel:
    """A tunnel of a board to a lab: the door's url, the board's name there, and its port.

    The port is the agent's on the board, and that of the tunnel's end on the lab's loopback.
    `tracker` is where the lab's server sees its tracker.
    """

    lab: str
    board: str
    port: int
    tracker: str = TRACKER

    @property
    def server(self) -> Hop:
        """The lab's SSH server, as this machine's ~/.ssh/config resolves it. Raises DeviceError."""
        return resolve_hops(f"ssh://{self.lab.removeprefix('lab://').rstrip('/')}")[-1]

    def user_command(self, key: str) -> str:
        """Return the command that lets the board's key in, for the lab's server."""
        add = f"farm lab user add {self.board} --key - --board --port {self.port}"
        return f"echo {shlex.quote(key)} | {add}"


def lab_tunnel_from_options(lab: str, board: str, port: int, tracker: str) -> LabTunnel:
    """Return a tunnel. Raises UsageError for what is no door of a lab, or names no account."""
    try:
        if not parse_lab_door_url(lab).user:
            raise ValueError("it has to name the account of the lab's server")
    except ValueError as exc:
        raise UsageError(f"--lab {lab} is no way to a lab", str(exc), "lab://farm@HOST") from exc
    return LabTunnel(lab, board, port, tracker or TRACKER)


def install_tunnel(board: SshBoard, tunnel: LabTunnel) -> tuple[str, str]:
    """Install and start the tunnel; return what was done, and the board's public key.

    Raises DeviceError if the board has no OpenSSH, or the lab's host key is not known here.
    """
    seen = board.look("")
    is_root = seen["user"] == "0"
    unit = unit_text(tunnel, f"{seen['base']}/service", is_root=is_root)
    told = board.ask(
        scripts.TUNNEL, [unit, f"farm-{tunnel.board}"], known_hosts_lines(tunnel).encode()
    )
    name = board.device.name
    if "absent" in told:
        raise DeviceError(f"{name} cannot open a tunnel", told["absent"], "install OpenSSH there")
    if "key" not in told or "failed" in told:
        why = told.get("failed", "") or told[""][-500:]
        raise DeviceError(f"the tunnel of {name} is not installed", why, "run the command again")
    if not _PUBLIC_KEY.fullmatch(told["key"]):
        why = f"it says {told['key'][:200]!r}"
        raise DeviceError(f"the key of {name} is none", why, "run the command again")
    kind = "system" if is_root else "user"
    words = f"{kind} unit {UNIT}, to {tunnel.lab}, port {tunnel.port} of its loopback"
    return words, told["key"]


def unit_text(tunnel: LabTunnel, folder: str, *, is_root: bool) -> str:
    """Return the text of the unit file. `folder` has the key and the lab's host key.

    Raises DeviceError for a path with a control character, which could start a new line.
    """
    server = tunnel.server
    words = ["/usr/bin/env", "ssh", "-N", "-F", "none", "-i", KEY]
    words += [word for option in _OPTIONS for word in ("-o", option)]
    words += ["-R", f"{LOOPBACK}:{tunnel.port}:{LOOPBACK}:{tunnel.port}"]
    words += ["-L", f"{TRACKER}:{tunnel.tracker}"]
    words += ["-p", str(server.port), "-l", server.user, server.host]
    check_no_control_characters([folder, *words])
    return _UNIT.format(
        after=_AFTER if is_root else "",
        folder=folder.replace("%", "%%"),
        command=unit_command_line(words),
        target="multi-user.target" if is_root else "default.target",
    )


def known_hosts_lines(tunnel: LabTunnel) -> str:
    """Return the lab's lines of known_hosts, for the board. Raises DeviceError if there are none.

    The board knows the lab by its address: it has not this machine's ~/.ssh/config.
    """
    hop = tunnel.server
    host = hop.host.lower()  # as ssh looks it up
    place = host if hop.port == SSH_PORT else f"[{host}]:{hop.port}"
    lines = [f"{place} {key.get_name()} {key.get_base64()}\n" for key in known_keys(hop)]
    if not lines:
        why = f"{hop.key_name} is in none of your known_hosts files, and a board must not guess"
        fix = f"look at it and accept it once: ssh -p {hop.port} {hop.user}@{hop.host}"
        raise DeviceError(f"the host key of {tunnel.lab} is not known here", why, fix)
    return "".join(lines)
