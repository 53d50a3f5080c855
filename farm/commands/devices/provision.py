"""farm provision: install the agent on a board, prove that it works, and remove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import farm
from farm.commands.common import Session, build_slots, host_profile, with_session
from farm.commands.devices import doctor_output
from farm.commands.options import with_devices
from farm.commands.servers.serve import (
    KEY_FILE,
    KEY_FILE_HELP,
    KEY_HELP,
    NO_KEY_HELP,
    OPEN_HELP,
    VARIABLE,
    check_loopback,
    chosen_key,
)
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.pipeline.doctor.board import Finding
    from farm.transports.ssh.systemd_service import Service

_MODEL = "digits"


@click.command()
@with_devices
@click.option("--service", is_flag=True, help="Let the board's systemd start the agent at boot.")
@click.option("--tracker", metavar="HOST:PORT", help="With --service: register with this tracker.")
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
    farm provision --device pi5 --remove
    """
    from farm.commands.progress import Spinner
    from farm.config import load
    from farm.pipeline import provision as work

    fleet = session.fleet()
    chosen = fleet.select_devices(devices, tags, everywhere)
    wanted = _service(service, away, options)
    names = len(chosen) > 1

    with Spinner(session, "removing" if away else "provisioning") as spinner:

        def tell(name: str, finding: Finding) -> None:
            if not session.as_json:
                for line in doctor_output.lines(finding, name if names else ""):
                    spinner.say(*line)

        common: dict[str, Any] = {
            "host": host_profile(fleet),
            "store": session.artifacts(),
            "slots": build_slots(),
            "show": spinner.show,
        }
        if away:
            found = work.remove(chosen, tell=tell, **common)
        else:
            model, keep = (
                load(Path(farm.__file__).parent / "devices.toml").model(_MODEL),
                session.record(),
            )
            found = work.provision(
                chosen, service=wanted, model=model, keep=keep, tell=tell, **common
            )
    if session.as_json:
        session.document("provision", {"provisioned": doctor_output.body(found)})
    raise SystemExit(doctor_output.exit_code(found))


def _service(wanted: bool, away: bool, options: dict[str, Any]) -> Service | None:
    """Return the service's settings, or None if no service is to be installed.

    Raises UsageError for options that have no effect here, and for contradictory ones.
    """
    from farm.transports.ssh.systemd_service import Service

    context = click.get_current_context()
    given = [
        name
        for name in options
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
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
    key = chosen_key(options["key"], key_file, no_key, options["tracker"])
    check_loopback(options["host"], options["open_to_network"])
    random = not (key or no_key or options["tracker"])
    return Service(
        **{**options, "key": key, "random_key": random, "tracker": options["tracker"] or ""}
    )
