"""What the tests of GPUs share: a device of that kind, and an agent whose driver is the stand-in
for NVIDIA's, or is missing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm_programs
from farm_processes import HOST, Done, Farm, server

from farm.store import user_cache_dir

STAND_IN = Path(__file__).with_name("cuda_driver_stand_in")
sys.path.insert(0, str(STAND_IN))

import compile_cuda_for_cpu  # noqa: E402

DEVICE = """
[devices.{name}]
profile = "{profile}"
url = "{url}"
options = {{ {options} }}
"""


def device(
    name: str = "gpu0", url: str = "local:", profile: str = "cuda-sm80", options: str = "gpu = 0"
) -> str:
    return DEVICE.format(name=name, url=url, profile=profile, options=options)


@pytest.fixture(scope="module")
def cache(agents: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the agents in it; nothing is built for any other kind of board."""
    agents("x86_64-cuda")
    folder, kept = tmp_path_factory.mktemp("gpus") / "cache", user_cache_dir() / "agents"
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


@contextlib.contextmanager
def agent(
    farm: Farm, agents: Callable[[str], Path], arch: str = "x86_64-cuda", **settings: str
) -> Iterator[str]:
    """The url of an agent whose driver, where it has one, is set like this."""
    work = farm.folder / f"agent-{len(list(farm.folder.glob('agent-*')))}"
    words = [agents(arch), "--port", "0", "--work-dir", work]
    with server(
        farm.folder, *words, says=rf"listening on {HOST}:(\d+)", env={**farm.env, **settings}
    ) as port:
        yield f"rpc://{HOST}:{port}"


def recorded(folder: Path, cache: Path, model: str) -> dict[str, str]:
    """The environment in which the stand-in has the kernels of a model of the folder's
    devices.toml, and nothing else.
    """
    record = [
        sys.executable,
        STAND_IN / "record_kernel_sources.py",
        cache,
        folder / "devices.toml",
        model,
        folder / "kernels.cu",
    ]
    env = tvm_programs.environment({**os.environ, "PYTHONPATH": str(STAND_IN.parents[2])})
    subprocess.run(record, check=True, timeout=600, env=env)
    library = compile_cuda_for_cpu.built((folder / "kernels.cu").read_text(), folder)
    return {
        "LD_LIBRARY_PATH": str(compile_cuda_for_cpu.driver(folder)),
        "STAND_IN_KERNELS": str(library),
    }
