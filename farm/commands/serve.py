"""farm agent and farm tracker: the two servers. One serves this machine as a device, the other shares devices between people."""

from __future__ import annotations

import contextlib
import ipaddress
import platform
import re
import socket

import click

from farm.commands.common import Session, shared
from farm.errors import DeviceError, UsageError

_MACHINES = {"x86_64": "x86_64", "aarch64": "aarch64", "armv7l": "armv7", "riscv64": "riscv64"}
OPEN = "Listen beyond loopback: whoever reaches the port can run any code here."


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=9090, show_default=True, help="The port; 0 lets the system choose.")
@click.option("--key", default="", help="The key that clients must know; with a tracker, the kind of board.")
@click.option("--tracker", metavar="HOST:PORT", help="Register with this tracker.")
@click.option("--threads", type=click.IntRange(1), help="Threads of an inference. [default: one a core]")
@click.option("--cores", help="big, little, all, or numbers such as 0,2-3. [default: big]")
@click.option("--cuda", is_flag=True, help="The agent that also runs what is built for this machine's NVIDIA GPUs.")
@click.option("--open-to-network", is_flag=True, help=OPEN)
@shared
def agent(
    session: Session,
    host: str,
    port: int,
    key: str,
    tracker: str | None,
    threads: int | None,
    cores: str | None,
    cuda: bool,
    open_to_network: bool,
) -> None:
    """Serve this machine as a device, until Ctrl-C.

    TVM's RPC is remote code execution by design and is not encrypted: keep it on loopback and reach it through an SSH tunnel.

    \b
    farm agent                                              url = "rpc://127.0.0.1:9090"
    farm agent --tracker 127.0.0.1:9190 --key rasp3b        url = "tracker://127.0.0.1:9190/rasp3b"
    """
    from farm import process
    from farm.agent.recipe import AGENTS, GPU
    from farm.commands.progress import Spinner
    from farm.pipeline import agent_for
    from farm.store import Store, cache_root

    refuse_open(host, open_to_network)
    check_key(key, tracker)
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise UsageError(f"there is no agent for {platform.machine()}", f"there are: {', '.join(_MACHINES.values())}", "")
    if cuda and f"{machine}{GPU}" not in AGENTS:
        raise UsageError(f"there is no agent for GPUs for {machine}", "NVIDIA's driver is for x86-64 and ARM64", "leave --cuda out")
    _check_port(host, port)
    store = Store(cache_root())
    with Spinner(session, "the agent") as spinner:
        executable = agent_for(machine + GPU * cuda, store=store, show=spinner.show)
    work, kept = store.root / "agent" / "work", store.root / "agent" / "store"
    for folder in (work, kept):
        folder.mkdir(parents=True, exist_ok=True)
    command = [str(executable), "--host", host, "--port", str(port), "--work-dir", str(work), "--store", str(kept)]
    for option, value in (("--key", key), ("--tracker", tracker), ("--threads", threads), ("--cores", cores)):
        command += [option, str(value)] if value else []
    process.replace([*command, *(["--open-to-network"] if open_to_network else [])])


@click.command()
@click.option("--host", help="The address to listen on. [default: that of devices.toml, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="The port. [default: that of devices.toml, 9190]")
@click.option(
    "--metrics", "metrics_port", type=click.IntRange(1, 65535), metavar="PORT", help="Numbers for Prometheus on http://HOST:PORT/metrics."
)
@click.option("--open-to-network", is_flag=True, help=OPEN)
@shared
def tracker(session: Session, host: str | None, port: int | None, metrics_port: int | None, open_to_network: bool) -> None:
    """Share devices between people: TVM's tracker, until Ctrl-C.

    Boards register with it (farm agent --tracker HOST:PORT --key KIND), and clients ask it for a kind of board
    (url = "tracker://HOST:PORT/KIND"). It speaks for nobody's identity: keep it on loopback or a network of the lab's own.
    """
    from farm import interrupts
    from farm.tracker import serve

    settings = session.fleet().tracker
    address = host or settings.host
    refuse_open(address, open_to_network)
    ports = range(settings.port, settings.port_end) if port is None else range(port, port + 1)
    with contextlib.suppress(interrupts.Stopped):
        serve(address, ports, lambda bound: click.echo(f"tracker on {address}:{bound}", err=True), metrics_port)


def check_key(key: str, tracker: str | None) -> None:
    if not re.fullmatch(r"[^\s\"\\]*", key) or not key.isascii():
        raise UsageError(
            f"--key {key!r} is no key", "it goes into messages as it is", "use letters, digits and signs, without spaces and quotes"
        )
    if tracker and not re.fullmatch(r"\S+:\d+", tracker):
        raise UsageError(f"--tracker {tracker} is no address", "it wants HOST:PORT", "for example --tracker 127.0.0.1:9190")
    if tracker and not key:
        raise UsageError("a tracker needs a key", "clients ask it for a kind of board", "add --key, for example --key rasp3b")


def _check_port(host: str, port: int) -> None:
    """The agent would find out by itself, after it was built, and in fewer words."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as exc:
            raise DeviceError("the agent cannot listen", f"{host}:{port}: {exc.strerror}", "name another port with --port") from exc


def refuse_open(host: str, open_to_network: bool) -> None:
    """Raise UsageError for an address that others can reach, unless that is what is wanted."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError as exc:
        raise UsageError(f"{host} is no address of this machine", exc.strerror or str(exc), "use --host 127.0.0.1") from exc
    if not open_to_network and not all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses):
        raise UsageError(
            f"{host} can be reached from the network",
            "TVM's RPC lets whoever connects run any code on this machine, and nothing is encrypted",
            "listen on 127.0.0.1 and use an SSH tunnel, or say that you mean it: --open-to-network",
        )
