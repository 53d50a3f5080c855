"""Threads and cores, as TVM's own RPC server and farm's agent are told of them."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import DeviceError
from farm.executor.threads import configure_threads_and_gpu
from farm.transports import Link
from farm.types import Device, Profile

BIG, LITTLE = 1, -1  # threading::ThreadGroup::AffinityMode


class Calls:
    """A session that keeps what it is called with."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def call(self, name: str, *arguments: Any) -> None:
        self.made.append((name, *arguments))


def told(native: bool, **options: str | int | bool) -> list[tuple[Any, ...]]:
    session: Any = Calls()
    device = Device("board", Profile("x86", {"kind": "llvm"}, ""), "rpc://board", options=options)
    configure_threads_and_gpu(Link(session, native=native), device)
    made: list[tuple[Any, ...]] = session.made
    return made


def test_tvms_server_is_told_of_big_or_little_cores_and_of_threads() -> None:
    pool = "runtime.config_threadpool"
    assert told(False) == []
    assert told(False, threads=3) == told(False, threads=3, cores="big") == [(pool, BIG, 3)]
    assert told(False, cores="big") == [(pool, BIG, 0)]
    assert told(False, threads=2, cores="little") == [(pool, LITTLE, 2)]


@pytest.mark.parametrize(
    "options",
    [{"pinned": True}, {"threads": 2, "cores": "0,2"}, {"cores": "all"}, {"cores": "little"}],
)
def test_what_tvms_server_cannot_do_is_an_error_and_the_agent_is_told_it(
    options: dict[str, Any],
) -> None:
    with pytest.raises(DeviceError, match="cannot compute with these threads and cores"):
        told(False, **options)
    asked = options.get("threads", 0), options.get("cores", ""), options.get("pinned", False)
    assert told(True, **options) == [("farm.agent.threads", *asked)]
