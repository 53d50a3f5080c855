"""Farm's own client of TVM's RPC, against farm's agent and against TVM's server."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from importlib import metadata
from random import Random

import pytest
from recorded_tvm_sessions import FOLDER, Seen, expected, kept, replay, visit
from rpc_sessions import HOST, ServingAgent, run, served, session, soon
from timeouts import LIMIT_S

from farm.errors import DeadlineError, LinkError
from farm.processes.deadline import Deadline
from farm.rpc.connection import connect
from farm.rpc.errors import ProtocolError, RemoteError
from farm.rpc.handshake import HandshakeError
from farm.rpc.session import Session
from farm.rpc.session_opening import open_session
from farm.rpc.value_types import (
    CPU,
    DataType,
    RemoteDevice,
    RemoteObject,
    RemotePointer,
    RemoteTensor,
)
from farm.transports.agent import version as agent_version

KEY = "echo"
DATA_TYPES = [
    *(
        "int4",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint1",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    ),
    *(
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
    ),
    *(
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float32x4", "int8x16", "handle64"),
]


def test_an_agent_tells_its_facts(agent: ServingAgent) -> None:
    async def work() -> dict[str, object]:
        async with session(agent.port, "board -timeout=60") as one:
            text = await one.call_named("farm.agent.facts", deadline=soon())
            assert isinstance(text, str)
            facts: dict[str, object] = json.loads(text)
            return facts

    assert run(work())["tvm"]


def test_an_agent_takes_and_gives_files_and_tensors(agent: ServingAgent) -> None:
    content = Random(1).randbytes(10 << 20)  # pieces that differ

    async def work() -> None:
        async with session(agent.port, "board") as one:
            await one.call_named("tvm.rpc.server.upload", "a file", content[:1000], deadline=soon())
            assert (
                await one.call_named("tvm.rpc.server.download", "a file", deadline=soon())
                == content[:1000]
            )
            tensor = await one.allocate((len(content) // 4,), DataType.of("float32"), soon())
            await one.copy_to(content, tensor, soon())
            same = await one.copy_from(tensor, soon()) == content
            assert same, "other bytes came back"  # pytest would compare the bytes one by one
            await one.free(tensor, soon())
            names = await one.call_named("ffi.FunctionListGlobalNamesFunctor", deadline=soon())
            assert isinstance(names, RemoteObject)
            count = await one.call(names, -1, deadline=soon())
            assert isinstance(count, int) and count > 100
            await one.free(names, soon())

    run(work())


def test_an_error_of_the_agent_is_told_and_the_session_goes_on(agent: ServingAgent) -> None:
    async def work() -> None:
        async with session(agent.port, "board") as one:
            with pytest.raises(RemoteError) as caught:
                await one.call_named("tvm.rpc.server.upload", "../x", b"", deadline=soon())
            assert "work directory" in caught.value.message
            with pytest.raises(RemoteError, match="the server reports an error"):
                await one.call_named("no.such.function", deadline=soon())
            with pytest.raises(TypeError):
                await one.call_named("farm.agent.facts", object(), deadline=soon())  # type: ignore[arg-type]

    run(work())


def test_a_session_that_the_agent_ends_in_time_says_so(agent: ServingAgent) -> None:
    async def work() -> None:
        async with session(agent.port, "board -timeout=0.2") as one:
            await asyncio.sleep(1)
            with pytest.raises(DeadlineError, match="ran out of time"):
                await one.call_named("farm.agent.facts", deadline=soon())
            with pytest.raises(LinkError, match="is over"):
                await one.call_named("farm.agent.facts", deadline=soon())

    run(work())


def test_a_key_that_the_agent_does_not_take(agent: ServingAgent) -> None:
    async def work() -> None:
        async with session(agent.port, "another"):
            pass

    with pytest.raises(HandshakeError, match="does not take this key"):
        run(work())


def test_an_agent_that_is_killed_within_a_session(agent: ServingAgent) -> None:
    async def work() -> None:
        async with session(agent.port, "board") as one:
            await one.call_named("farm.agent.facts", deadline=soon())
            agent.end()
            with pytest.raises(LinkError):
                await one.call_named("farm.agent.facts", deadline=soon())

    run(work())


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, (1 << 63) - 1, -(1 << 63), 0.0, -1.5, 1e300, math.inf),
        *("", "x", "a name that is longer than a small text", "gr\u00fc\u00dfe \U0001f600"),
        *(b"", b"x", bytes(range(256))),
        *(
            CPU,
            RemoteDevice(2, 3),
            DataType.of("float16"),
            DataType.of("int8x4"),
            RemotePointer(1 << 40),
        ),
    ],
)
def test_each_kind_of_value_comes_back_from_tvms_server_as_it_was_sent(
    value: object, tvm_port: int
) -> None:
    async def work() -> object:
        async with session(tvm_port, KEY) as one:
            return await one.call_named("test.echo", value, deadline=soon())  # type: ignore[arg-type]

    found = run(work())
    assert (type(found), found) == (type(value), value)


def test_tvms_server_receives_many_arguments_in_their_order(tvm_port: int) -> None:
    async def work() -> None:
        async with session(tvm_port, KEY) as one:
            assert await one.call_named("test.told", "text", deadline=soon()) == "str text"
            assert (
                await one.call_named("test.told", DataType.of("bfloat16"), deadline=soon())
                == "dtype bfloat16"
            )
            assert await one.call_named("test.length", "with\0zero", deadline=soon()) == 9
            values = await one.call_named("test.list", 1, "two", 3.0, None, True, deadline=soon())
            assert isinstance(values, RemoteObject)
            assert await one.call_named("test.length", values, deadline=soon()) == 5
            await one.free(values, soon())
            adder = await one.call_named("test.adder", deadline=soon())
            assert isinstance(adder, RemoteObject)
            assert await one.call(adder, 2, 3, deadline=soon()) == 5
            await one.free(adder, soon())

    run(work())


def test_a_tensor_of_tvms_server(tvm_port: int) -> None:
    async def work() -> None:
        async with session(tvm_port, KEY) as one:
            tensor = await one.call_named("test.tensor", deadline=soon())
            assert isinstance(tensor, RemoteTensor)
            assert (tensor.shape, str(tensor.data_type), tensor.device) == ((2, 3), "int32", CPU)
            assert struct.unpack("<6i", await one.copy_from(tensor, soon())) == tuple(range(6))
            assert await one.call_named("test.total", tensor, deadline=soon()) == 15.0
            await one.free(tensor, soon())
            with pytest.raises(ValueError, match="23 bytes for a tensor of 24"):
                await one.copy_to(bytes(23), tensor, soon())
            tensor = await one.call_named("test.tensor", deadline=soon())
            assert isinstance(tensor, RemoteTensor)
            with pytest.raises(ProtocolError, match="24 bytes, where 20 may be"):
                await one.copy_from(tensor, soon(), most_bytes=20)

    run(work())


@pytest.mark.parametrize("name", DATA_TYPES)
def test_tensors_of_all_data_types_are_copied_there_and_back(name: str, tvm_port: int) -> None:
    import tvm_ffi

    data_type = DataType.of(name)
    if name not in ("handle64", "complex64", "complex128"):  # which TVM does not take by name
        theirs = tvm_ffi.dtype(name)
        assert (theirs.type_code, theirs.bits, theirs.lanes) == (
            data_type.code,
            data_type.bits,
            data_type.lanes,
        )
    assert str(data_type) == name

    async def work() -> None:
        async with session(tvm_port, KEY) as one:
            for shape in ((), (3, 8), (0, 4)):
                tensor = await one.allocate(shape, data_type, soon())
                content = bytes(number % 251 for number in range(tensor.size_bytes))
                await one.copy_to(content, tensor, soon())
                assert await one.copy_from(tensor, soon()) == content
                await one.free(tensor, soon())

    run(work())


def test_an_error_of_tvms_server_has_its_text(tvm_port: int) -> None:
    async def work() -> None:
        async with session(tvm_port, KEY) as one:
            with pytest.raises(RemoteError) as caught:
                await one.call_named("test.fail", "so it goes", deadline=soon())
            assert "so it goes" in caught.value.message
            assert await one.call_named("test.echo", 1, deadline=soon()) == 1

    run(work())


def older_versions() -> list[str]:
    found = [path.stem.removeprefix("tvm-") for path in FOLDER.glob("tvm-*.json")]
    assert found
    return sorted(found)


@pytest.mark.parametrize("version", older_versions())
def test_the_servers_of_older_versions_of_tvm_are_understood_as_they_were(version: str) -> None:
    async def work() -> Seen:
        async with served(replay(kept(version))) as port, session(port, KEY) as one:
            return await visit(one)

    assert run(work()) == expected(has_new_function=False)


def test_the_installed_tvms_server_is_not_called_older(tvm_port: int) -> None:
    async def work() -> Seen:
        async with session(tvm_port, KEY) as one:
            return await visit(one)

    seen = run(work())
    assert seen == expected(has_new_function=True)
    assert metadata.version("apache-tvm").startswith(agent_version._NEW_SINCE + "."), (
        "choose a function that came with this version"
    )
    assert agent_version.describe_older_tvm_server(lambda _: True) == ""
    assert "before 0.27" in agent_version.describe_older_tvm_server(lambda _: False)


def test_a_call_that_is_late_cuts_its_session_and_no_other(
    tvm_port: int, agent: ServingAgent
) -> None:
    async def late(one: Session) -> None:
        with pytest.raises(DeadlineError, match="the server does not answer"):
            await one.call_named("test.sleep", 600, deadline=Deadline(0.5))
        with pytest.raises(LinkError, match="is over"):
            await one.call_named("test.echo", 1, deadline=soon())

    async def work() -> None:
        async with session(tvm_port, KEY) as one, session(agent.port, "board") as other:
            await one.function("test.sleep", soon())
            await asyncio.gather(
                late(one),
                *[other.call_named("farm.agent.facts", deadline=soon()) for _ in range(20)],
            )

    run(work())


def test_a_call_that_is_cancelled_cuts_its_session(agent: ServingAgent) -> None:
    async def work() -> None:
        connection = await connect(HOST, agent.port, soon())
        one = await open_session(connection, "the server", "board", soon(), LIMIT_S)
        task = asyncio.create_task(one.call_named("farm.agent.facts", deadline=soon()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(LinkError, match="is over"):
            await one.function("farm.agent.facts", soon())

    run(work())


def test_an_unknown_data_type_is_refused() -> None:
    for name in ("", "float", "fool8", "bool8", "float32x", "float8_e9m9", "int99999"):
        with pytest.raises(ValueError):
            DataType.of(name)
