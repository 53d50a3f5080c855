"""Install the agent as a systemd service of a board, started at boot.

It is a system unit for root, else a unit of the user, with lingering enabled. A folder `service`
holds a link to the agent, so that a later version does not replace it unintentionally, and the
agent's key, which other users must not see and which is sent on standard input. If nothing has
changed, nothing is restarted.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from farm.errors import DeviceError
from farm.transports.local import agent_arguments, agent_thread_arguments
from farm.transports.shell_board import ShellBoard
from farm.transports.ssh import install_and_removal_scripts as scripts
from farm.transports.ssh.board import SshBoard

UNIT = "farm-agent.service"
# Sandboxing options that restrict what no agent needs. Not among them: MemoryDenyWriteExecute,
# because the agent loads a model by writing and then executing memory, and
# SystemCallArchitectures=native, because a 32-bit agent may serve a 64-bit board.
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
_UNIT = """# Made by farm provision --service; farm provision --remove removes it. The agent is {digest}.
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
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class AgentServiceSettings:
    """How the agent of a board listens, and the tracker with which it registers.

    `tracker` is HOST:PORT; the agent registers there under `key`, and in a lab with the name
    `board`. All of them may be empty. With `random_key` the board keeps the key of its existing
    service, or generates one.
    """

    tracker: str = ""
    key: str = field(default="", repr=False)
    random_key: bool = False
    port: int = 9090
    host: str = "127.0.0.1"
    open_to_network: bool = False
    board: str = ""

    @property
    def arguments(self) -> list[str]:
        """The agent's arguments.

        The key is not among them, because command lines are visible to others.
        """
        words = ["--host", self.host, "--port", str(self.port)]
        words += ["--tracker", self.tracker] if self.tracker else []
        words += ["--board", self.board] if self.board else []
        return [*words, "--open-to-network"] if self.open_to_network else words


def install_service(board: SshBoard, agent: Path, service: AgentServiceSettings) -> str:
    """Install and start the service on a board that has the agent; describe the result in a text.

    Raises DeviceError if the service does not run afterwards.
    """
    name = board.device.name
    digest = hashlib.sha256(agent.read_bytes()).hexdigest()
    seen = board.look(digest)
    manager = board.ask(scripts.MANAGER, [])
    if "absent" in manager:
        raise _no_systemd(board, service, seen, manager["absent"])
    is_root = seen["user"] == "0"
    arguments = [
        *service.arguments,
        *agent_arguments(board.device),
        *agent_thread_arguments(board.device),
    ]
    unit = unit_text(
        seen,
        digest,
        board.launcher,
        arguments,
        is_root=is_root,
        walls=is_root or "walls" in manager,
    )
    origin = "random" if service.random_key else "given"
    # Not as an argument, which the board's users could see
    key = f"FARM_AGENT_KEY={_environment_value(service.key)}\n".encode()
    done = board.ask(scripts.INSTALL, [digest, unit, origin, service.tracker], key)
    if "listens" not in done:
        log = done.get("failed", "") or done[""][-500:]
        again = (
            f"see what it says, on the board: {'journalctl' if is_root else 'journalctl --user'} "
            f"-u {UNIT}"
        )
        raise DeviceError(f"the service does not run on {name}", log, again)
    how = {"yes": "started", "no": "unchanged, it runs already"}[done.get("changed", "yes")]
    more = f"; {done['tracker']}" if done.get("tracker") else ""
    if service.random_key:
        more += (
            f"; its key is in {seen['base']}/service/key there, for key_file in the options of "
            "who connects to it"
        )
    return (
        f"{'system' if is_root else 'user'} unit {UNIT}, {how}; it listens on "
        f"{service.host}:{done['listens']}{more}"
    )


def remove_farm(board: ShellBoard) -> list[tuple[str, str]]:
    """Remove everything that farm has put on a board; return what was there, as (kind, text) pairs.

    Raises DeviceError if something could not be removed.
    """
    told = board.ask(scripts.REMOVE, [])
    if "stuck" in told or "done" not in told:
        why = told.get("stuck", "") or told[""][-500:]
        raise DeviceError(
            f"not all of ours could be removed from {board.device.name}",
            why,
            "remove it by hand, or as the user who owns it",
        )
    words = {
        "tunnel": "the tunnel's unit {} is stopped and gone",
        "unit": "the unit {} is stopped and gone",
        "running": "agents that ran were ended",
        "deployments": "deployed were: {}",
        "files": "{}, removed",
        "agents": "{}, removed",
        "left": "not of ours, and left: {}",
    }
    return [
        (kind, text.format(told[kind].strip())) for kind, text in words.items() if told.get(kind)
    ]


def unit_text(
    seen: dict[str, str],
    digest: str,
    launcher: Sequence[str],
    arguments: Sequence[str],
    *,
    is_root: bool,
    walls: bool,
) -> str:
    """Return the text of the unit file.

    `seen` is the result of `Board.look`. `walls` enables the sandboxing options that need a mount
    namespace, which not every user's systemd may create. Raises DeviceError for a path or argument
    with a control character, which could start a new line in the unit.
    """
    folder = f"{seen['base']}/service"
    check_no_control_characters([seen["base"], seen["work"], seen["store"], *launcher, *arguments])
    words = [
        *launcher,
        f"{folder}/farm-agent",
        *arguments,
        "--work-dir",
        seen["work"],
        "--store",
        seen["store"],
    ]
    words += ["--port-file", f"{folder}/port"]
    writable = (seen["work"], seen["store"], folder)
    inside = _WALLS.format(writable=" ".join(map(_quoted, writable))) if walls else ""
    # These folders would be hidden by PrivateTmp
    if walls and not any(path.startswith(("/tmp/", "/var/tmp/")) for path in writable):
        inside += _OWN_TMP
    inside += _SYSTEM_WALLS if is_root else ""
    return _UNIT.format(
        digest=digest,
        command=unit_command_line(words),
        key_file=f"{folder}/key".replace("%", "%%"),
        after=_AFTER if is_root else "",
        walls=inside,
        target="multi-user.target" if is_root else "default.target",
    )


def check_no_control_characters(words: Sequence[str]) -> None:
    """Raise DeviceError for a word with a control character, which could start a new line."""
    for word in words:
        if any(letter < " " or letter == "\x7f" for letter in word):
            raise DeviceError(
                f"{word!r} cannot be in a unit of systemd",
                "it has a control character in it",
                "correct the device's options",
            )


def _environment_value(key: str) -> str:
    """Return a key as systemd.exec(5) reads it from an EnvironmentFile.

    A key has no double quotes and no backslashes.
    """
    return key if re.fullmatch(r"[\w.:+@=/-]*", key) else f'"{key}"'


def unit_command_line(words: Sequence[str]) -> str:
    """Return the words of a command for a unit file.

    systemd expands variables in arguments, not in the program's name.
    """
    return " ".join([_quoted(words[0]), *(_quoted(word).replace("$", "$$") for word in words[1:])])


def _quoted(word: str) -> str:
    """Return a quoted word of a unit file: systemd.syntax(7); for %, systemd.unit(5)."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def _no_systemd(
    board: SshBoard, service: AgentServiceSettings, seen: dict[str, str], why: str
) -> DeviceError:
    start = shlex.join(
        [f"{seen['base']}/farm-agent", *service.arguments, "--work-dir", seen["work"]]
    )
    # Without a tracker the key is not shown
    key = f"FARM_AGENT_KEY={shlex.quote(service.key)} " if service.tracker else ""
    start += (
        "" if service.tracker or not (service.key or service.random_key) else " --key-file FILE"
    )
    return DeviceError(
        f"{board.device.name} has no systemd that could start the agent at boot",
        why,
        f"have it started by other means there: {key}{start}",
    )
