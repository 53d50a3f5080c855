"""The agent runs a model for many samples in one call, with the answers that single calls have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agent_models import BATCH, INPUTS, OUTPUTS, SmallModel, pair
from agent_processes import Agent
from timeouts import LIMIT_S

from farm.config import load_fleet
from farm.rpc.blocking_session import BlockingSession
from farm.rpc.value_types import CPU
from farm.rpc.virtual_machine import RemoteVirtualMachine
from farm.transports.rpc_client import RPCError, session_with_server
from farm.types import Device

Start = Callable[..., Agent]
Models = Callable[[str], SmallModel]
SAMPLES = 5


@contextlib.contextmanager
def opened(agent: Agent) -> Iterator[BlockingSession]:
    board = Device("board", load_fleet().profile("x86"), f"rpc://127.0.0.1:{agent.port}")
    with session_with_server(board, "127.0.0.1", agent.port, "board", LIMIT_S, None) as one:
        yield one


def machine_of(one: BlockingSession, library: Any) -> RemoteVirtualMachine:
    one.upload(library, "library.so")
    return RemoteVirtualMachine(one.load_module("library.so"), CPU)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "armv7"])
def test_many_samples_have_the_answers_of_single_calls(
    arch: str, start: Start, models: Models
) -> None:
    draw = np.random.default_rng(3).standard_normal
    x = draw((SAMPLES, BATCH, INPUTS)).astype("float32")
    w, b = draw((INPUTS, OUTPUTS)).astype("float32"), draw(OUTPUTS).astype("float32")
    with opened(start(arch)) as one:
        machine = machine_of(one, models(arch).library)
        parameters = [one.tensor(w), one.tensor(b)]
        singly = []
        for sample in x:
            machine.set_input("main", one.tensor(sample), *parameters)
            machine.invoke_stateful("main")
            singly += machine.outputs("main")
        answer = one.call(
            "farm.agent.samples", machine.module, "main", SAMPLES, 1, one.tensor(x), *parameters
        )
        assert (
            one.call(
                "farm.agent.samples", machine.module, "main", 0, 1, one.tensor(x[:0]), *parameters
            )
            == b""
        )
    found = np.frombuffer(answer, "float32").reshape(SAMPLES, BATCH, OUTPUTS)
    assert (found == np.stack(singly)).all() and not (found[0] == found[1]).all()


def test_the_answer_is_the_first_part_of_a_tuple(start: Start, tmp_path: Any) -> None:
    two = pair("x86_64", tmp_path)
    a, b = (np.stack([np.load(path)] * SAMPLES) for path in two.inputs.values())
    with opened(start()) as one:
        machine = machine_of(one, two.files[0])
        answer = one.call(
            "farm.agent.samples", machine.module, "main", SAMPLES, 2, one.tensor(a), one.tensor(b)
        )
    assert (np.frombuffer(answer, "float32").reshape(b.shape) == a.astype("float32") + b).all()


@pytest.mark.parametrize(
    ("count", "inputs", "words"),
    [
        (SAMPLES + 1, 1, "does not hold the samples"),
        (SAMPLES, 2, "too few inputs"),
        (SAMPLES, -1, "too few inputs"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    count: int, inputs: int, words: str, start: Start, models: Models
) -> None:
    with pytest.raises(RPCError, match=words), opened(start()) as one:
        machine = machine_of(one, models("x86_64").library)
        one.call(
            "farm.agent.samples",
            machine.module,
            "main",
            count,
            inputs,
            one.tensor(np.zeros((SAMPLES, BATCH, INPUTS), "float32")),
        )
