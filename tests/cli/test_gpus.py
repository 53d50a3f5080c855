"""A device that is an NVIDIA GPU, by the real agent and a stand-in for NVIDIA's driver: the kernels are TVM's, compiled for this machine's
CPU. What only a GPU can show is in tools/bench-gpu."""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from farm_running import DIGITS, HOST, QUICK, Done, Farm, server
from waiting import LIMIT_S, patient, wait_until

from farm.store import cache_root

STAND_IN = Path(__file__).with_name("stand_in")
sys.path.insert(0, str(STAND_IN))

import kernels  # noqa: E402

DEVICE = """
[devices.{name}]
profile = "{profile}"
url = "{url}"
options = {{ {options} }}
"""
IMAGE = Path(__file__).parents[2] / "docs" / "digit.png"
# How the stand-in is to fail, the number of the GPU, and the error and its cure.
FAULTS = {
    "no-device": ({"STAND_IN_FAIL": "no-device"}, 0, "no-device has no GPU that its driver can use", "nvidia-smi -L"),
    "old": ({"STAND_IN_VERSION": "12040"}, 0, "the NVIDIA driver of old is too old", "580"),
    "third": ({}, 2, "third has no GPU 2", "`gpu`"),
    "image": ({"STAND_IN_FAIL": "image"}, 0, "image refuses the library", "profile"),
    "launch": ({"STAND_IN_FAIL": "launch"}, 0, "the GPU of launch failed", "nvidia-smi"),
    "fault": ({"STAND_IN_FAIL": "fault"}, 0, "the GPU of fault failed", "nvidia-smi"),
    "small": ({"STAND_IN_MEMORY": "4096"}, 0, "small has not the memory for that", "batch"),
}


def device(name: str = "gpu0", url: str = "local:", profile: str = "cuda-sm80", options: str = "gpu = 0") -> str:
    return DEVICE.format(name=name, url=url, profile=profile, options=options)


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
    if platform.machine() != "x86_64":
        pytest.skip("the stand-in is for x86-64")
    folder = tmp_path_factory.mktemp("nvidia")
    (folder / "devices.toml").write_text(device() + DIGITS)
    return recorded(folder, cache, "digits")


def recorded(folder: Path, cache: Path, model: str) -> dict[str, str]:
    """The environment in which the stand-in has the kernels of a model of the folder's devices.toml, and nothing else."""
    record = [sys.executable, STAND_IN / "record.py", cache, folder / "devices.toml", model, folder / "kernels.cu"]
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
    farm.configure(device() + DIGITS + QUICK)
    farm.environment = {**nvidia, "STAND_IN_LOG": str(farm.folder / "driver.log")}
    yield farm
    farm.assert_nothing_is_left()


def layers(done: Done) -> list[dict[str, Any]]:
    return next(one["layers"] for one in done.json["examined"] if one["name"] == "gpu0")


@contextlib.contextmanager
def agent(farm: Farm, agents: Callable[[str], Path], arch: str = "x86_64-cuda", **settings: str) -> Iterator[str]:
    """The url of an agent whose driver, where it has one, is set like this."""
    work = farm.folder / f"agent-{len(list(farm.folder.glob('agent-*')))}"
    words = [agents(arch), "--port", "0", "--work-dir", work]
    with server(farm.folder, *words, says=rf"listening on {HOST}:(\d+)", env={**farm.env, **settings}) as port:
        yield f"rpc://{HOST}:{port}"


def test_deploy_runs_the_kernels_on_the_gpu_and_the_answer_is_right(gpu: Farm) -> None:
    done = gpu.run("deploy", "--device", "gpu0", "digits", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["samples"]["agreement"]["right"]
    log = (gpu.folder / "driver.log").read_text()
    assert re.search(r"launch fused_matmul_add4_kernel \d+,1,1 10,16,1", log), log
    assert "to device" in log and "to host" in log


def test_a_release_is_run_by_no_device_of_the_other_kind_that_shares_its_store(gpu: Farm, agents: Callable[[str], Path]) -> None:
    agents("x86_64")
    store = f'store = "{gpu.folder}/store"'
    gpu.configure(device(options=store) + device("cpu", profile="x86", options=store) + DIGITS + QUICK)
    assert gpu.run("deploy", "--device", "gpu0", "digits").code == 0
    assert "release 1 of" in gpu.run("run", "--device", "gpu0", "digits", "--input", IMAGE).err

    def refused(name: str) -> dict[str, str]:
        done = gpu.run("run", "--device", name, "digits", "--input", IMAGE)
        assert done.code == 5, done.err
        return done.error

    error = refused("cpu")
    assert error["error"] == "release 1 of digits is for cuda-sm80, a GPU" and "cpu computes on its CPU (x86)" in error["why"]
    assert "farm deploy --device cpu digits" in error["fix"]
    (manifest,) = (gpu.folder / "store").rglob("1.json")
    body = json.loads(manifest.read_text())
    del body["target"]  # as a farm left it that had no GPUs
    manifest.write_text(json.dumps(body))
    error = refused("gpu0")
    assert error["error"].endswith("a CPU") and "gpu0 computes on its GPU (cuda-sm80)" in error["why"]


def test_bench_counts_copies_apart_and_reads_the_gpu_s_facts(gpu: Farm) -> None:
    gpu.environment = {**gpu.environment, "STAND_IN_REASONS": "0x40"}
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
    assert json.loads(facts["gpu_slowed_by"]) == ["temperature, by the hardware"]
    assert all(float(reading["gpu_power_w"]) == 123 for reading in samples["facts_during"])


def test_profile_times_each_kernel_by_events_of_the_gpu(gpu: Farm) -> None:
    done = gpu.run("profile", "--device", "gpu0", "digits", "--json")
    assert done.code == 0, done.err
    steps = {step["kernel"]: step["seconds"] for step in done.json["steps"]}
    assert {"fused_matmul_add4", "max_pool2d"} <= set(steps) and min(steps.values()) > 0
    assert done.json["roof"] is None


def test_doctor_names_the_gpu_its_driver_and_its_memory(gpu: Farm) -> None:
    done = gpu.run("doctor", "--device", "gpu0", "--json")
    assert done.code == 0, done.out + done.err
    found = {layer["layer"]: layer["detail"] for layer in layers(done)}
    assert found["GPU"] == "Stand-in GPU 0, sm_80, driver 580.65.06, CUDA 13.0, 1.0 of 1.0 GiB free, 123 W"
    assert "digits is right" in found["answer"]


def test_what_fails_on_a_gpu_is_one_error_with_its_cure(gpu: Farm, agents: Callable[[str], Path]) -> None:
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(agent(gpu, agents, **settings)) for name, (settings, *_) in FAULTS.items()}
        tables = [device(name, url, options=f"gpu = {FAULTS[name][1]}") for name, url in urls.items()]
        gpu.configure("".join(tables) + DIGITS + QUICK)
        done = gpu.run("deploy", "--all", "digits", "--json")
    failures = {run["device"]: run["failure"] for run in done.json["runs"]}
    assert set(failures) == set(FAULTS)
    for name, (_, _, what, fix) in FAULTS.items():
        assert failures[name]["what"] == what and fix in failures[name]["fix"], failures[name]
        assert failures[name]["exit_code"] == (4 if name == "image" else 5), failures[name]


def test_a_profile_for_another_generation_is_refused_before_anything_is_sent(gpu: Farm) -> None:
    gpu.configure(device(profile="cuda-sm90") + DIGITS + QUICK)
    done = gpu.run("doctor", "--device", "gpu0", "--json")
    fault = layers(done)[-1]
    assert fault["layer"] == "GPU" and "cuda-sm80" in fault["error"]["fix"]
    assert not (gpu.folder / "driver.log").exists(), "the driver's log has copies and launches"


def test_a_kernel_that_never_ends_is_ended_with_its_process_at_the_deadline(gpu: Farm) -> None:
    gpu.environment = {**gpu.environment, "STAND_IN_FAIL": "hang"}
    done = gpu.run("deploy", "--device", "gpu0", "digits", "--deadline", str(patient(20)))
    assert done.code == 6, done.err
    assert "hang" in (gpu.folder / "driver.log").read_text(), "the deadline came before the kernel"
    gpu.assert_nothing_is_left()


def test_a_client_that_vanishes_while_a_kernel_runs_leaves_the_gpu_free(gpu: Farm, agents: Callable[[str], Path]) -> None:
    with agent(gpu, agents, STAND_IN_FAIL="hang") as url:
        gpu.configure(device(url=url) + DIGITS + QUICK)
        before = set(gpu.processes())
        client = gpu.start("deploy", "--device", "gpu0", "digits", "--deadline", str(LIMIT_S))
        log = gpu.folder / "driver.log"
        wait_until(lambda: (log.exists() and "hang" in log.read_text()) or client.child.poll() is not None, "the kernel")
        assert client.child.poll() is None, client.said
        (session,) = set(gpu.processes_like("farm-agent.*--port")) - before
        assert list(gpu.folder.glob("agent-0/farm-session-*"))
        client.send(signal.SIGKILL)
        client.end()
        wait_until(lambda: session not in gpu.processes(), "the end of the session's process", patient(30))
        wait_until(lambda: not list(gpu.folder.glob("agent-0/farm-session-*")), "the end of its folder")
    assert gpu.run("compile", "digits", "--profile", "cuda-sm80").code == 0, "which sweeps what the client could not"


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
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


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
def test_an_agent_without_a_driver_says_so_in_its_session(farm: Farm, agents: Callable[[str], Path]) -> None:
    """As a board would whose driver is missing: it has the agent for GPUs, and is reached over a network."""
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
        assert fault["error"]["what"] == "gpu0 has the agent for CPUs" and "farm agent --cuda" in fault["error"]["fix"]
