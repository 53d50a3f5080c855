"""farm add and farm remove: put a board into devices.toml, and take it out."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands.common import (
    Session,
    check_writable,
    host_profile,
    max_parallel_builds,
    with_session,
    write_atomically,
)
from farm.commands.devices import doctor_output
from farm.commands.options import configured_name_completer
from farm.commands.output import Styled, echo, echo_text
from farm.errors import ConfigError, UsageError, did_you_mean

if TYPE_CHECKING:
    from farm.boards import DetectedHardware, ProfileChoice
    from farm.commands.progress import Spinner
    from farm.config import Fleet
    from farm.pipeline.discover import DiscoveredBoard
    from farm.pipeline.doctor.board import Finding
    from farm.types import Device

_MODEL = "digits"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
Tables = Mapping[tuple[str, str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Place:
    """The devices.toml that is changed, which may not exist yet, and its fleet as it is now."""

    path: Path
    text: str
    fleet: Fleet


@click.command()
@click.argument("name", required=False)
@click.argument("url", required=False)
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=configured_name_completer("profiles"),
    help="The kind of board. [default: found out]",
)
@click.option(
    "-t",
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="A tag for the device; may be repeated.",
)
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the device; may be repeated.",
)
@click.option(
    "--dry-run", is_flag=True, help="Only look at the board, and print what would be written."
)
@with_session
def add(
    session: Session,
    name: str | None,
    url: str | None,
    profile: str | None,
    tags: tuple[str, ...],
    options: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Add a board to devices.toml: find out what it is, and prove that it works.

    The command reaches the board, chooses the profile that fits its CPU and system, installs the
    agent there, runs a small model, and writes the board's table into devices.toml if the answer is
    right. A board whose cores no built-in profile is for gets a profile of its own. Without NAME
    and URL, it lists the boards that it finds.

    \b
    farm add                                       what is there to add?
    farm add pi4 ssh://pi@raspberrypi.local
    farm add phone adb:                            the Android board that is plugged in
    farm add box exec:box -o 'command=["docker", "exec", "-i", "box"]'
    farm add arm qemu: --profile rasp3b            an emulated board
    farm add orin ssh://orin -o store=/data/farm --tag lab
    """
    place = _place(session)
    if name is None or url is None:
        if name is not None:
            raise UsageError(
                f"farm add {name}: the url is missing",
                "",
                f"for example: farm add {name} ssh://pi@raspberrypi.local",
            )
        _list_candidates(session, place.fleet)
        return
    table = _device_table(name, url, profile, tags, options, place)
    provisional = _checked(place, name, {**table, "profile": "x86"})
    check_writable(place.path.resolve())
    from farm.commands.progress import Spinner

    with Spinner(session, f"adding {name}") as spinner:
        evidence, choice, tables = _identified(session, provisional, table, place, spinner)
        if not session.as_json:
            _show_choice(spinner, evidence, choice)
        from farm.config import edit, parse_fleet

        changed = edit.add_tables(place.text, tables)
        device = parse_fleet(changed, place.path).device(name)
        found = [] if dry_run else _proven(session, place.fleet, device, spinner)
        failed = doctor_output.findings_exit_code({name: found})
    if not (dry_run or failed):
        _write(place, tables)
    _report(session, place, name, tables, evidence, choice, found, written=not (dry_run or failed))
    raise SystemExit(failed)


@click.command()
@click.argument(
    "names",
    metavar="NAME...",
    nargs=-1,
    required=True,
    shell_complete=configured_name_completer("devices"),
)
@with_session
def remove(session: Session, names: tuple[str, ...]) -> None:
    """Remove boards from devices.toml, and the profiles that farm add wrote for them.

    What farm has stored on a board stays there; farm provision --remove takes it away, before the
    board is removed here.

    \b
    farm remove pi4
    farm provision --device pi4 --remove     before it, to clean the board
    """
    from farm import boards
    from farm.config import edit, parse_fleet

    place = _place(session)
    for name in names:
        place.fleet.device(name)
    gone = [("devices", name) for name in dict.fromkeys(names)]
    left = [
        device.profile.name for device in place.fleet.devices.values() if device.name not in names
    ]
    own = tomllib.loads(place.text).get("profiles", {})
    for name in dict.fromkeys(names):
        used = place.fleet.device(name).profile.name
        if used in own and used not in left and own[used].get("source") == boards.SOURCE:
            gone.append(("profiles", used))
    changed = edit.remove_tables(place.text, gone)
    parse_fleet(changed, place.path)
    write_atomically(place.path.resolve(), changed)
    if session.as_json:
        session.document(
            "removal", {"file": str(place.path), "tables": [".".join(one) for one in gone]}
        )
    elif session.verbosity >= 0:
        for kind, name in gone:
            echo(f"removed [{kind}.{name}] from {place.path}")


def _place(session: Session) -> _Place:
    """Return the configuration file to change.

    The one in use, or a new one in the working directory.
    """
    from farm import ownership
    from farm.config import parse_fleet
    from farm.config.locate import FILE_NAME, find_config, read_config_text

    path = find_config(session.config)
    if path is None:
        path = Path.cwd() / FILE_NAME
        if why := ownership.foreign_writer(path):
            fix = "work in a folder of your own, or name the file: --config FILE"
            raise UsageError(
                f"a {FILE_NAME} in {path.parent} would not be used",
                f"{why}; it can run any command",
                fix,
            )
    if path.is_symlink() or path.exists():
        return _Place(path, read_config_text(path), session.fleet())
    fleet = parse_fleet("", path)
    session.use(fleet)
    return _Place(path, "", fleet)


def _device_table(
    name: str,
    url: str,
    profile: str | None,
    tags: tuple[str, ...],
    options: tuple[str, ...],
    place: _Place,
) -> dict[str, Any]:
    """Return the table of the device; raise UsageError for what could not be in devices.toml."""
    from farm.config import parse_url

    if not _NAME.fullmatch(name):
        allowed = (
            "a name is made of letters, digits, '_', '-' and '.', and starts with a letter, a "
            "digit or '_'"
        )
        raise UsageError(
            f"{name!r} is no name for a device", allowed, "for example: farm add pi4 URL"
        )
    if name in place.fleet.devices:
        fix = f"use another name, or remove it first: farm remove {name}"
        raise UsageError(
            f"there is a device {name!r} already", f"{place.path} has [devices.{name}]", fix
        )
    try:
        scheme = parse_url(url).scheme
    except ValueError as exc:
        raise UsageError(
            f"{url!r} is no url of a device",
            str(exc),
            "the urls are explained in docs/how-to/devices-toml.md",
        ) from exc
    if profile is None and scheme == "qemu":
        raise UsageError(
            "an emulated board is of any kind",
            "qemu: does not say which one",
            "name it, for example: --profile rasp3b",
        )
    if profile is not None and profile not in place.fleet.profiles:
        raise UsageError(
            f"unknown profile {profile!r}",
            did_you_mean(profile, place.fleet.profiles),
            "leave --profile out, to find out",
        )
    table: dict[str, Any] = {"profile": profile, "url": url}
    if tags:
        table["tags"] = list(dict.fromkeys(tags))
    if options:
        table["options"] = dict(map(_option, options))
    return table


def _option(text: str) -> tuple[str, Any]:
    """Return the key and value of KEY=VALUE. A value that is not TOML is a text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(
            f"{text!r} is no option", "an option is KEY=VALUE", "for example: -o threads=4"
        )
    try:
        parsed = tomllib.loads(f"value = {value}")
    except ValueError:
        return key.strip(), value
    return key.strip(), parsed["value"] if set(parsed) == {"value"} else value


def _checked(place: _Place, name: str, table: Mapping[str, Any]) -> Device:
    """Return the device of a table; raise UsageError for a wrong one, such as an unknown option."""
    from farm.config import edit, parse_fleet

    text = edit.format_table(("devices", name), table)
    try:
        return parse_fleet(text, place.path).device(name)
    except ConfigError as error:
        mistakes = re.sub(rf"(?m)^.*?:\d+: devices\.\"?{re.escape(name)}\"?\.", "", error.why)
        raise UsageError(
            f"the device {name!r} cannot be as you say",
            mistakes,
            "farm add --help; the reference of devices.toml",
        ) from error


def _identified(
    session: Session, provisional: Device, table: dict[str, Any], place: _Place, spinner: Spinner
) -> tuple[DetectedHardware | None, ProfileChoice, Tables]:
    """Return what the board says about itself, the choice of its profile, and the tables to write.

    `provisional` is the device with a profile that is not known to be right.
    """
    from farm import boards
    from farm.config import profiles
    from farm.pipeline.identify import detect_board_hardware

    name, known = provisional.name, place.fleet.profiles
    if table["profile"] is not None:
        return (
            None,
            boards.ProfileChoice(table["profile"], "as you said"),
            {("devices", name): table},
        )
    evidence = detect_board_hardware(provisional, store=session.artifacts(), show=spinner.show)
    own = next(
        word
        for word in (name, f"{name}-board", *(f"{name}-board-{number}" for number in range(2, 100)))
        if word not in known
    )
    choice = boards.choose_profile(
        own,
        evidence,
        profiles.built_in_profile_tables(),
        here=provisional.scheme == "local",
        builds_cuda=_builds_cuda(),
    )
    options = {"gpu": choice.gpu} if choice.gpu else {}
    options |= table.get("options", {})
    tables: dict[tuple[str, str], Mapping[str, Any]] = {
        ("devices", name): {
            **table,
            "profile": choice.profile,
            **({"options": options} if options else {}),
        }
    }
    if choice.table is not None:
        tables["profiles", choice.profile] = choice.table
    return evidence, choice, tables


def _builds_cuda() -> bool:
    try:
        importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _show_choice(
    spinner: Spinner, evidence: DetectedHardware | None, choice: ProfileChoice
) -> None:
    good = Styled("✓", "green")
    if evidence is not None:
        spinner.say("  ", good, f" board: {_in_words(evidence)}")
    kind = "a profile of its own" if choice.table is not None else choice.profile
    spinner.say(
        "  ",
        good,
        f" profile: {kind}, because {choice.reason}" if evidence else f" profile: {kind}",
    )
    for note in choice.notes:
        spinner.say("  ", Styled("!", "yellow"), f" {note}")


def _in_words(evidence: DetectedHardware) -> str:
    """Describe the board in a line."""
    cores = f"{evidence.core_count} cores" if evidence.core_count else ""
    memory = f"{evidence.memory_bytes / 2**30:.1f} GiB" if evidence.memory_bytes else ""
    gpus = ", ".join(one.name for one in evidence.gpus)
    parts = [evidence.board, evidence.cpu, f"{evidence.architecture} programs", cores, memory, gpus]
    return ", ".join(filter(None, parts))


def _proven(session: Session, fleet: Fleet, device: Device, spinner: Spinner) -> list[Finding]:
    """Install the agent, run a small model on the device, and return the findings."""
    from farm.pipeline import provision as work

    def tell(_: str, finding: Finding) -> None:
        if not session.as_json:
            for line in doctor_output.finding_lines(finding):
                spinner.say(*line)

    found = work.provision_devices(
        [device],
        service=None,
        model=fleet.built_in_models[_MODEL],
        host=host_profile(fleet),
        store=session.artifacts(),
        keep=session.record(),
        slots=max_parallel_builds(),
        tell=tell,
        show=spinner.show,
    )
    return found[device.name]


def _write(place: _Place, tables: Tables) -> None:
    """Write the tables into the file as it is now: it may have changed during the proof."""
    from farm.config import edit, parse_fleet
    from farm.config.locate import read_config_text

    changed = edit.add_tables(
        read_config_text(place.path) if place.path.exists() else edit.HEADING, tables
    )
    parse_fleet(changed, place.path)
    write_atomically(place.path.resolve(), changed)


def _report(
    session: Session,
    place: _Place,
    name: str,
    tables: Tables,
    evidence: DetectedHardware | None,
    choice: ProfileChoice,
    found: list[Finding],
    *,
    written: bool,
) -> None:
    from farm.config import edit

    text = "\n".join(edit.format_table(path, table) for path, table in tables.items())
    if session.as_json:
        layers = doctor_output.findings_to_json({name: found})[0]["layers"]
        board = None if evidence is None else _in_words(evidence)
        body = {
            "name": name,
            "file": str(place.path),
            "written": written,
            "profile": choice.profile,
            "reason": choice.reason,
        }
        session.document(
            "added",
            {**body, "notes": list(choice.notes), "board": board, "toml": text, "layers": layers},
        )
        return
    if written or not found:
        echo(f"{'written to' if written else 'would be written to'} {place.path}:")
        echo_text(f"\n{text}")
    else:
        echo(f"nothing was written to {place.path}", err=True)
    if written and session.verbosity >= 0:
        echo(f"next: farm bench --device {name}", err=True)
        if not place.text:
            echo("the built-in devices are no longer listed: this file is in their place", err=True)


def _list_candidates(session: Session, fleet: Fleet) -> None:
    from farm.pipeline.discover import discover_boards

    found: list[DiscoveredBoard] = discover_boards(fleet)
    if session.as_json:
        session.document(
            "candidates",
            {
                "candidates": [
                    {"name": one.name, "url": one.url, "source": one.source} for one in found
                ]
            },
        )
        return
    for one in found:
        echo(f"farm add {one.name} {one.url}", f"    # {one.source}")
    if not found:
        echo(
            (
                "no boards were found in ~/.ssh/config, at the tracker, at a running adb server, "
                "or in this machine"
            ),
            err=True,
        )
        echo("name one: farm add pi4 ssh://pi@raspberrypi.local", err=True)
