"""farm agent and farm tracker: the two servers.

The agent serves this machine as a device; the tracker shares devices between users.
"""

from __future__ import annotations

import contextlib
import ipaddress
import platform
import re
import socket
from pathlib import Path

import click

from farm import this_machine
from farm.commands.common import Session, with_session
from farm.commands.options import was_given
from farm.commands.output import echo
from farm.errors import DeviceError, UsageError

VARIABLE = "FARM_AGENT_KEY"
KEY_FILE = click.Path(path_type=Path)
KEY_FILE_HELP = (
    "A file of mode 0600, whose first line is the key that clients must know; - is standard input."
)
KEY_HELP = (
    "With a tracker: the kind of board. Otherwise: the key that clients must know; other users "
    "here can see it."
)
NO_KEY_HELP = "Let every user who reaches the port run code as this one."
OPEN_HELP = "Listen beyond loopback: whoever reaches the port can run any code here."


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9090,
    show_default=True,
    help="The port; 0 lets the system choose.",
)
@click.option(
    "--key-file",
    type=KEY_FILE,
    metavar="FILE",
    help=f"{KEY_FILE_HELP} [default: a random key that your clients here find]",
)
@click.option("--key", default="", envvar=VARIABLE, help=KEY_HELP)
@click.option("--no-key", is_flag=True, help=NO_KEY_HELP)
@click.option("--tracker", metavar="HOST:PORT", help="Register with this tracker.")
@click.option(
    "--board",
    metavar="NAME",
    help="This board's name in a lab. [default: the key and digits of the system's machine-id]",
)
@click.option(
    "--threads", type=click.IntRange(1), help="Threads per inference. [default: one per core]"
)
@click.option("--cores", help="big, little, all, or numbers such as 0,2-3. [default: big]")
@click.option(
    "--cuda", is_flag=True, help="Use the agent that also runs models built for NVIDIA GPUs."
)
@click.option("--open-to-network", is_flag=True, help=OPEN_HELP)
@with_session
def agent(
    session: Session,
    host: str,
    port: int,
    key_file: Path | None,
    key: str,
    no_key: bool,
    tracker: str | None,
    board: str | None,
    threads: int | None,
    cores: str | None,
    cuda: bool,
    open_to_network: bool,
) -> None:
    """Serve this machine as a device, until Ctrl-C.

    TVM's RPC is remote code execution by design and is not encrypted: keep it on loopback and reach
    it through an SSH tunnel. Whoever has the key can run any code as you. Your own clients on this
    machine find the key; for others, set the option key_file in devices.toml.

    \b
    farm agent                                              url = "rpc://127.0.0.1:9090"
    farm agent --tracker 127.0.0.1:9190 --key rasp3b        url = "tracker://127.0.0.1:9190/rasp3b"
    """
    from farm.agent.recipe import AGENTS, ARCHITECTURES, GPU
    from farm.commands.progress import Spinner
    from farm.pipeline import ensure_agent_executable_for_machine
    from farm.processes import subprocesses
    from farm.store import Store, user_cache_dir
    from farm.transports.agent.keys import reuse_or_create_key

    check_loopback(host, open_to_network)
    key = agent_key_from_options(key, key_file, no_key, tracker)
    check_board_name(board, tracker)
    machine = this_machine.agent_architecture()
    if machine is None:
        raise UsageError(
            f"there is no agent for {platform.machine()}",
            f"there are: {', '.join(ARCHITECTURES)}",
            "",
        )
    if cuda and f"{machine}{GPU}" not in AGENTS:
        raise UsageError(
            f"there is no agent for GPUs for {machine}",
            "NVIDIA's driver is for x86-64 and ARM64",
            "leave --cuda out",
        )
    address, bound = _check_port(host, port)
    store = Store(user_cache_dir())
    with Spinner(session, "the agent") as spinner:
        executable = ensure_agent_executable_for_machine(
            machine + GPU * cuda, store=store, show=spinner.show
        )
    work, kept = store.root / "agent" / "work", store.root / "agent" / "store"
    for folder in (work, kept):
        folder.mkdir(parents=True, exist_ok=True)
    command = [
        str(executable),
        "--host",
        host,
        "--port",
        str(bound),
        "--work-dir",
        str(work),
        "--store",
        str(kept),
    ]
    given = (("--tracker", tracker), ("--board", board), ("--threads", threads), ("--cores", cores))
    for option, value in given:
        command += [option, str(value)] if value else []
    if not (key or no_key or tracker):
        key, file = reuse_or_create_key(address, bound, fresh=port == 0)
        echo(f"the key is in {file}; your clients on this machine find it there", err=True)
    subprocesses.replace_process(
        [*command, *(["--open-to-network"] if open_to_network else [])], env={VARIABLE: key}
    )


@click.command()
@click.option("--host", help="The address to listen on. [default: that of devices.toml, 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port. [default: that of devices.toml, 9190]"
)
@click.option(
    "--metrics",
    "metrics_port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics.",
)
@click.option(
    "--unknown-key-s",
    type=click.FloatRange(0, 1e6),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="How long a request for a key that no board has had waits for one, before it is refused.",
)
@click.option("--open-to-network", is_flag=True, help=OPEN_HELP)
@with_session
def tracker(
    session: Session,
    host: str | None,
    port: int | None,
    metrics_port: int | None,
    unknown_key_s: float,
    open_to_network: bool,
) -> None:
    """Share devices between users, until Ctrl-C. It speaks the protocol of TVM's tracker.

    Boards register with it (farm agent --tracker HOST:PORT --key KIND), and clients ask it for a
    kind of board (url = "tracker://HOST:PORT/KIND"). It does not authenticate anyone: keep it on
    loopback or on a network of the lab's own.
    """
    from farm.processes import signals
    from farm.tracker import ListenAddresses, TrackerServerSettings, serve

    settings = session.fleet().tracker
    address = host or settings.host
    check_loopback(address, open_to_network)
    ports = range(settings.port, settings.port_end) if port is None else range(port, port + 1)
    with contextlib.suppress(signals.Stopped):
        serve(
            ListenAddresses(address, ports, metrics_port),
            TrackerServerSettings(unknown_key_s),
            lambda bound: echo(f"tracker on {address}:{bound}", err=True),
            lambda line: echo(line, err=True),
        )


def agent_key_from_options(
    key: str, key_file: Path | None, no_key: bool, tracker: str | None
) -> str:
    """Return the key that the options give, or an empty string.

    With a tracker the key is the kind of board, which is public. Otherwise it is a secret, and a
    warning is printed if other users can see it in the list of processes.

    Raises UsageError for an invalid key, and if more than one option gives it.
    """
    from farm.transports.agent.keys import read_key

    spoken = was_given("key")
    said = [
        name
        for name, given in (("--key", spoken), ("--key-file", key_file), ("--no-key", no_key))
        if given
    ]
    if len(said) > 1:
        raise UsageError(f"{' and '.join(said)}", "each says what the key is", "use one of them")
    if tracker and said and said != ["--key"]:
        raise UsageError(
            f"{said[0]} with a tracker",
            "there the key is the kind of board, and no secret",
            "use --key KIND",
        )
    if key_file:
        key = read_key(None if str(key_file) == "-" else key_file)
    elif no_key:
        key = ""
        echo(
            (
                "warning: without a key, every user of that machine may run code as the user of "
                "its agent"
            ),
            err=True,
        )
    check_key_and_tracker(key, tracker)
    if spoken and not tracker:
        echo(
            (
                "warning: other users can see --key in the list of processes: use --key-file, or "
                f"the variable {VARIABLE}"
            ),
            err=True,
        )
    return key


def check_key_and_tracker(key: str, tracker: str | None) -> None:
    """Raise UsageError for an invalid key or tracker address, and for a tracker without a key."""
    from farm.transports.agent.keys import is_key

    if key and not is_key(key):
        raise UsageError(
            "this is no key, in --key or its variable",
            "it goes into messages as it is",
            "use letters, digits and signs, without spaces and quotes",
        )
    if tracker and not re.fullmatch(r"(?!-)[\w.:\[\]-]+:\d+", tracker):
        raise UsageError(
            f"--tracker {tracker} is no address",
            "it wants HOST:PORT",
            "for example --tracker 127.0.0.1:9190",
        )
    if tracker and not key:
        raise UsageError(
            "a tracker needs a key",
            "clients ask it for a kind of board",
            "add --key, for example --key rasp3b",
        )


def check_board_name(board: str | None, tracker: str | None) -> None:
    """Raise UsageError for an invalid name of a board, and for one without a tracker."""
    if board is None:
        return
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", board):
        raise UsageError(
            f"--board {board} is no name of a board",
            "it is made of at most 100 letters, digits, '_', '-' and '.'",
            "for example --board pi5-07",
        )
    if not tracker:
        raise UsageError(
            "--board without a tracker",
            "a lab knows its boards by name, and the lab is behind its tracker",
            "add --tracker HOST:PORT, or leave --board out",
        )


def _check_port(host: str, port: int) -> tuple[str, int]:
    """Return the numeric address and the port; for port 0, a free one.

    Raises DeviceError if the port is taken. The agent would notice that too, but only after it was
    built.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
            return str(address[0]), int(trial.getsockname()[1])
        except OSError as exc:
            raise DeviceError(
                "the agent cannot listen",
                f"{host}:{port}: {exc.strerror}",
                "name another port with --port",
            ) from exc


def check_loopback(host: str, open_to_network: bool) -> None:
    """Raise UsageError for an address that is not loopback, unless `open_to_network`."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError as exc:
        raise UsageError(
            f"{host} is no address of this machine",
            exc.strerror or str(exc),
            "use --host 127.0.0.1",
        ) from exc
    if not open_to_network and not all(
        ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses
    ):
        raise UsageError(
            f"{host} can be reached from the network",
            (
                "TVM's RPC lets whoever connects run any code on this machine, and nothing is "
                "encrypted"
            ),
            "listen on 127.0.0.1 and use an SSH tunnel, or say that you mean it: --open-to-network",
        )
