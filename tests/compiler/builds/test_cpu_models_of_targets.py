"""What is known of a target's core, and that there is code for every kind of board that farm
knows.
"""

from __future__ import annotations

import json
import platform

import numpy as np
import pytest
import tvm
from relax_models import HOST, module
from tvm import relax

from farm.compiler.lower import lower_module, resolve_target
from farm.compiler.target.cpu_model import cpu_model_of
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


def test_native_is_the_cpu_of_this_machine():
    resolved = resolve_target(HOST)
    assert resolved.attrs["mcpu"] == tvm.get_global_func("target.llvm_get_system_cpu")()


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
        module({"x": np.zeros((1, 3, 9, 9), "float32")}, network, weights),
        list(weights.values()),
        target,
        {},
    )
    assert {kernel.rule for kernel in lowered.kernels} == {
        "convolution",
        "depthwise",
        "dense",
        "softmax",
        "general",
    }
    assert not any(kernel.note for kernel in lowered.kernels)
    assert tvm.compile(lowered.module, target=target)


def test_another_linker_or_name_is_no_other_target():
    plain = Profile("a", {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "")
    other = Profile("b", plain.target, "", linker=("gcc",))
    assert str(resolve_target(plain)) == str(resolve_target(other))
