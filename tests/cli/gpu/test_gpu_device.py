"""A device that is an NVIDIA GPU, by the real agent and a stand-in for NVIDIA's driver: the kernels
are TVM's, compiled for this machine's
CPU. What only a GPU can show is in tools/bench-gpu."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from farm_processes import DIGITS, QUICK, Farm
from gpu_stand_in_devices import (
    agent,
    cache,
    compile_cuda_for_cpu,
    device,
    farm,
    layers,
    recorded,
)
from timeouts import LIMIT_S, patient, wait_until
from tvm import relax

from farm import transports
from farm.compiler.codegen.executable import compile_executable
from farm.compiler.codegen.link import fcompile_for_profile
from farm.compiler.codegen.nvrtc import use_nvrtc_for_cuda
from farm.compiler.diagnostics import roofline_probe, roofline_probe_gpu
from farm.compiler.lower import resolve_target
from farm.config import load_fleet
from farm.executor.loading import read_device_facts, tensor_device
from farm.executor.session_gpu import use_gpu_in_session
from farm.rpc.value_types import RemoteDevice
from farm.rpc.virtual_machine import RemoteVirtualMachine
from farm.store import Store, user_cache_dir
from farm.transports import Link
from farm.types import Device

__all__ = ["cache", "farm"]  # fixtures
IMAGE = Path(__file__).parents[3] / "docs" / "digit.png"
# How the stand-in is to fail, the number of the GPU, and the error and its cure.
FAULTS = {
    "no-device": (
        {"STAND_IN_FAIL": "no-device"},
        0,
        "no-device has no GPU that its driver can use",
        "nvidia-smi -L",
    ),
    "old": ({"STAND_IN_VERSION": "12040"}, 0, "the NVIDIA driver of old is too old", "580"),
    "third": ({}, 2, "third has no GPU 2", "`gpu`"),
    "image": ({"STAND_IN_FAIL": "image"}, 0, "image refuses the library", "profile"),
    "launch": ({"STAND_IN_FAIL": "launch"}, 0, "the GPU of launch failed", "nvidia-smi"),
    "fault": ({"STAND_IN_FAIL": "fault"}, 0, "the GPU of fault failed", "nvidia-smi"),
    "small": ({"STAND_IN_MEMORY": "4096"}, 0, "not enough memory on small", "batch"),
}


@pytest.fixture(scope="module")
def nvidia(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the stand-in is found; digits is built for it."""
    if platform.machine() != "x86_64":
        pytest.skip("the stand-in is for x86-64")
    folder = tmp_path_factory.mktemp("nvidia")
    (folder / "devices.toml").write_text(device() + DIGITS)
    return recorded(folder, cache, "digits")


@pytest.fixture
def gpu(farm: Farm, nvidia: dict[str, str]) -> Iterator[Farm]:
    """A farm with the device gpu0 on this machine."""
    farm.configure(device() + DIGITS + QUICK)
    farm.environment = {**nvidia, "STAND_IN_LOG": str(farm.folder / "driver.log")}
    yield farm
    farm.assert_nothing_is_left()


def test_deploy_runs_the_kernels_on_the_gpu_and_the_answer_is_right(gpu: Farm) -> None:
    done = gpu.run("deploy", "--device", "gpu0", "digits", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["samples"]["agreement"]["right"]
    log = (gpu.folder / "driver.log").read_text()
    assert re.search(r"launch fused_matmul_add4_kernel \d+,1,1 10,16,1", log), log
    assert "to device" in log and "to host" in log


def test_a_release_is_run_by_no_device_of_the_other_kind_that_shares_its_store(
    gpu: Farm, agents: Callable[[str], Path]
) -> None:
    agents("x86_64")
    store = f'store = "{gpu.folder}/store"'
    gpu.configure(
        device(options=store) + device("cpu", profile="x86", options=store) + DIGITS + QUICK
    )
    assert gpu.run("deploy", "--device", "gpu0", "digits").code == 0
    assert "release 1 of" in gpu.run("run", "--device", "gpu0", "digits", "--input", IMAGE).err

    def refused(name: str) -> dict[str, str]:
        done = gpu.run("run", "--device", name, "digits", "--input", IMAGE)
        assert done.code == 5, done.err
        return done.error

    error = refused("cpu")
    assert (
        error["error"] == "release 1 of digits is for cuda-sm80, a GPU"
        and "cpu computes on its CPU (x86)" in error["why"]
    )
    assert "farm deploy --device cpu digits" in error["fix"]
    (manifest,) = (gpu.folder / "store").rglob("1.json")
    body = json.loads(manifest.read_text())
    del body["target"]  # as a farm left it that had no GPUs
    manifest.write_text(json.dumps(body))
    error = refused("gpu0")
    assert (
        error["error"].endswith("a CPU") and "gpu0 computes on its GPU (cuda-sm80)" in error["why"]
    )


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
    assert (
        facts["gpu"] == "Stand-in GPU 0"
        and facts["gpu_driver"] == "580.65.06"
        and facts["gpu_architecture"] == "sm_80"
    )
    assert json.loads(facts["temperatures_c"])["gpu"] == 45
    assert json.loads(facts["gpu_slowed_by"]) == ["temperature, by the hardware"]
    assert all(float(reading["gpu_power_w"]) == 123 for reading in samples["facts_during"])


def deployed(gpu: Farm, **settings: str) -> tuple[dict[str, Any], list[str]]:
    """What is known of the answer to the example, and the driver's log."""
    gpu.environment = {**gpu.environment, **settings}
    log = gpu.folder / "driver.log"
    log.unlink(missing_ok=True)
    done = gpu.run("deploy", "--device", "gpu0", "digits", "--json")
    assert done.code == 0, done.err
    return done.json["runs"][0]["samples"], log.read_text().splitlines()


def test_inferences_are_launched_as_one_graph_that_reads_each_new_input(gpu: Farm) -> None:
    done = gpu.run("bench", "--device", "gpu0", "digits", "--json")
    assert done.code in (0, 1), done.err
    samples, log = (
        done.json["runs"][0]["samples"],
        (gpu.folder / "driver.log").read_text().splitlines(),
    )
    steps = int(samples["facts_after"]["gpu_graph_steps"])
    first = log.index("graph")
    singly = [line for line in log[:first] if line.startswith("launch")]
    assert samples["facts_after"]["gpu_launches"] == "one graph" and steps > 3
    assert len(singly) == 2 * steps, "the first inference, and one before it is recorded"
    assert not [line for line in log[first:] if line.startswith("launch")]
    assert log.count("graph") > 25  # the answer, the samples of the latency, and 20 images
    assert samples["correct"] >= 19 and samples["total"] == 20
    gpu.configure(device(options="gpu = 0, graphs = false") + DIGITS + QUICK)
    plain, log = deployed(gpu)
    assert "graph" not in log and "gpu_launches" not in plain["facts_after"]
    assert plain["agreement"] == samples["agreement"]


def test_where_the_driver_makes_no_graphs_kernels_are_launched_one_by_one(
    gpu: Farm, nvidia: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    samples, log = deployed(gpu, STAND_IN_FAIL="capture")
    assert samples["facts_after"]["gpu_launches"].startswith(
        "one by one: E_GPU: the GPU failed: cuStreamBeginCapture"
    )
    assert "graph" not in log and samples["agreement"]["right"]
    old = compile_cuda_for_cpu.driver(tmp_path_factory.mktemp("old-driver"), "-DWITHOUT_GRAPHS")
    samples, log = deployed(gpu, STAND_IN_FAIL="", LD_LIBRARY_PATH=str(old))
    assert (
        samples["facts_after"]["gpu_launches"] == "one by one: libcuda.so.1 has no cuGraphDestroy"
    )
    assert "graph" not in log and samples["agreement"]["right"]


GPU = RemoteDevice(2)


@contextlib.contextmanager
def machine(gpu: Farm, url: str, library: str) -> Iterator[tuple[RemoteVirtualMachine, Link]]:
    """A library of the farm's folder in a machine whose inferences can be recorded."""
    there = Device("gpu0", load_fleet().profile("cuda-sm80"), url)
    with transports.open(there, None, gpu.folder, LIMIT_S) as link:
        use_gpu_in_session(link, there)
        link.session.upload(gpu.folder / library, library)
        yield (
            RemoteVirtualMachine(
                link.call("farm.gpu.machine", link.session.load_module(library)),
                tensor_device(there),
            ),
            link,
        )


def test_a_graph_reads_inputs_where_the_first_lay_and_goes_with_their_shape(
    gpu: Farm, agents: Callable[[str], Path]
) -> None:
    builder, (_, copy), rows = (
        relax.BlockBuilder(),
        roofline_probe_gpu.probe_kernels(roofline_probe.BLOCK_BYTES),
        tvm.tirx.Var("rows", "int64"),
    )
    kind = relax.TensorType((rows, roofline_probe.BLOCK_BYTES // 4), "float32")
    given, name = (
        relax.Var("given", kind),
        builder.add_func(
            copy.with_attr("global_symbol", roofline_probe.MEMORY), roofline_probe.MEMORY
        ),
    )
    with builder.function("main", [given]):
        builder.emit_func_output(builder.emit(relax.call_tir(name, [given], kind)))
    profile = load_fleet().profile("cuda-sm80")
    with use_nvrtc_for_cuda(resolve_target(profile), Store(user_cache_dir())):
        made = compile_executable(builder.finalize(), resolve_target(profile))
    made.export_library(
        str(gpu.folder / "copies.so"),
        fcompile=fcompile_for_profile(profile),
        workspace_dir=str(gpu.folder),
    )
    with agent(gpu, agents) as url, machine(gpu, url, "copies.so") as (copier, link):

        def answer(value: float, count: int) -> tuple[set[float], int]:
            sent = np.full((count, roofline_probe.BLOCK_BYTES // 4), value, "float32")
            copier.set_input("main", link.session.tensor(sent, GPU))
            copier.invoke_stateful("main")
            (found,) = copier.outputs("main")
            return set(found.flat), len(found)

        assert answer(1, 2) == ({1}, 2)
        copier.module.function("record")("main")
        assert (
            read_device_facts(link)["gpu_launches"],
            read_device_facts(link)["gpu_graph_steps"],
        ) == (
            "one graph",
            "1",
        )
        assert answer(2, 2) == ({2}, 2) and read_device_facts(link)["gpu_launches"] == "one graph"
        assert answer(3, 3) == ({3}, 3)
        assert (
            read_device_facts(link)["gpu_launches"]
            == "one by one: its inputs have changed their shapes since it was recorded"
        )


def test_an_inference_that_reads_back_on_its_way_is_no_graph(
    gpu: Farm, agents: Callable[[str], Path]
) -> None:
    """The host would see what was computed when it was recorded, ever after."""
    builder, given = relax.BlockBuilder(), relax.Var("given", relax.TensorType((2,), "int64"))
    with builder.function("main", [given]):
        builder.emit_func_output(builder.emit(relax.op.tensor_to_shape(given)))
    relax.build(builder.finalize(), tvm.target.Target("llvm")).export_library(
        str(gpu.folder / "reads.so")
    )
    with agent(gpu, agents) as url, machine(gpu, url, "reads.so") as (reader, link):
        reader.set_input("main", link.session.tensor(np.array([2, 3]), GPU))
        reader.module.function("record")("main")
        assert (
            read_device_facts(link)["gpu_launches"]
            == "one by one: an inference copies to the host on its way"
        )


def test_profile_times_each_kernel_by_events_of_the_gpu_under_its_roof(gpu: Farm) -> None:
    gpu.environment = {**gpu.environment, "STAND_IN_MEMORY": str(129 << 20)}
    done = gpu.run("profile", "--device", "gpu0", "digits", "--json")
    assert done.code == 0, done.err
    steps = {step["kernel"]: step["seconds"] for step in done.json["steps"]}
    assert {"fused_matmul_add4", "max_pool2d"} <= set(steps) and min(steps.values()) > 0
    roof = done.json["roof"]
    assert roof["gflops"] > 0 and roof["gbytes_s"] > 0 and "MiB copied" in roof["source"]
    assert all(step["roof_share"] > 0 for step in done.json["steps"] if step["operations"])


def test_bisect_finds_the_kernel_that_is_wrong_on_the_gpu(
    gpu: Farm, nvidia: dict[str, str]
) -> None:
    done = gpu.run("bisect", "--device", "gpu0", "digits")
    assert (
        done.code == 0
        and "no layer of digits differs on gpu0, and the whole answer is right" in done.out
    ), done.out + done.err
    source = Path(nvidia["STAND_IN_KERNELS"]).with_name("kernels.cu").read_text()
    begin = source.index("{", source.rindex(" max_pool2d_kernel("))
    wrong = source[:begin] + source[begin:].replace("max(", "0.5f * max(", 1)
    gpu.environment = {
        **gpu.environment,
        "STAND_IN_KERNELS": str(compile_cuda_for_cpu.built(wrong, gpu.folder)),
    }
    done = gpu.run("bisect", "--device", "gpu0", "digits", "--json")
    assert done.code == 7, done.err
    bad = [layer for layer in done.json["layers"] if layer["bad"]]
    assert (
        [layer["kernel"] for layer in bad] == ["max_pool2d"]
        and bad[0]["alone_db"] < 60
        and not bad[0]["damaged"]
    )
    assert (
        done.json["first_bad"] == done.json["layers"].index(bad[0])
        and not done.json["whole"]["right"]
    )


def test_doctor_names_the_gpu_its_driver_and_its_memory(gpu: Farm) -> None:
    done = gpu.run("doctor", "--device", "gpu0", "--json")
    assert done.code == 0, done.out + done.err
    found = {layer["layer"]: layer["detail"] for layer in layers(done)}
    assert (
        found["GPU"]
        == "Stand-in GPU 0, sm_80, driver 580.65.06, CUDA 13.0, 1.0 of 1.0 GiB free, 123 W"
    )
    assert "digits is right" in found["answer"]


def test_what_fails_on_a_gpu_is_one_error_with_its_cure(
    gpu: Farm, agents: Callable[[str], Path]
) -> None:
    with contextlib.ExitStack() as stack:
        urls = {
            name: stack.enter_context(agent(gpu, agents, **settings))
            for name, (settings, *_) in FAULTS.items()
        }
        tables = [
            device(name, url, options=f"gpu = {FAULTS[name][1]}") for name, url in urls.items()
        ]
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


def test_a_client_that_vanishes_while_a_kernel_runs_leaves_the_gpu_free(
    gpu: Farm, agents: Callable[[str], Path]
) -> None:
    with agent(gpu, agents, STAND_IN_FAIL="hang") as url:
        gpu.configure(device(url=url) + DIGITS + QUICK)
        before = set(gpu.processes())
        client = gpu.start("deploy", "--device", "gpu0", "digits", "--deadline", str(LIMIT_S))
        log = gpu.folder / "driver.log"
        wait_until(
            lambda: (log.exists() and "hang" in log.read_text()) or client.child.poll() is not None,
            "the kernel",
        )
        assert client.child.poll() is None, client.said
        (session,) = set(gpu.processes_like("farm-agent.*--port")) - before
        assert list(gpu.folder.glob("agent-0/farm-session-*"))
        client.send(signal.SIGKILL)
        client.end()
        wait_until(
            lambda: session not in gpu.processes(), "the end of the session's process", patient(30)
        )
        wait_until(
            lambda: not list(gpu.folder.glob("agent-0/farm-session-*")), "the end of its folder"
        )
    assert gpu.run("compile", "digits", "--profile", "cuda-sm80").code == 0, (
        "which sweeps what the client could not"
    )
