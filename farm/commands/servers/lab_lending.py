"""farm lab lease, run and proxy: boards for a person, for a program, and for TVM's tools."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from farm.commands.options import was_given
from farm.commands.output import echo
from farm.commands.servers.lab_lease_lifecycle import (
    BEAT_PARTS,
    IN_QUEUE_S,
    LeaseHeartbeatSender,
    create_reconnecting_client,
    end_lease,
    lease_request_fields,
    parse_labels,
    wait_until_granted,
)
from farm.commands.servers.lab_options import (
    add_lease_request_options,
    as_json,
    of_door,
    of_socket,
    open_lab,
    print_document,
    selected_door_url,
)
from farm.errors import UsageError

if TYPE_CHECKING:
    from farm.lab.relay.tracker import RelayTracker
    from farm.lab_client.leasing import LabAccess

_PORT = 9190
_BEAT_S = 60.0
_TICK_S = 0.1  # for which a signal waits while a program runs
_LONGEST_WAIT_S = 7 * 86400.0  # in the queue, for a client of TVM's, which waits until it hangs up
_of_heartbeat = click.option(
    "--heartbeat",
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="Without a sign of life for so long, it ends.",
)


@click.command()
@click.argument("kind")
@add_lease_request_options
@of_socket
@of_door
@as_json
def lease(kind: str, socket: Path | None, json_: bool, **options: Any) -> None:
    """Lease boards of a kind, and wait until they are there.

    They are yours until the time is over or you give them back. The key that is printed is the
    lease's: whoever asks the tracker for it gets its boards.

    \b
    farm lab lease pi5 --for 30m
    """
    with open_lab(socket) as lab, create_reconnecting_client(lab) as client:
        waiting = wait_until_granted(
            lab, client, {**lease_request_fields(kind, options), "heartbeat_s": IN_QUEUE_S}
        )
        found = client.ask("keep", lease=waiting["lease"])["lease"]
        tracker = client.hello["tracker"]
    if json_:
        print_document("lab_lease", {"lease": found, "tracker": tracker})
        return
    echo(f"lease {found['lease']}: {', '.join(found['boards'])} for {_how_long(found, options)}")
    if not selected_door_url():  # the tracker listens on the loopback of the lab's server
        echo(_in_words(_variables(tracker["host"], tracker["port"], found["key"])))
    echo(f"give it back: farm lab end {found['lease']}")


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("kind")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@add_lease_request_options
@_of_heartbeat
@of_socket
@of_door
def run(
    kind: str, command: tuple[str, ...], heartbeat: str, socket: Path | None, **options: Any
) -> None:
    """Lease boards for as long as a program runs.

    It finds them by the variables of TVM's tools: TVM_TRACKER_HOST, TVM_TRACKER_PORT and
    TVM_TRACKER_KEY name a tracker on this machine that shows the leased boards only. Of what a
    board sends, answers alone reach the program. The exit code is the program's.

    \b
    farm lab run pi5 --count 2 -- python tune.py
    farm lab run pi5 --reservation 3 -- python tune.py
    farm lab run pi5 --lab lab://farm@lab -- python tune.py
    """
    from farm.lab.durations import parse_duration
    from farm.lab.relay.tracker import HOST

    beat_s = parse_duration(heartbeat)
    with open_lab(socket) as lab, create_reconnecting_client(lab) as client:
        found = wait_until_granted(
            lab, client, {**lease_request_fields(kind, options), "heartbeat_s": beat_s}
        )
        number = found["lease"]
        try:
            with _relay(lab, kind, found) as relay:
                variables = _variables(HOST, relay.port, kind)
                variables |= {
                    "FARM_LAB_LEASE": str(number),
                    "FARM_LAB_BOARDS": " ".join(found["boards"]),
                }
                code = _run_alive(
                    command, variables, LeaseHeartbeatSender(lab, number, beat_s), beat_s
                )
        finally:
            if not options["reservation"]:  # its boards are there for other programs, too
                end_lease(lab, number)
    raise SystemExit(code)


@click.command()
@click.argument("kind", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    help="The tracker's port on this machine's loopback; 0 lets the system choose.",
)
@add_lease_request_options
@of_socket
@of_door
def proxy(kind: str | None, port: int, socket: Path | None, **options: Any) -> None:
    """Serve a tracker for TVM's tools on this machine.

    It goes on until Ctrl-C. With a KIND it shows boards that are leased as long as it runs.
    Without, it shows all boards of the lab, and each session of a client has a lease of its own: in
    the class batch, with the limits of --for and --wait.

    \b
    farm lab proxy --lab lab://farm@lab
    farm lab proxy pi5 --count 2 --lab lab://farm@lab
    """
    with open_lab(socket) as lab:
        if kind:
            _proxy_of_lease(lab, kind, port, options)
        else:
            _proxy_of_lab(lab, port, options)


def _run_alive(
    command: Sequence[str],
    variables: Mapping[str, str],
    beating: LeaseHeartbeatSender,
    beat_s: float,
) -> int:
    """Run a program with heartbeats of its lease; return its exit code.

    A signal is looked for, and not raised in the middle of starting the program or waiting for it:
    the program would be left behind, or this one would wait for it for ever.
    """
    from farm.processes import signals, subprocesses

    with signals.defer_signals():
        child = subprocesses.start_with_inherited_stdio(command, env=variables)
        try:
            heard_at = time.monotonic()
            while (code := subprocesses.wait_for_shell_exit_code(child, _TICK_S)) is None:
                signals.raise_if_stopped()
                if time.monotonic() - heard_at >= beat_s / BEAT_PARTS:
                    beating.beat()
                    heard_at = time.monotonic()
        finally:
            subprocesses.end_program(child)
    return code


def _proxy_of_lease(lab: LabAccess, kind: str, port: int, options: dict[str, Any]) -> None:
    """Serve the boards of a lease, and keep it alive."""
    from farm.lab.relay.tracker import HOST

    with create_reconnecting_client(lab) as client:
        found = wait_until_granted(
            lab, client, {**lease_request_fields(kind, options), "heartbeat_s": _BEAT_S}
        )
        number = found["lease"]
        try:
            with _relay(lab, kind, found, port) as relay:
                echo(
                    f"lease {number}: {', '.join(found['boards'])} for {_how_long(found, options)}",
                    err=True,
                )
                echo(_in_words(_variables(HOST, relay.port, kind)))
                beating = LeaseHeartbeatSender(lab, number, _BEAT_S)
                while True:
                    time.sleep(_BEAT_S / BEAT_PARTS)
                    beating.beat()
        finally:
            if not options["reservation"]:  # its boards are there for other programs, too
                end_lease(lab, number)


def _proxy_of_lab(lab: LabAccess, port: int, options: dict[str, Any]) -> None:
    """Serve all boards of a lab, with a lease for each session."""
    from farm.lab.durations import parse_duration
    from farm.lab.relay.sessions import LeasePerSessionSource, ProxiedBoards
    from farm.lab.relay.tracker import HOST, RelayTracker
    from farm.lab_client.leasing import WantedBoards

    for name in ("count", "board", "reservation"):
        if was_given(name):
            why = "without a kind, each session has a lease of its own, of one board"
            raise UsageError(f"--{name} wants a kind", why, f"farm lab proxy KIND --{name} ...")
    for_s, labels = parse_duration(options["for_"]), parse_labels(options["labels"])
    wait_s = parse_duration(options["wait"]) if options["wait"] else _LONGEST_WAIT_S
    rank = options["rank"] if was_given("rank") else "batch"

    def wanted(kind: str) -> WantedBoards:
        return WantedBoards(kind, for_s=for_s, rank=rank, wait_s=wait_s, labels=labels)

    source = LeasePerSessionSource(lab, wanted, _say)
    kinds = source.summary()
    with ProxiedBoards(source, _say) as boards, RelayTracker(boards, port) as relay:
        shown = ", ".join(f"{found.free} {kind}" for kind, found in kinds.items())
        echo(f"the lab's boards: {shown or 'none yet'}", err=True)
        variables = _variables(HOST, relay.port, "KIND")
        del variables["TVM_TRACKER_KEY"]  # it is for the client to say
        echo(_in_words(variables))
        while True:
            time.sleep(_BEAT_S)


@contextlib.contextmanager
def _relay(
    lab: LabAccess, kind: str, found: Mapping[str, Any], port: int = 0
) -> Iterator[RelayTracker]:
    """Serve the boards of a lease under their kind."""
    from farm.lab.relay.sessions import LeaseSessionSource, ProxiedBoards
    from farm.lab.relay.tracker import RelayTracker

    source = LeaseSessionSource(lab, found["lease"], kind, len(found["boards"]))
    with ProxiedBoards(source, _say) as sessions, RelayTracker(sessions, port) as relay:
        yield relay


def _how_long(found: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return for how long a lease lasts; that of a reservation has begun already."""
    from farm.lab.durations import format_duration

    if options["reservation"]:
        return format_duration(found["ends_at"] - time.time())
    return str(options["for_"])


def _variables(host: str, port: int, key: str) -> dict[str, str]:
    """Return the variables by which TVM's tools find a tracker and its boards."""
    return {"TVM_TRACKER_HOST": host, "TVM_TRACKER_PORT": str(port), "TVM_TRACKER_KEY": key}


def _in_words(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def _say(line: str) -> None:
    echo(line, err=True)
