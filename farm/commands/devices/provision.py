"""farm provision: install the agent on a board, prove that it works, and remove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import farm
from farm.commands.common import Session, host_profile, max_parallel_builds, with_session
from farm.commands.devices import doctor_output
from farm.commands.options import add_device_selection_options, was_given
from farm.commands.servers.agent_and_tracker import (
    KEY_FILE,
    KEY_FILE_HELP,
    KEY_HELP,
    NO_KEY_HELP,
    OPEN_HELP,
    VARIABLE,
    agent_key_from_options,
    check_loopback,
)
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.pipeline.doctor.board import Finding
    from farm.transports.ssh.systemd_service import AgentServiceSettings
    from farm.transports.ssh.systemd_tunnel import LabTunnel

_MODEL = "digits"


@click.command()
@add_device_selection_options
@click.option("--service", is_flag=True, help="Let the board's systemd start the agent at boot.")
@click.option(
    "--tracker",
    metavar="HOST:PORT",
    help="With --service: register with this tracker; with --lab, as the lab's server sees it.",
)
@click.option(
    "--key-file",
    type=KEY_FILE,
    metavar="FILE",
    help=f"With --service: {KEY_FILE_HELP} [default: a random key, kept there]",
)
@click.option("--key", default="", envvar=VARIABLE, help=f"With --service: {KEY_HELP}")
@click.option("--no-key", is_flag=True, help=f"With --service: {NO_KEY_HELP}")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=9090,
    show_default=True,
    help="With --service: the agent's port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="With --service: the address to listen on.",
)
@click.option(
    "--open-to-network", is_flag=True, help=f"With --service: {OPEN_HELP[0].lower()}{OPEN_HELP[1:]}"
)
@click.option(
    "--lab",
    metavar="URL",
    help="With --service, for a board behind NAT: open a tunnel to this lab, lab://farm@HOST.",
)
@click.option("--board", default="", metavar="NAME", help="With --lab: the board's name there.")
@click.option("--remove", "away", is_flag=True, help="Remove everything of farm's from the board.")
@with_session
def provision(
    session: Session,
    devices: tuple[str, ...],
    tags: tuple[str, ...],
    everywhere: bool,
    service: bool,
    away: bool,
    **options: Any,
) -> None:
    """Install farm's agent on a board, and prove that it works by running a small model.

    The steps are: detect the board, build and send the agent, run a model. deploy, run and bench do
    the same by themselves; this command shows each step. An interrupted provision is continued by
    the next call.

    \b
    farm provision --device pi5
    farm provision --device pi5 --service --tracker 127.0.0.1:9190 --key pi5
    farm provision --device pi5 --service --lab lab://farm@lab --board pi5-07 --key pi5 --port 20007
    farm provision --device pi5 --remove
    """
    from farm.commands.progress import Spinner
    from farm.config import load_fleet
    from farm.pipeline import provision as work

    fleet = session.fleet()
    chosen = fleet.select_devices(devices, tags, everywhere)
    tunnel = _tunnel(service, options)
    wanted = _service(service, away, options)
    names = len(chosen) > 1

    with Spinner(session, "removing" if away else "provisioning") as spinner:

        def tell(name: str, finding: Finding) -> None:
            if not session.as_json:
                for line in doctor_output.finding_lines(finding, name if names else ""):
                    spinner.say(*line)

        common: dict[str, Any] = {
            "host": host_profile(fleet),
            "store": session.artifacts(),
            "slots": max_parallel_builds(),
            "show": spinner.show,
        }
        if away:
            found = work.remove_farm_from_devices(chosen, tell=tell, **common)
        else:
            model, keep = (
                load_fleet(Path(farm.__file__).parent / "devices.toml").model(_MODEL),
                session.record(),
            )
            found = work.provision_devices(
                chosen,
                service=wanted,
                tunnel=tunnel,
                model=model,
                keep=keep,
                tell=tell,
                **common,
            )
    if session.as_json:
        session.document("provision", {"provisioned": doctor_output.findings_to_json(found)})
    raise SystemExit(doctor_output.findings_exit_code(found))


def _tunnel(service: bool, options: dict[str, Any]) -> LabTunnel | None:
    """Return the tunnel to a lab, if there is to be one, and let the agent register through it.

    Raises UsageError for options that contradict it, and DeviceError if its host key is not known.
    """
    from farm.lab.door.commands import is_user_name
    from farm.transports.ssh.systemd_tunnel import (
        TRACKER,
        known_hosts_lines,
        lab_tunnel_from_options,
    )

    lab, board = options.pop("lab"), options["board"]
    if not lab:
        if board:
            raise UsageError("--board is a board's name in a lab", "no lab is named", "--lab URL")
        return None
    if not service:
        raise UsageError(
            "--lab says how a service is to be", "no service is installed", "--service"
        )
    fix = "--lab lab://farm@HOST --board pi5-07 --key pi5 --port 20007"
    if not options["key"] or not is_user_name(board):
        why = "a lab's board has a name, of small letters and digits, and a kind"
        raise UsageError("--lab wants --board NAME and --key KIND", why, fix)
    if not was_given("port"):
        why = "the tunnel of each board has a port of its own on the lab's server"
        raise UsageError("--lab wants --port PORT", why, fix)
    tunnel = lab_tunnel_from_options(lab, board, options["port"], options["tracker"])
    known_hosts_lines(tunnel)  # before anything is done
    options["tracker"] = TRACKER
    return tunnel


def _service(wanted: bool, away: bool, options: dict[str, Any]) -> AgentServiceSettings | None:
    """Return the service's settings, or None if no service is to be installed.

    Raises UsageError for options that have no effect here, and for contradictory ones.
    """
    from farm.transports.ssh.systemd_service import AgentServiceSettings

    given = [name for name in options if was_given(name)]
    if wanted and away:
        raise UsageError(
            "--service and --remove", "one installs what the other takes away", "use one of them"
        )
    if given and not wanted:
        option = f"--{given[0].replace('_', '-')}"
        raise UsageError(
            f"{option} says how a service is to be",
            "no service is installed",
            f"add --service, or leave {option} out",
        )
    if not wanted:
        return None
    key_file, no_key = options.pop("key_file"), options.pop("no_key")
    key = agent_key_from_options(options["key"], key_file, no_key, options["tracker"])
    check_loopback(options["host"], options["open_to_network"])
    random = not (key or no_key or options["tracker"])
    return AgentServiceSettings(
        **{**options, "key": key, "random_key": random, "tracker": options["tracker"] or ""}
    )
