"""A device that is an NVIDIA GPU, where the GPU, its driver or the right agent is missing: one error, with its cure, before all else."""

from __future__ import annotations

import ctypes.util
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_running import DIGITS, HOST, QUICK, Done, Farm, server

from farm.store import cache_root

DEVICE = """
[devices.gpu0]
profile = "cuda-sm80"
url = "{url}"
options = {{ gpu = {gpu} }}
"""


@pytest.fixture(scope="module")
def cache(agents: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the agents in it; nothing is built for any other kind of board."""
    agents("x86_64-cuda")
    folder, kept = tmp_path_factory.mktemp("gpus") / "cache", cache_root() / "agents"
    kept.mkdir(parents=True, exist_ok=True)  # prebuilt ones lie elsewhere
    folder.mkdir()
    (folder / "agents").symlink_to(kept)
    return folder


@pytest.fixture
def farm(cache: Path, tmp_path: Path) -> Iterator[Farm]:
    farm = Farm(tmp_path, cache, uuid.uuid4().hex)
    yield farm
    farm.end()


def layers(done: Done) -> list[dict[str, Any]]:
    return next(one["layers"] for one in done.json["examined"] if one["name"] == "gpu0")


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
def test_a_machine_without_a_driver_says_so_before_anything_is_built(farm: Farm) -> None:
    """The real thing: there is none here."""
    farm.configure(DEVICE.format(url="local:", gpu=0) + DIGITS + QUICK)
    for command in ("deploy", "bench"):
        done = farm.run(command, "--device", "gpu0", "digits")
        assert done.code == 5 and "without a GPU" in done.error["error"], done.err
        assert "libcuda.so.1" in done.error["why"] and "nvidia-smi" in done.error["fix"]
    for command in ("doctor", "provision"):
        done = farm.run(command, "--device", "gpu0")
        assert done.code == 5 and "without a GPU" in done.out + done.err, done.out + done.err


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
def test_an_agent_without_a_driver_says_so_in_its_session(farm: Farm, agents: Callable[[str], Path]) -> None:
    """As a board would whose driver is missing: it has the agent for GPUs, and is reached over a network."""
    words = [agents("x86_64-cuda"), "--port", "0", "--work-dir", farm.folder / "agent-work"]
    with server(farm.folder, *words, says=rf"listening on {HOST}:(\d+)", env=farm.env) as port:
        farm.configure(DEVICE.format(url=f"rpc://{HOST}:{port}", gpu=0) + DIGITS + QUICK)
        done = farm.run("doctor", "--device", "gpu0", "--json")
        fault = layers(done)[-1]
        assert (fault["layer"], fault["error"]["what"]) == ("GPU", "gpu0 has no NVIDIA driver")
        assert "libcuda.so.1" in fault["error"]["why"]


def test_the_agent_for_cpus_says_that_it_is_one(farm: Farm, agents: Callable[[str], Path]) -> None:
    words = [agents("x86_64"), "--port", "0", "--work-dir", farm.folder / "agent-work"]
    with server(farm.folder, *words, says=rf"listening on {HOST}:(\d+)", env=farm.env) as port:
        farm.configure(DEVICE.format(url=f"rpc://{HOST}:{port}", gpu=0) + DIGITS + QUICK)
        done = farm.run("doctor", "--device", "gpu0", "--json")
        fault = layers(done)[-1]
        assert fault["error"]["what"] == "gpu0 has the agent for CPUs" and "farm agent --cuda" in fault["error"]["fix"]
