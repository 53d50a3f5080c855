"""farm provision: what a board needs to be a device of the farm, put there, proved, and taken away again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import farm
from farm.commands import findings
from farm.commands.common import Session, build_lanes, host_profile, shared
from farm.commands.options import on_devices
from farm.commands.serve import OPEN, check_key, refuse_open
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.pipeline.doctor import Finding
    from farm.transports.ssh_service import Service

_MODEL = "digits"


@click.command()
@on_devices
@click.option("--service", is_flag=True, help="Have the board's systemd start the agent at boot.")
@click.option("--tracker", metavar="HOST:PORT", help="With --service: register with this tracker.")
@click.option(
    "--key", default="", envvar="FARM_AGENT_KEY", help="With --service: what clients must know; with a tracker, the kind of board."
)
@click.option("--port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="With --service: the agent's port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --service: the address to listen on.")
@click.option("--open-to-network", is_flag=True, help=f"With --service: {OPEN[0].lower()}{OPEN[1:]}")
@click.option("--remove", "away", is_flag=True, help="Take everything of farm's away from the board again.")
@shared
def provision(
    session: Session, devices: tuple[str, ...], tags: tuple[str, ...], everywhere: bool, service: bool, away: bool, **options: Any
) -> None:
    """Put farm's agent on a board and prove it: find out what the board is, build and send the agent, run a small model.

    deploy, run and bench do as much by themselves. Here each step is shown; an interrupted one is continued by the next call.

    \b
    farm provision --device pi5
    farm provision --device pi5 --service --tracker 127.0.0.1:9190 --key pi5
    farm provision --device pi5 --remove
    """
    from farm.commands.progress import Spinner
    from farm.config import load
    from farm.pipeline import provision as work
    from farm.store import Store, cache_root

    fleet = session.fleet()
    chosen = fleet.select_devices(devices, tags, everywhere)
    wanted = _service(service, away, options)
    names = len(chosen) > 1

    with Spinner(session, "removing" if away else "provisioning") as spinner:

        def tell(name: str, finding: Finding) -> None:
            if not session.as_json:
                spinner.say(findings.lines(finding, name if names else ""))

        common: dict[str, Any] = {"host": host_profile(fleet), "store": Store(cache_root()), "lanes": build_lanes(), "show": spinner.show}
        if away:
            found = work.remove(chosen, tell=tell, **common)
        else:
            model, keep = load(Path(farm.__file__).parent / "devices.toml").model(_MODEL), session.record()
            found = work.provision(chosen, service=wanted, model=model, keep=keep, tell=tell, **common)
    if session.as_json:
        session.document("provision", {"provisioned": findings.body(found)})
    raise SystemExit(findings.exit_code(found))


def _service(wanted: bool, away: bool, options: dict[str, Any]) -> Service | None:
    """Raises UsageError for options that mean nothing here, or more than was said."""
    from farm.transports.ssh_service import Service

    context = click.get_current_context()
    given = [name for name in options if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if wanted and away:
        raise UsageError("--service and --remove", "one installs what the other takes away", "use one of them")
    if given and not wanted:
        option = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{option} says how a service is to be", "no service is installed", f"add --service, or leave {option} out")
    if not wanted:
        return None
    check_key(options["key"], options["tracker"])
    refuse_open(options["host"], options["open_to_network"])
    return Service(**{**options, "tracker": options["tracker"] or ""})
