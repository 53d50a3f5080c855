"""What is built for GPUs on a machine without one: device code for the architecture asked for, and
nothing of its source.
"""

from __future__ import annotations

import re

import elf_headers
import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
import tvm_script
from device_code import HOSTS, SHIPPED, binaries, disassembled
from relax_models import const, module, target
from tvm import relax
from tvm.script import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.compiler import relax_pipeline
from farm.compiler.artifact import KIND
from farm.compiler.build import find_or_build_model
from farm.compiler.codegen import nvrtc
from farm.compiler.diagnostics import roofline_probe
from farm.compiler.gpu import short_reductions
from farm.compiler.lower import lower_module, resolve_target
from farm.errors import BuildError
from farm.types import PreparedModel, Profile

OP = relax.op


def network(emit, x, w, d, v):
    """An ordinary and a depthwise convolution, pooling, normalisation over the channels,
    attention's products, softmax, a dense layer.
    """
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1, 1, 1)))))
    y = emit(
        OP.nn.max_pool2d(emit(OP.nn.conv2d(y, d, padding=(1, 1, 1, 1), groups=32)), (2, 2), (2, 2))
    )
    rows = emit(OP.reshape(emit(OP.permute_dims(y, [0, 2, 3, 1])), (1, 16, 32)))
    rows = emit(OP.nn.layer_norm(rows, const(np.ones(32)), const(np.zeros(32)), [-1]))
    scores = emit(OP.nn.softmax(emit(OP.matmul(rows, emit(OP.permute_dims(rows, [0, 2, 1]))))))
    return emit(OP.matmul(emit(OP.mean(emit(OP.matmul(scores, rows)), [1])), v))


@pytest.fixture
def prepared(kept) -> PreparedModel:
    numbers = np.random.default_rng(0)
    shapes = {"w": (32, 16, 3, 3), "d": (32, 1, 3, 3), "v": (32, 10)}
    weights = {
        name: numbers.standard_normal(shape).astype("float32") for name, shape in shapes.items()
    }
    return kept({"x": np.zeros((1, 16, 8, 8), "float32")}, network, weights)


@pytest.mark.parametrize("name", HOSTS)
def test_a_library_holds_device_code_for_the_architecture_and_no_source(
    name, context, prepared, cache, tmp_path
):
    profile = SHIPPED[name]
    artifact = find_or_build_model(context, prepared, profile, cache)
    assert elf_headers.read(artifact.library).machine == HOSTS[name]
    assert not [
        word
        for word in (b"__global__", b"__launch_bounds__", b"__restrict__")
        if word in artifact.library.read_bytes()
    ]
    (binary,) = binaries(artifact.library)
    text = disassembled(binary, tmp_path)
    assert f".target\t{profile.target['arch']}\n" in text
    assert [
        kernel.name for kernel in artifact.kernels if f".text.{kernel.name}_kernel" not in text
    ] == []
    assert "FFMA" in text


def test_every_kernel_of_the_network_has_a_schedule_that_is_named(context, prepared, cache):
    rules = {
        kernel.rule
        for kernel in find_or_build_model(context, prepared, SHIPPED["cuda-sm90"], cache).kernels
    }
    assert {"matmul", "short sums", "fallback"} < rules
    assert "none" not in rules


def bound(kernel: tvm.tirx.PrimFunc) -> tuple[int, int]:
    """Blocks and threads of a block."""
    extents = {"blockIdx": 1, "threadIdx": 1}

    def count(loop):
        if loop.thread_binding is not None:
            extents[loop.thread_binding.thread_tag.partition(".")[0]] *= int(loop.extent)

    tvm_ffi.structural_walk(kernel.body, [(tvm.tirx.For, count)])
    return extents["blockIdx"], extents["threadIdx"]


@pytest.mark.parametrize(
    ("body", "weights", "results"),
    [
        (
            lambda emit, x, w: emit(
                OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1, 1, 1), groups=32)))
            ),
            {"w": (32, 1, 3, 3)},
            32 * 20 * 20,
        ),
        (lambda emit, x: emit(OP.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1))), {}, 32 * 10 * 10),
        (lambda emit, x: emit(OP.nn.avg_pool2d(x, (4, 4), (4, 4))), {}, 32 * 5 * 5),
    ],
    ids=["depthwise", "pool", "mean"],
)
def test_each_result_of_a_window_is_a_thread_s_whatever_is_computed_of_it(body, weights, results):
    made = {name: np.ones(shape, "float32") for name, shape in weights.items()}
    low = lower_module(
        module({"x": np.zeros((1, 32, 20, 20), "float32")}, body, made),
        list(made.values()),
        resolve_target(SHIPPED["cuda-sm80"]),
        {},
    )
    (kernel,) = [kernel for kernel in low.kernels if kernel.rule == "short sums"]
    assert bound(low.module[kernel.name]) == (-(-results // 256), 256)


@pytest.mark.parametrize(("side", "short"), [(8, True), (9, False)])
def test_a_window_of_many_pixels_is_not_summed_by_one_thread(side, short):
    image = {"x": np.zeros((1, 32, 2 * side, 2 * side), "float32")}
    given = module(image, lambda emit, x: emit(OP.nn.avg_pool2d(x, (side, side), (side, side))))
    low = lower_module(given, [], resolve_target(SHIPPED["cuda-sm80"]), {})
    assert ("short sums" in {kernel.rule for kernel in low.kernels}) == short


def test_a_block_has_no_more_threads_than_a_gpu_takes():
    small = Profile("small", {**SHIPPED["mali"].target, "max_threads_per_block": 64}, "")
    pool = module(
        {"x": np.zeros((1, 32, 20, 20), "float32")},
        lambda emit, x: emit(OP.nn.avg_pool2d(x, (4, 4), (4, 4))),
    )
    low = lower_module(pool, [], resolve_target(small), {})
    (kernel,) = [kernel for kernel in low.kernels if kernel.rule == "short sums"]
    assert bound(low.module[kernel.name]) == (-(-32 * 5 * 5 // 64), 64)


def test_a_sum_of_which_many_results_are_computed_is_not_computed_again_for_each():
    scale = (const(np.ones(32)), const(np.zeros(32)), [-1])
    network = module(
        {"x": np.zeros((1, 40, 32), "float32")}, lambda emit, x: emit(OP.nn.layer_norm(x, *scale))
    )
    low = lower_module(network, [], resolve_target(SHIPPED["cuda-sm80"]), {})
    assert "short sums" not in {kernel.rule for kernel in low.kernels}


@tvm_script.prim_func(s_tir=True)
def sum_within(x: T.Buffer((8, 16, 32), "float32"), y: T.Buffer((8, 32), "float32")):
    for i, k, j in T.grid(8, 16, 32):
        with T.sblock("sum"):
            vi, vk, vj = T.axis.remap("SRS", [i, k, j])
            with T.init():
                y[vi, vj] = T.float32(0)
            y[vi, vj] = y[vi, vj] + x[vi, vk, vj]


def test_a_sum_whose_steps_are_not_innermost_is_left_to_other_rules():
    assert (
        short_reductions.schedule_short_reduction(sum_within, resolve_target(SHIPPED["cuda-sm80"]))
        is None
    )


def test_architectures_that_cuda_no_longer_builds_are_an_error_that_names_those_it_does(
    context, prepared, cache
):
    with pytest.raises(BuildError, match="code for sm_53 cannot be built") as caught:
        find_or_build_model(context, prepared, SHIPPED["jetson-nano"], cache)
    assert "sm_87" in caught.value.why
    assert "CPU" in caught.value.fix
    assert not (cache / KIND).exists()


def test_without_nvidia_s_compiler_the_error_says_how_to_install_it(
    context, prepared, cache, monkeypatch
):
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BuildError, match="needs NVIDIA's compiler") as caught:
        find_or_build_model(context, prepared, SHIPPED["cuda-sm90"], cache)
    assert "tvm-farm[cuda]" in caught.value.fix


def test_what_nvidia_s_compiler_refuses_is_an_error_in_its_words(
    context, prepared, cache, monkeypatch
):
    compiled = nvrtc._Compiler._compiled
    monkeypatch.setattr(
        nvrtc._Compiler,
        "_compiled",
        lambda compiler, source: compiled(compiler, source + "\nint broken = nowhere;"),
    )
    with pytest.raises(BuildError, match="refuses the code for sm_90") as caught:
        find_or_build_model(context, prepared, SHIPPED["cuda-sm90"], cache)
    assert '"nowhere" is undefined' in caught.value.why


def test_the_compiler_s_version_is_part_of_the_digest(context, prepared, cache, monkeypatch):
    from farm.compiler import build_digests

    before = build_digests.build_inputs_digest_without_records(prepared, SHIPPED["cuda-sm90"])
    monkeypatch.setattr(build_digests, "nvrtc_version", lambda: "12.0")
    assert (
        build_digests.build_inputs_digest_without_records(prepared, SHIPPED["cuda-sm90"]) != before
    )


@pytest.mark.parametrize(("padding", "more"), [((0, 0, 0, 0), (0, 0)), ((1, 0, 1, 2), (1, 0))])
def test_a_transposed_convolution_is_the_ordinary_one_that_it_is_told_as(padding, more):
    """By its loops, run on this machine; as torch does it."""
    numbers = np.random.default_rng(1)
    x, w = (
        numbers.standard_normal(shape).astype("float32") for shape in ((1, 3, 5, 4), (3, 6, 3, 3))
    )

    def network(emit, x, w):
        return emit(
            OP.nn.conv2d_transpose(x, w, strides=(2, 2), padding=padding, output_padding=more)
        )

    with target():
        loops = relax_pipeline.simplify_legalize_and_fuse(
            relax_pipeline.bind_weights(module({"x": x}, network, {"w": w}), [w]), None
        )
    machine = relax.VirtualMachine(tvm.compile(loops, target=target()), tvm.cpu())
    whole = torch.nn.functional.conv_transpose2d(
        torch.tensor(x), torch.tensor(w), stride=2, output_padding=more
    ).numpy()
    top, left, bottom, right = padding
    expected = whole[:, :, top : whole.shape[2] - bottom, left : whole.shape[3] - right]
    assert np.abs(machine["main"](tvm.runtime.tensor(x)).numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("groups", [1, 2])
def test_any_transposed_convolution_has_code(groups, context, kept, cache):
    def network(emit, x, v, w):
        grown = emit(OP.nn.conv2d_transpose(x, w, strides=2, dilation=(1, 2), groups=groups))
        return emit(OP.nn.conv2d_transpose(grown, v))

    inputs, weights = (
        {"x": np.zeros((1, 4, 4, 4), "float32"), "v": np.ones((4, 2, 2, 2), "float32")},
        {"w": np.ones((4, 4 // groups, 2, 2), "float32")},
    )
    assert find_or_build_model(
        context, kept(inputs, network, weights), SHIPPED["cuda-sm90"], cache
    ).nbytes


@pytest.mark.parametrize("name", ["mali", "adreno"])
def test_opencl_code_is_built_for_an_arm_host(name, context, prepared, cache):
    artifact = find_or_build_model(context, prepared, SHIPPED[name], cache)
    assert elf_headers.read(artifact.library).machine == HOSTS["jetson-orin-nano"]
    assert b"__kernel" in artifact.library.read_bytes()


def test_a_model_without_kernels_is_built_too(context, kept, cache):
    model = kept({"x": np.zeros((2, 3), "float32")}, lambda emit, x: emit(OP.reshape(x, (6,))))
    assert find_or_build_model(context, model, SHIPPED["cuda-sm90"], cache).nbytes


def test_a_kind_of_target_that_farm_does_not_know_is_an_error_that_names_those_it_does(
    context, prepared, cache
):
    with pytest.raises(BuildError, match="code for hexagon cannot be built") as caught:
        find_or_build_model(
            context, prepared, Profile("phone", {"kind": "hexagon"}, "hexagon"), cache
        )
    assert "cuda" in caught.value.why


@pytest.mark.parametrize("name", ["cuda-sm90", "jetson-orin-nano"])
def test_the_probes_keep_a_gpu_busy_with_what_they_measure(name, context, cache, tmp_path):
    """Multiply-adds from registers, unrolled, and the widest loads and stores."""
    profile = SHIPPED[name]
    (binary,) = binaries(roofline_probe.build_probe_library(context, profile, cache).library)
    kernels = {
        part.split()[0]: part
        for part in disassembled(binary, tmp_path).split("//--------------------- .text.")[1:]
    }
    arithmetic, memory = (
        kernels["farm_probe_arithmetic_kernel"],
        kernels["farm_probe_memory_kernel"],
    )
    inside = arithmetic[: arithmetic.rindex("FFMA")]
    inside = inside[inside.index("FFMA") :]
    assert inside.count("FFMA") >= 16 and inside.count("FFMA") > 0.9 * inside.count(";")
    assert "LDG.E.128" in memory and "STG.E.128" in memory
    assert not re.search(r"LDG\.E(?!\.128)", memory) and not re.search(r"STG\.E(?!\.128)", memory)
