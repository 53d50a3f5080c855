"""A GPU that is not there: no driver on this machine or on the board, or an agent for CPUs."""

from __future__ import annotations

import ctypes.util
from collections.abc import Callable
from pathlib import Path

import pytest
from farm_processes import DIGITS, QUICK, Farm
from gpu_stand_in_devices import agent, cache, device, farm, layers

__all__ = ["cache", "farm"]  # fixtures


@pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None, reason="this machine has a driver"
)
def test_a_machine_without_a_driver_says_so_before_anything_is_built(farm: Farm) -> None:
    """The real thing: there is none here."""
    farm.configure(device() + DIGITS + QUICK)
    for command in ("deploy", "bench"):
        done = farm.run(command, "--device", "gpu0", "digits")
        assert done.code == 5 and "without a GPU" in done.error["error"], done.err
        assert "libcuda.so.1" in done.error["why"] and "nvidia-smi" in done.error["fix"]
    for command in ("doctor", "provision"):
        done = farm.run(command, "--device", "gpu0")
        assert done.code == 5 and "without a GPU" in done.out + done.err, done.out + done.err


@pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None, reason="this machine has a driver"
)
def test_an_agent_without_a_driver_says_so_in_its_session(
    farm: Farm, agents: Callable[[str], Path]
) -> None:
    """As a board would whose driver is missing: it has the agent for GPUs, and is reached over a
    network.
    """
    with agent(farm, agents) as url:
        farm.configure(device(url=url) + DIGITS + QUICK)
        done = farm.run("doctor", "--device", "gpu0", "--json")
        fault = layers(done)[-1]
        assert (fault["layer"], fault["error"]["what"]) == ("GPU", "gpu0 has no NVIDIA driver")
        assert "libcuda.so.1" in fault["error"]["why"]


def test_the_agent_for_cpus_says_that_it_is_one(farm: Farm, agents: Callable[[str], Path]) -> None:
    with agent(farm, agents, "x86_64") as url:
        farm.configure(device(url=url) + DIGITS + QUICK)
        done = farm.run("doctor", "--device", "gpu0", "--json")
        fault = layers(done)[-1]
        assert (
            fault["error"]["what"] == "gpu0 has the agent for CPUs"
            and "farm agent --cuda" in fault["error"]["fix"]
        )
