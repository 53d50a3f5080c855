"""What is known of a target's core, and that there is code for every kind of board that farm
knows.
"""

from __future__ import annotations

import json
import platform
from dataclasses import replace

import numpy as np
import pytest
import tvm
from relax_models import HOST, module
from tvm import relax

from farm.compiler.cpu.conv_dense_compute import CONVOLUTION
from farm.compiler.cpu.cost_model import gemm_candidates
from farm.compiler.cpu.kernel_config import Workload
from farm.compiler.lower import lower_module, resolve_target
from farm.compiler.target.cpu_model import cpu_model_of, tuning_target_key
from farm.config import profiles
from farm.types import Profile

OP = relax.op


@pytest.mark.parametrize(
    ("target", "name", "lanes", "registers"),
    [
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a53"}, "cortex-a53", 4, 32),
        (
            {"mtriple": "armv7l-linux-gnueabihf", "mcpu": "cortex-a9", "mattr": ["+neon"]},
            "cortex-a9-32bit",
            4,
            16,
        ),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, "neon", 4, 32),
        ({"mtriple": "riscv64-unknown-linux-gnu", "mcpu": "generic-rv64"}, "scalar", 4, 32),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}, "sse", 4, 16),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}, "avx2", 8, 16),
        ({"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4"}, "avx512", 16, 32),
        (
            {"mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4", "mattr": ["-avx512f"]},
            "avx2",
            8,
            16,
        ),
    ],
)
def test_the_vectors_of_a_core(target, name, lanes, registers):
    core = cpu_model_of(tvm.target.Target({"kind": "llvm", **target}))
    assert (core.name, core.lanes, core.registers) == (name, lanes, registers)


@pytest.mark.parametrize(
    ("cpu", "features", "dot_product"),
    [
        ("x86-64-v4", [], "pairs"),
        ("cascadelake", [], "vnni"),
        ("cascadelake", ["-avx512vl"], "pairs"),
        ("x86-64-v3", [], "pairs"),
        ("cortex-a72", [], "smlal"),
        ("cortex-a76", [], "sdot"),
    ],
)
def test_products_of_bytes_are_by_instructions_that_a_core_has(cpu, features, dot_product):
    architecture = "aarch64" if cpu.startswith("cortex") else "x86_64"
    target = {"mtriple": f"{architecture}-linux-gnu", "mcpu": cpu, "mattr": features}
    core = cpu_model_of(tvm.target.Target({"kind": "llvm", **target}))
    assert core.dot_product == dot_product


@pytest.mark.parametrize(
    ("cpu", "like"),
    [
        ("cortex-a35", "cortex-a53"),
        ("cortex-a76ae", "cortex-a76"),
        ("cortex-a77", "cortex-a76"),
        ("cortex-a78c", "cortex-a78"),
        ("carmel", "cortex-a75"),
    ],
)
def test_a_core_without_figures_of_its_own_has_those_of_the_one_that_it_is_like(cpu, like):
    one, other = (
        cpu_model_of(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux", "mcpu": name}))
        for name in (cpu, like)
    )
    assert one.name == like and one.fmas_per_cycle == other.fmas_per_cycle
    assert (one.fma_latency, one.in_order) == (other.fma_latency, other.in_order)


@pytest.mark.parametrize(("cpu", "lanes"), [("znver4", 8), ("znver5", 16), ("x86-64-v4", 16)])
def test_narrow_vectors_are_chosen_where_two_take_as_long_as_a_wide_one(cpu, lanes):
    """24 channels fill three vectors of 8 lanes, and one and a half of 16."""
    core = cpu_model_of(
        tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu})
    )
    few = Workload(CONVOLUTION, (1, 56, 56, 144), (1, 1, 144, 24))
    many = replace(few, weight=(1, 1, 144, 64))
    chosen, other = (
        min(gemm_candidates(one, core), key=lambda candidate: candidate[1])[0]
        for one in (few, many)
    )
    assert (chosen.tile.lanes, other.tile.lanes) == (lanes, 16)


def test_accumulators_leave_registers_for_what_is_multiplied():
    kinds = ("aarch64 cortex-a53", "aarch64 cortex-a72", "x86_64 x86-64-v3", "x86_64 x86-64-v4")
    found = {}
    for triple, cpu in (kind.split() for kind in kinds):
        target = {"kind": "llvm", "mtriple": f"{triple}-linux-gnu", "mcpu": cpu}
        found[cpu] = cpu_model_of(tvm.target.Target(target)).accumulators
    assert found == {"cortex-a53": 16, "cortex-a72": 24, "x86-64-v3": 12, "x86-64-v4": 28}


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("aarch64-linux-gnu cortex-a72", "aarch64 cortex-a72"),
        ("aarch64-linux-gnu cortex-a35", "aarch64 cortex-a35 cortex-a53"),
        ("armv7l-linux-gnueabihf cortex-a9", "armv7l cortex-a9"),
        ("x86_64-linux-gnu znver4", "x86_64 znver4 avx512"),
        ("x86_64-linux-gnu znver4 -avx512f", "x86_64 znver4 avx2"),
        ("x86_64-linux-gnu x86-64-v3", "x86_64 x86-64-v3 avx2"),
    ],
)
def test_records_are_kept_by_the_cpu_and_by_the_vectors_that_it_shows(target, key):
    triple, cpu, *features = target.split()
    made = {"kind": "llvm", "mtriple": triple, "mcpu": cpu, "mattr": features}
    assert tuning_target_key(tvm.target.Target(made)) == key


def test_native_is_the_cpu_of_this_machine_with_the_features_that_a_profile_names():
    resolved = resolve_target(HOST)
    assert resolved.attrs["mcpu"] == tvm.get_global_func("target.llvm_get_system_cpu")()
    without = resolve_target(Profile("host", {**HOST.target, "mattr": ["-avx2"]}, ""))
    assert list(without.attrs["mattr"]) == ["-avx2", *resolved.attrs.get("mattr", ())]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the features are those of an x86 CPU")
def test_what_a_virtual_machine_hides_of_its_cpu_is_not_used(monkeypatch):
    functions = {
        "target.llvm_get_system_cpu": lambda: "skylake-avx512",
        "tvm.codegen.llvm.GetHostCPUFeatures": lambda: {
            "avx512f": 0,
            "avx2": 1,
            "fma": 1,
            "amx-tile": 0,
        },
    }
    original = tvm.get_global_func
    monkeypatch.setattr(
        tvm, "get_global_func", lambda name, *more: functions.get(name) or original(name, *more)
    )
    resolved = resolve_target(HOST)
    assert list(resolved.attrs["mattr"]) == ["-avx512f"]
    assert cpu_model_of(resolved).name == "avx2"


PROFILES = [
    profiles.profile_from_table(name, table)
    for name, table in profiles.built_in_profile_tables().items()
]
CPUS = {
    json.dumps(profile.target, sort_keys=True): profile
    for profile in PROFILES
    if profile.target["kind"] == "llvm"
}


def network(emit, x, w, d, m):
    y = emit(OP.clip(emit(OP.nn.conv2d(x, w, padding=(1, 1, 1, 1))), 0, 6))
    y = emit(OP.nn.silu(emit(OP.nn.conv2d(y, d, strides=(2, 2), padding=(1, 1, 1, 1), groups=16))))
    return emit(OP.nn.softmax(emit(OP.matmul(emit(OP.mean(y, [2, 3])), m))))


@pytest.mark.parametrize("profile", CPUS.values(), ids=lambda profile: profile.name)
def test_there_is_code_by_the_fast_rules_for_every_cpu(profile):
    shapes = {"w": (16, 3, 3, 3), "d": (16, 1, 3, 3), "m": (16, 32)}
    weights = {name: np.ones(shape, "float32") for name, shape in shapes.items()}
    target = resolve_target(profile)
    lowered = lower_module(
        module({"x": np.zeros((1, 3, 19, 19), "float32")}, network, weights),
        list(weights.values()),
        target,
        {},
    )
    rules = {kernel.rule for kernel in lowered.kernels}
    if "depth_first" in rules:  # where both are faster as one kernel
        rules = rules - {"depth_first"} | {"convolution", "depthwise"}
    assert rules == {"convolution", "depthwise", "dense", "softmax", "general"}
    assert not any(kernel.note for kernel in lowered.kernels)
    assert tvm.compile(lowered.module, target=target)


def test_another_linker_or_name_is_no_other_target():
    plain = Profile("a", {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "")
    other = Profile("b", plain.target, "", linker=("gcc",))
    assert str(resolve_target(plain)) == str(resolve_target(other))
