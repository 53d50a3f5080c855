"""`ssh://[user@]host[:port]`: a board with an SSH server, on which farm installs its agent.

The agent communicates on the standard streams of its SSH channel: the board opens no port, not even
on its loopback, and no other user of the board can connect to the agent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import DeadlineError, DeviceError, FarmError, LinkError
from farm.processes.deadline import Deadline
from farm.prompts import Ask
from farm.transports import rpc as transports_rpc
from farm.transports.device_availability import DeviceAvailability
from farm.transports.rpc_client import session_over_streams
from farm.transports.rpc_errors import session_ended_error, translate_error
from farm.transports.ssh.config import Hop, resolve_hops
from farm.types import Device

if TYPE_CHECKING:
    from farm.transports.ssh.board import SshBoard
    from farm.transports.ssh.channel_connection import ChannelConnection

_END_S = 1.5  # time for the agent to end by itself
_NEWS_S = 0.5


@contextlib.contextmanager
def open(  # noqa: A001
    device: Device,
    agent: Path | None,
    scratch: Path,  # noqa: ARG001
    timeout_s: float,
    ask: Ask,
    greeting_s: float | None,  # noqa: ARG001
) -> Iterator[Any]:
    """Log in, start the agent, connect, and end it when the block ends.

    If the session breaks, the error says whether the connection, the agent or the time has ended.
    """
    if agent is None:
        there = probe_state(device)
        raise DeviceError(
            f"{device.name} is {there.word}", there.why or "it has no agent", there.fix
        )
    from farm.transports.ssh.board import SshBoard
    from farm.transports.ssh.channel_connection import ChannelConnection
    from farm.transports.ssh.connect import break_connection, log_in_through_hops
    from farm.transports.ssh.upload import upload_file

    deadline, hops = Deadline(timeout_s), resolve_hops(device.url)
    with log_in_through_hops(device.name, hops, deadline, ask) as client:
        board = SshBoard(device, deadline, client)
        channel, store = _started(board, agent, hops[-1])
        connection = ChannelConnection(channel, partial(break_connection, client))
        try:
            with session_over_streams(device, connection, deadline.remaining) as opened:
                yield opened, partial(upload_file, board, store)
        except FarmError:
            raise
        except Exception as exc:
            if isinstance(translate_error(device, exc), (LinkError, DeadlineError)):
                raise _cause(board, channel, connection, hops[-1]) from exc
            raise
        finally:
            _leave(channel)
            break_connection(client)  # or paramiko would notice its end a moment later


def probe_state(device: Device) -> DeviceAvailability:
    """Return `ready` if the first SSH server on the way answers; a session alone shows the rest."""
    if device.profile.agent is None:
        return DeviceAvailability(
            "unavailable",
            False,
            f"profile {device.profile.name} has no native agent",
            "reach the board by rpc:// or tracker://",
        )
    try:
        first = resolve_hops(device.url)[0]
    except DeviceError as error:
        return DeviceAvailability("unavailable", False, f"{error.what}: {error.why}", error.fix)
    if first.command:  # whether a ProxyCommand works is known only by running it
        return DeviceAvailability("ready", True)
    try:
        transports_rpc.check_port_listens(first.host, first.port)
    except OSError as exc:
        return DeviceAvailability(
            "offline",
            False,
            f"{first.host}:{first.port}: {exc.strerror or exc}",
            f"check that this works: ssh {device.url}",
        )
    return DeviceAvailability("ready", True)


def _started(board: SshBoard, agent: Path, hop: Hop) -> tuple[Any, str]:
    """Return the channel of the agent's standard streams, and the folder of its store."""
    from farm.transports.ssh.errors import translate_errors

    transport = board.client.get_transport()
    try:
        with translate_errors(board.device.name, hop):
            return board.start_agent(agent)
    except FarmError as error:
        # A failure that looks like the board's may be the end of the connection
        transport.join(_NEWS_S)
        if transport.is_alive():
            raise
        raise _broken(board.device.name, hop, transport) from error


def _cause(board: SshBoard, channel: Any, connection: ChannelConnection, hop: Hop) -> FarmError:
    """Return the error that explains why the session is over."""
    name, deadline = board.device.name, board.deadline
    if deadline.expired:
        why = f"{deadline.seconds:.0f} s are over"
        return DeadlineError(
            f"the session on {name} ran out of time", why, "give it longer with --deadline SECONDS"
        )
    channel.status_event.wait(_END_S)
    status = channel.exit_status
    if status < 0:
        return _broken(name, hop, board.client.get_transport())
    how = (
        ""
        if status == 0
        else f" of signal {status - 128}"
        if status > 128
        else f" with exit code {status}"
    )
    what = f"the agent on {name} ended{how}" if status else f"the session on {name} ended"
    return session_ended_error(
        board.device,
        what,
        connection.last_words(),
        "check the memory of the board (dmesg there), then run the command again",
    )


def _broken(name: str, hop: Hop, transport: Any) -> FarmError:
    """Return the error for an established connection that has ended."""
    from farm.transports.ssh.errors import broken_connection_error

    cause = transport.get_exception() if transport else None
    return broken_connection_error(
        name, hop, cause or EOFError("it was closed from the other side")
    )


def _leave(channel: Any) -> None:
    """Close the agent's input and give it time to end by itself."""
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()
        channel.status_event.wait(_END_S)
        channel.close()
