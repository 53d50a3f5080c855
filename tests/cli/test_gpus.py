"""A device that is an NVIDIA GPU, by the real agent and a stand-in for NVIDIA's driver: the kernels are TVM's, compiled for this machine's
CPU. What only a GPU can show is in tools/bench-gpu."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from farm_running import DIGITS, HOST, QUICK, Farm, server, wait_until

from farm.store import cache_root

STAND_IN = Path(__file__).with_name("stand_in")
sys.path.insert(0, str(STAND_IN))

import kernels  # noqa: E402

DEVICE = """
[devices.gpu0]
profile = "cuda-sm80"
url = "{url}"
options = {{ gpu = {gpu} }}
"""
SESSION_S = "8"


@pytest.fixture(scope="module")
def cache(agents: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the agents in it; nothing is built for any other kind of board."""
    agents("x86_64-cuda")
    folder, kept = tmp_path_factory.mktemp("gpus") / "cache", cache_root() / "agents"
    kept.mkdir(parents=True, exist_ok=True)  # prebuilt ones lie elsewhere
    folder.mkdir()
    (folder / "agents").symlink_to(kept)
    return folder


@pytest.fixture(scope="module")
def nvidia(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the stand-in is found; digits is built for it."""
    folder = tmp_path_factory.mktemp("nvidia")
    record = [sys.executable, STAND_IN / "record.py", cache, folder / "kernels.cu"]
    subprocess.run(record, check=True, timeout=600, env={**os.environ, "PYTHONPATH": str(STAND_IN.parents[2])})
    library = kernels.built((folder / "kernels.cu").read_text(), folder)
    return {"LD_LIBRARY_PATH": str(kernels.driver(folder)), "STAND_IN_KERNELS": str(library)}


@pytest.fixture
def farm(cache: Path, tmp_path: Path) -> Iterator[Farm]:
    farm = Farm(tmp_path, cache, uuid.uuid4().hex)
    yield farm
    farm.end()


@pytest.fixture
def gpu(farm: Farm, nvidia: dict[str, str]) -> Iterator[Farm]:
    """A farm with the device gpu0 on this machine."""
    farm.configure(DEVICE.format(url="local:", gpu=0) + DIGITS + QUICK)
    farm.environment = {**nvidia, "STAND_IN_LOG": str(farm.folder / "driver.log")}
    yield farm
    farm.assert_nothing_is_left()


def with_driver(farm: Farm, **settings: str) -> Farm:
    return replace(farm, environment={**farm.environment, **settings})


def test_deploy_runs_the_kernels_on_the_gpu_and_the_answer_is_right(gpu: Farm) -> None:
    done = gpu.run("deploy", "--device", "gpu0", "digits", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["samples"]["agreement"]["right"]
    log = (gpu.folder / "driver.log").read_text()
    assert re.search(r"launch fused_matmul_add4_kernel \d+,1,1 10,16,1", log), log
    assert "to device" in log and "to host" in log
    again = gpu.run("run", "--device", "gpu0", "digits", "--input", Path(__file__).parents[2] / "docs" / "digit.png", "--json")
    assert again.code == 0, again.err


def test_bench_counts_copies_apart_and_reads_the_gpu_s_facts(gpu: Farm) -> None:
    done = gpu.run("bench", "--device", "gpu0", "digits", "--json")
    assert done.code in (0, 1), done.err
    (run,) = done.json["runs"]
    samples = run["samples"]
    assert samples["correct"] >= 19 and samples["total"] == 20
    assert min(samples["seconds"]) > 0
    assert {"feed", "read-back"} <= set(samples["ledger"])
    facts = samples["facts_after"]
    assert facts["gpu"] == "Stand-in GPU 0" and facts["gpu_driver"] == "580.65.06" and facts["gpu_architecture"] == "sm_80"
    assert json.loads(facts["temperatures_c"])["gpu"] == 45
    assert all(float(reading["gpu_power_w"]) == 123 for reading in samples["facts_during"])


def test_a_gpu_that_was_slowed_down_gives_no_stable_figure(gpu: Farm) -> None:
    done = with_driver(gpu, STAND_IN_REASONS="0x40").run("bench", "--device", "gpu0", "digits", "--standard", "--json")
    (run,) = done.json["runs"]
    assert run["verdict"] == "THROTTLED" and "temperature, by the hardware" in run["reason"]


def test_profile_times_each_kernel_by_events_of_the_gpu(gpu: Farm) -> None:
    done = gpu.run("profile", "--device", "gpu0", "digits", "--json")
    assert done.code == 0, done.err
    steps = {step["kernel"]: step["seconds"] for step in done.json["steps"]}
    assert {"fused_matmul_add4", "max_pool2d"} <= set(steps) and min(steps.values()) > 0
    assert done.json["roof"] is None


def test_doctor_names_the_gpu_its_driver_and_its_memory(gpu: Farm) -> None:
    done = gpu.run("doctor", "--device", "gpu0", "--json")
    assert done.code == 0, done.out + done.err
    (examined,) = done.json["examined"]
    found = {layer["layer"]: layer["detail"] for layer in examined["layers"]}
    assert found["GPU"] == "Stand-in GPU 0, sm_80, driver 580.65.06, CUDA 13.0, 1.0 of 1.0 GiB free, 123 W"
    assert "digits is right" in found["answer"]


@pytest.mark.parametrize(
    ("settings", "gpu_number", "what", "fix"),
    [
        ({"STAND_IN_FAIL": "no-device"}, 0, "gpu0 has no GPU that its driver can use", "nvidia-smi -L"),
        ({"STAND_IN_VERSION": "12040"}, 0, "the NVIDIA driver of gpu0 is too old", "580"),
        ({}, 2, "gpu0 has no GPU 2", "`gpu`"),
        ({"STAND_IN_FAIL": "image"}, 0, "gpu0 refuses the library", "profile"),
        ({"STAND_IN_FAIL": "launch"}, 0, "the GPU of gpu0 failed", "nvidia-smi"),
        ({"STAND_IN_FAIL": "fault"}, 0, "the GPU of gpu0 failed", "nvidia-smi"),
        ({"STAND_IN_MEMORY": "4096"}, 0, "gpu0 has not the memory for that", "batch"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_fails_on_the_gpu_is_one_error_with_its_cure(
    gpu: Farm, settings: dict[str, str], gpu_number: int, what: str, fix: str
) -> None:
    gpu.configure(DEVICE.format(url="local:", gpu=gpu_number) + DIGITS + QUICK)
    done = with_driver(gpu, **settings).run("deploy", "--device", "gpu0", "digits")
    assert done.code == 5 if "refuses" not in what else done.code == 4, done.err
    assert what in done.error["error"] and fix in done.error["fix"], done.err


def test_a_profile_for_another_generation_is_refused_before_anything_is_sent(gpu: Farm) -> None:
    gpu.configure(DEVICE.format(url="local:", gpu=0).replace("sm80", "sm90") + DIGITS + QUICK)
    done = gpu.run("doctor", "--device", "gpu0", "--json")
    fault = done.json["examined"][0]["layers"][-1]
    assert fault["layer"] == "GPU" and "cuda-sm80" in fault["error"]["fix"]
    assert not (gpu.folder / "driver.log").exists(), "the driver's log has copies and launches"


def test_a_kernel_that_never_ends_is_ended_with_its_process_at_the_deadline(gpu: Farm) -> None:
    done = with_driver(gpu, STAND_IN_FAIL="hang").run("deploy", "--device", "gpu0", "digits", "--deadline", SESSION_S)
    assert done.code == 6, done.err
    gpu.assert_nothing_is_left()
    assert gpu.run("deploy", "--device", "gpu0", "digits").code == 0


def test_a_client_that_vanishes_while_a_kernel_runs_leaves_the_gpu_free(
    gpu: Farm, agents: Callable[[str], Path], nvidia: dict[str, str]
) -> None:
    env = {**gpu.env, "STAND_IN_FAIL": "hang"}
    work = gpu.folder / "agent-work"
    words = [agents("x86_64-cuda"), "--port", "0", "--work-dir", work]
    with server(gpu.folder, *words, says=rf"listening on {HOST}:(\d+)", env=env) as port:
        gpu.configure(DEVICE.format(url=f"rpc://{HOST}:{port}", gpu=0) + DIGITS + QUICK)
        client = gpu.start("deploy", "--device", "gpu0", "digits", "--deadline", "60")
        wait_until(lambda: list(work.glob("farm-session-*")), "a session")
        wait_until(lambda: gpu.processes_like(r"farm deploy"), "the client")
        client.says("first inference|running")
        client.child.kill()
        wait_until(lambda: not list(work.glob("farm-session-*")), "the end of the session", 30)


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
        fault = done.json["examined"][0]["layers"][-1]
        assert (fault["layer"], fault["error"]["what"]) == ("GPU", "gpu0 has no NVIDIA driver")
        assert "libcuda.so.1" in fault["error"]["why"]


def test_the_agent_for_cpus_says_that_it_is_one(farm: Farm, agents: Callable[[str], Path]) -> None:
    words = [agents("x86_64"), "--port", "0", "--work-dir", farm.folder / "agent-work"]
    with server(farm.folder, *words, says=rf"listening on {HOST}:(\d+)", env=farm.env) as port:
        farm.configure(DEVICE.format(url=f"rpc://{HOST}:{port}", gpu=0) + DIGITS + QUICK)
        done = farm.run("doctor", "--device", "gpu0", "--json")
        fault = done.json["examined"][0]["layers"][-1]
        assert fault["error"]["what"] == "gpu0 has the agent for CPUs" and "farm agent --cuda" in fault["error"]["fix"]
