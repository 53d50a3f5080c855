"""`rpc://` without TVM: sessions with devices as tasks of one event loop, by farm's own client.

Such a session needs no process of its own: every wait has a deadline, and nothing that a board
sends is carried out here (see farm/rpc).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from farm.deadline import Deadline
from farm.errors import DeadlineError, DeviceError, FarmError, LinkError
from farm.rpc.connection import Connection, connect
from farm.rpc.errors import ProtocolError, RemoteError
from farm.rpc.opening import open_session
from farm.rpc.session import Session
from farm.transports import PROMPT_S, agent_answers, agent_version, rpc
from farm.transports.rpc_client import broke_off, greeting_errors, notice_silence
from farm.transports.rpc_errors import translate
from farm.types import Device

Answer = TypeVar("Answer")

_FACTS = "farm.agent.facts"
ANSWER_S = 10.0  # for all answers of a short session; an agent gives each in milliseconds
_SESSION_S = 60  # after which the server ends the session
_MOST_RETURN_BYTES = 2 << 20  # twice what facts may have
_MOST_AT_ONCE = 200  # below the usual limit of 1024 open files
_TICK_S = 0.1


class RPCError(Exception):
    """The text of an error of a board, under the name that TVM's client gives it."""


def can_be_asked(device: Device) -> bool:
    """Return whether `facts` works with a device; a GPU would have to be opened first."""
    return device.scheme == "rpc" and not device.profile.on_gpu


async def facts(device: Device) -> dict[str, str]:
    """Return what a device reports about itself; empty for TVM's own server.

    Raises DeviceError, also for an agent of another version; DeadlineError within about 10 s if the
    device accepts the connection and is silent then.
    """
    async with _session(device) as session:
        deadline = Deadline(ANSWER_S)
        function = await session.function(_FACTS, deadline)
        if not function:
            return {}
        answer = await session.call(function, deadline=deadline)
        agent_version.check(device, agent_answers.document(_FACTS, answer))
        return agent_answers.facts(answer)


async def of_all(
    devices: Sequence[Device],
    question: Callable[[Device], Awaitable[Answer]],
    check: Callable[[], None],
) -> dict[str, Answer | FarmError]:
    """Ask all devices the same at the same time.

    Returns the answers by device name; that of a device that fails is its FarmError. `check` is
    called several times a second; what it raises ends all.
    """
    turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def one(device: Device) -> Answer | FarmError:
        async with turns:
            try:
                return await question(device)
            except FarmError as error:
                return error

    tasks = {device.name: asyncio.create_task(one(device)) for device in devices}
    waiting: set[asyncio.Task[Answer | FarmError]] = set(tasks.values())
    while waiting:
        _, waiting = await asyncio.wait(waiting, timeout=_TICK_S)
        check()
    return {name: task.result() for name, task in tasks.items()}


@contextlib.asynccontextmanager
async def _session(device: Device) -> AsyncIterator[Session]:
    """Open a session with the server at the device's address, for a few requests."""
    with _translated(device):
        host, port = rpc.address(device)
        host, key = await asyncio.to_thread(rpc.with_key, device, host, port)
        connection = await _connected(device, host, port)
        key = f"{key} -timeout={_SESSION_S}"
        with greeting_errors(device, PROMPT_S):
            session = await open_session(
                connection,
                device.name,
                key,
                greeting=Deadline(PROMPT_S),
                opening_s=ANSWER_S,
                most_return_bytes=_MOST_RETURN_BYTES,
            )
        try:
            yield session
        finally:
            await session.close()


async def _connected(device: Device, host: str, port: int) -> Connection:
    try:
        connection = await connect(host, port, Deadline(rpc.PROBE_S))
    except OSError as exc:
        state = rpc.offline(device, exc)
        raise DeviceError(f"{device.name} is {state.word}", state.why, state.fix) from exc
    notice_silence(connection.socket)
    return connection


@contextlib.contextmanager
def _translated(device: Device) -> Iterator[None]:
    """Translate what a session raises into errors that name the device and what to do."""
    try:
        yield
    except ProtocolError as exc:
        raise broke_off(device, exc.reason) from exc
    except RemoteError as exc:
        raise translate(device, RPCError(exc.message)) from exc
    except (LinkError, DeadlineError) as exc:
        start = agent_version.start_command(device)
        fix = f"see what runs at {device.url}; an agent starts there with {start}"
        raise type(exc)(exc.what, exc.why, exc.fix or fix) from exc
    except FarmError:
        raise
    except Exception as exc:
        raise translate(device, exc) from exc
