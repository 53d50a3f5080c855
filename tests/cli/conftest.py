"""A farm for each test, with agents and the small model's artifacts already there."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from farm_processes import DEVICES, DIGITS, QUICK, Farm
from onnx import TensorProto, helper, numpy_helper
from ssh_server import SshServer, ssh_server

from farm.processes import subprocesses

AGENTS = {
    "x86_64": "true",
    "armv7": "qemu-arm",
    "aarch64": "qemu-aarch64",
}  # and the program that runs them


@pytest.fixture(scope="session")
def agents_folder(agents: Callable[[str], Path]) -> Path:
    """The folder of the agents by digest, those that are needed here built."""
    for arch, emulator in AGENTS.items():
        if subprocesses.first_installed_program(emulator):
            agents(arch)
    folder = Path(os.environ.get("FARM_CACHE") or Path.home() / ".cache" / "farm") / "agents"
    folder.mkdir(parents=True, exist_ok=True)  # prebuilt ones lie elsewhere
    return folder


@pytest.fixture(scope="session")
def warm_cache(agents_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which digits and the slow model are imported and built for every device that they
    run on: built by the first of the
    workers of pytest-xdist that wants it, and copied by the others, as tests change what is
    kept."""
    folder = tmp_path_factory.mktemp("warm")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _warm(folder, agents_folder)
        return folder / "cache"
    whole = tmp_path_factory.getbasetemp().parent / "warm"  # which all workers have
    with whole.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            making = tmp_path_factory.mktemp("making")
            _warm(making, agents_folder)
            making.rename(whole)
    shutil.copytree(whole, folder, symlinks=True, dirs_exist_ok=True)
    return folder / "cache"


def _warm(folder: Path, agents_folder: Path) -> None:
    farm = _farm(folder, folder / "cache", agents_folder)
    farm.configure(DEVICES + DIGITS + QUICK)
    write_slow_model(folder / "slow.onnx")
    assert farm.run("bench", "--all").code in (0, 1)  # 1: no emulators here
    assert farm.run("compile", "slow.onnx", "--profile", "rasp3b").code == 0
    assert farm.run("compile", "slow.onnx").code == 0
    farm.assert_nothing_is_left()


@pytest.fixture
def farm(warm_cache: Path, tmp_path: Path) -> Iterator[Farm]:
    """A farm with everything built: three devices, digits, quick measurements."""
    shutil.rmtree(warm_cache / "devices", ignore_errors=True)  # what another test deployed
    farm = _farm(tmp_path, warm_cache)
    farm.configure(DEVICES + DIGITS + QUICK)
    (tmp_path / "slow.onnx").symlink_to(warm_cache.parent / "slow.onnx")
    yield farm
    farm.end()


@pytest.fixture
def fresh(agents_folder: Path, tmp_path: Path) -> Iterator[Farm]:
    """A farm in which nothing but the agents is built."""
    farm = _farm(tmp_path, tmp_path / "cache", agents_folder)
    farm.configure(DEVICES + DIGITS + QUICK)
    write_slow_model(tmp_path / "slow.onnx")
    yield farm
    farm.end()


@pytest.fixture
def server(farm: Farm, tmp_path: Path) -> Iterator[SshServer]:
    """An SSH server that the farm may log in to."""
    (tmp_path / "ssh").mkdir()
    with ssh_server(tmp_path / "ssh", farm.mark) as server:
        farm.environment = {"HOME": str(server.home), "SSH_AUTH_SOCK": "/nowhere"}
        yield server


def write_slow_model(path: Path) -> None:
    """A convolution, quickly built, whose 32 GFLOP keep an emulated board busy for half a minute or
    more: no Winograd makes less of 5 x 5.
    """
    channels, size = 64, 384
    kernel = (np.random.default_rng(0).standard_normal((channels, channels, 5, 5)) / 40).astype(
        "float32"
    )
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[2, 2, 2, 2])
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, size, size])
        for name in "xy"
    )
    graph = helper.make_graph([node], "slow", [x], [y], [numpy_helper.from_array(kernel, "w")])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )


@pytest.fixture
def emulators() -> None:
    if not (
        subprocesses.first_installed_program("qemu-arm")
        and subprocesses.first_installed_program("qemu-aarch64")
    ):
        pytest.skip("qemu-user is not installed")


def _farm(folder: Path, cache: Path, agents: Path | None = None) -> Farm:
    cache.mkdir(exist_ok=True)
    if agents:
        (cache / "agents").symlink_to(agents)
    return Farm(folder, cache, uuid.uuid4().hex)
