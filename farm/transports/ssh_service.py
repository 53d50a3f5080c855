"""The agent as a service of a board's systemd, which starts it at boot: a system unit for root, else a unit of the user, who lingers.

Beside the unit there is a folder, `service`: a link of the agent, so that no later version takes its place unasked, and its key, which
other users must not see. Where nothing has changed, nothing is restarted.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.errors import DeviceError
from farm.transports import ssh_service_scripts as scripts
from farm.transports.agent_process import agent_options, thread_options
from farm.transports.ssh_board import Board

UNIT = "farm-agent.service"
# What no agent needs. Memory that is written and then executed it does need: that is how it loads a model; nor may system calls be those
# of one architecture only, for a 32-bit agent may serve a 64-bit board.
_WALLS = """ProtectSystem=strict
ReadWritePaths={writable}
"""
_OWN_TMP = """PrivateTmp=yes
"""
_SYSTEM_WALLS = """ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
CapabilityBoundingSet=
"""
_AFTER = """Wants=network-online.target
After=network-online.target
"""
_UNIT = """# Made by farm provision --service; farm provision --remove takes it away. The agent is {digest}.
[Unit]
Description=farm device agent
StartLimitIntervalSec=0
{after}
[Service]
ExecStart={command}
EnvironmentFile={key_file}
Restart=on-failure
RestartSec=5
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
{walls}
[Install]
WantedBy={target}
"""


@dataclass(frozen=True, slots=True)
class Service:
    """How the agent of a board is to listen, and the tracker (HOST:PORT) that it registers with under the key; either may be empty."""

    tracker: str = ""
    key: str = ""
    port: int = 9090
    host: str = "127.0.0.1"
    open_to_network: bool = False

    @property
    def arguments(self) -> list[str]:
        """For the agent; its key is no business of a command line."""
        words = ["--host", self.host, "--port", str(self.port)]
        words += ["--tracker", self.tracker] if self.tracker else []
        return [*words, "--open-to-network"] if self.open_to_network else words


def install(board: Board, agent: Path, service: Service) -> str:
    """Have the service run on a board that has the agent; what was done, in words. Raises DeviceError where it does not run then."""
    name = board.device.name
    digest = hashlib.sha256(agent.read_bytes()).hexdigest()
    seen = board.look(digest)
    manager = board.ask(scripts.MANAGER, [])
    if "absent" in manager:
        raise _no_systemd(board, service, seen, manager["absent"])
    is_root = seen["user"] == "0"
    arguments = [*service.arguments, *agent_options(board.device), *thread_options(board.device)]
    unit = unit_text(seen, digest, board.launcher, arguments, is_root=is_root, walls=is_root or "walls" in manager)
    done = board.ask(scripts.INSTALL, [digest, unit, f"FARM_AGENT_KEY={service.key}", service.tracker])
    if "listens" not in done:
        log = done.get("failed", "") or done[""][-500:]
        again = f"see what it says, on the board: {'journalctl' if is_root else 'journalctl --user'} -u {UNIT}"
        raise DeviceError(f"the service does not run on {name}", log, again)
    how = {"yes": "started", "no": "unchanged, it runs already"}[done.get("changed", "yes")]
    registered = f"; {done['tracker']}" if done.get("tracker") else ""
    return f"{'system' if is_root else 'user'} unit {UNIT}, {how}; it listens on {service.host}:{done['listens']}{registered}"


def remove(board: Board) -> list[tuple[str, str]]:
    """Take away all that farm has put on a board; what there was, as (kind, words). Raises DeviceError where something stays."""
    told = board.ask(scripts.REMOVE, [])
    if "stuck" in told or "done" not in told:
        why = told.get("stuck", "") or told[""][-500:]
        raise DeviceError(
            f"not all of ours could be removed from {board.device.name}", why, "remove it by hand, or as the user who owns it"
        )
    words = {
        "unit": "the unit {} is stopped and gone",
        "running": "agents that ran were ended",
        "deployments": "deployed were: {}",
        "files": "{}, removed",
        "agents": "{}, removed",
        "left": "not of ours, and left: {}",
    }
    return [(kind, text.format(told[kind].strip())) for kind, text in words.items() if told.get(kind)]


def unit_text(seen: dict[str, str], digest: str, launcher: Sequence[str], arguments: Sequence[str], *, is_root: bool, walls: bool) -> str:
    """The unit. `seen` is what `Board.look` saw; `walls` are those that want a mount namespace, which not every user manager may make."""
    folder = f"{seen['base']}/service"
    words = [*launcher, f"{folder}/farm-agent", *arguments, "--work-dir", seen["work"], "--store", seen["store"]]
    words += ["--port-file", f"{folder}/port"]
    writable = (seen["work"], seen["store"], folder)
    inside = _WALLS.format(writable=" ".join(map(_quoted, writable))) if walls else ""
    if walls and not any(path.startswith(("/tmp/", "/var/tmp/")) for path in writable):  # which would not be there
        inside += _OWN_TMP
    inside += _SYSTEM_WALLS if is_root else ""
    return _UNIT.format(
        digest=digest,
        command=" ".join([_quoted(words[0]), *(_quoted(word).replace("$", "$$") for word in words[1:])]),  # variables are for arguments
        key_file=f"{folder}/key".replace("%", "%%"),
        after=_AFTER if is_root else "",
        walls=inside,
        target="multi-user.target" if is_root else "default.target",
    )


def _quoted(word: str) -> str:
    """A word of a unit file: systemd.syntax(7), and systemd.unit(5) on specifiers."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _no_systemd(board: Board, service: Service, seen: dict[str, str], why: str) -> DeviceError:
    start = shlex.join([f"{seen['base']}/farm-agent", *service.arguments, "--work-dir", seen["work"]])
    key = f"FARM_AGENT_KEY={shlex.quote(service.key)} " if service.key else ""
    return DeviceError(
        f"{board.device.name} has no systemd that could start the agent at boot", why, f"have it started by other means there: {key}{start}"
    )
