"""Sessions with TVM's own servers of several versions: recorded once, and replayed to our client.

`tools/record-tvm-server` writes the recordings. A replayed server insists on each request, byte for
byte.
"""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass
from pathlib import Path

from rpc_sessions import Script, soon

from farm.rpc.errors import RemoteError
from farm.rpc.session import Session
from farm.rpc.value_types import CPU, DataType, RemoteDevice, RemoteObject, RemoteTensor
from farm.transports.agent import version as agent_version

FOLDER = Path(__file__).with_name("recorded")
VALUES = (
    *(None, True, False, -1, (1 << 63) - 1, 1e300, "", "gr\u00fc\u00dfe", b"", bytes(range(256))),
    *(CPU, RemoteDevice(2, 3), DataType.of("float16"), DataType.of("int8x4")),
)


@dataclass(frozen=True)
class Seen:
    """What a client saw of a server."""

    values: tuple[object, ...]
    told: object
    items: object
    total: object
    elements: bytes
    copied: bytes
    sum: object
    error: str
    has_new_function: bool


async def visit(session: Session) -> Seen:
    """Use all kinds of requests on a server with the functions of tvm_echo_server."""

    async def call(name: str, *arguments: object) -> object:
        return await session.call_named(name, *arguments, deadline=soon())  # type: ignore[arg-type]

    values = tuple([await call("test.echo", value) for value in VALUES])
    told = await call("test.told", DataType.of("bfloat16"))
    some = await call("test.list", 1, "two", 3.0, None, True)
    assert isinstance(some, RemoteObject)
    items = await call("test.length", some)
    await session.free(some, soon())
    tensor = await call("test.tensor")
    assert isinstance(tensor, RemoteTensor)
    total, elements = await call("test.total", tensor), await session.copy_from(tensor, soon())
    await session.free(tensor, soon())
    own = await session.allocate((3, 4), DataType.of("float32"), soon())
    await session.copy_to(bytes(range(48)), own, soon())
    copied = await session.copy_from(own, soon())
    await session.free(own, soon())
    adder = await call("test.adder")
    assert isinstance(adder, RemoteObject)
    added = await session.call(adder, 2, 3, deadline=soon())
    await session.free(adder, soon())
    error = ""
    try:
        await call("test.fail", "so it goes")
    except RemoteError as exc:
        error = exc.message
    new = await session.function(agent_version._NEW_FUNCTION, soon()) is not None
    return Seen(values, told, items, total, bytes(elements), bytes(copied), added, error, new)


def expected(has_new_function: bool) -> Seen:
    """Return what each server shows, but for the functions that came with this TVM."""
    elements = struct.pack("<6i", *range(6))
    return Seen(
        VALUES,
        "dtype bfloat16",
        5,
        15.0,
        elements,
        bytes(range(48)),
        5,
        "so it goes",
        has_new_function,
    )


def kept(version: str) -> list[tuple[bytes, bytes]]:
    """The requests to a server of a version, and its answers; the greetings come first."""
    content = json.loads((FOLDER / f"tvm-{version}.json").read_text())
    return [(bytes.fromhex(asked), bytes.fromhex(answer)) for asked, answer in content["exchanges"]]


def replay(exchanges: list[tuple[bytes, bytes]]) -> Script:
    """A server that answers as the recorded one did, and hangs up at any other request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for wanted, answer in exchanges:
            if await reader.readexactly(len(wanted)) != wanted:
                return
            writer.write(answer)

    return serve
