"""Arithmetic in float16 on NVIDIA's GPUs: what is float16, what stays float32, and tensor cores in
the machine code. Nothing of it has run
on a GPU: the numbers are those of the same loops on this machine's CPU."""

from __future__ import annotations

import elf_headers
import numpy as np
import pytest
import tvm
from device_code import HOSTS, SHIPPED, binaries, disassembled
from relax_models import module, target
from tvm import relax

from farm.compiler import relax_pipeline
from farm.compiler.build import find_or_build_model
from farm.compiler.gpu.schedule import schedule_gpu_kernel
from farm.compiler.graph.precision import fp16_arithmetic
from farm.compiler.host_run import flatten_outputs
from farm.compiler.lower import resolve_target
from farm.compiler.parameter_files import SHARD
from farm.types import Profile

OP = relax.op
numbers = np.random.default_rng(5)
X = {"x": numbers.standard_normal((1, 16, 12, 12)).astype("float32")}
WEIGHTS = {
    name: (0.1 * numbers.standard_normal(shape)).astype("float16")
    for name, shape in {"w": (128, 16, 3, 3), "d": (128, 1, 5, 5), "v": (128, 64)}.items()
}


def network(emit, x, w, d, v):
    """An ordinary and a depthwise convolution, a mean of windows, attention's products, a norm, a
    dense layer; its weights halved.
    """
    w, d, v = (emit(OP.astype(one, "float32")) for one in (w, d, v))
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, padding=(1, 1, 1, 1)))))
    y = emit(OP.add(y, emit(OP.nn.conv2d(y, d, padding=(2, 2, 2, 2), groups=128))))
    y = emit(OP.nn.avg_pool2d(y, (2, 2), (2, 2)))
    rows = emit(OP.reshape(emit(OP.permute_dims(y, [0, 2, 3, 1])), (1, 36, 128)))
    rows = emit(
        OP.nn.layer_norm(
            rows, relax.const(np.ones(128, "float32")), relax.const(np.zeros(128, "float32")), [-1]
        )
    )
    scores = emit(OP.nn.softmax(emit(OP.matmul(rows, emit(OP.permute_dims(rows, [0, 2, 1]))))))
    return emit(OP.matmul(emit(OP.mean(emit(OP.matmul(scores, rows)), [1])), v))


def bound() -> tvm.IRModule:
    return relax_pipeline.bind_weights(module(X, network, WEIGHTS), list(WEIGHTS.values()))


def blocks_of(kernel: tvm.tirx.PrimFunc) -> list[tvm.tirx.SBlock]:
    work = tvm.s_tir.Schedule(tvm.IRModule({"main": kernel}))
    return [work.get(block) for block in work.get_child_blocks(work.get_sblock("root"))]


def on_this_machine(given: tvm.IRModule) -> np.ndarray:
    [answer] = flatten_outputs(
        relax.VirtualMachine(tvm.compile(given, target=target()), tvm.cpu())["main"](
            tvm.runtime.tensor(X["x"])
        )
    )
    return answer


def test_an_answer_of_halves_is_that_of_float32_within_a_thousandth():
    with target():
        single = relax_pipeline.legalize_and_fuse(
            relax_pipeline.run_passes_before_legalization(bound()), None
        )
        halves = relax_pipeline.legalize_and_fuse(
            fp16_arithmetic.to_mixed_precision(
                relax_pipeline.run_passes_before_legalization(bound())
            ),
            None,
        )
    expected, found = on_this_machine(single), on_this_machine(halves)
    assert found.dtype == expected.dtype == np.float32
    error = np.abs(found - expected).max() / max(1, np.abs(expected).max())
    assert 0 < error < 1e-3


def test_products_take_float16_and_sum_in_float32_and_sums_elsewhere_are_never_float16():
    with target():
        mixed = fp16_arithmetic.to_mixed_precision(
            relax_pipeline.run_passes_before_legalization(bound())
        )
        nests = relax_pipeline.legalize_and_fuse(mixed, None)
    seen = {
        "relax.nn.softmax": "float32",
        "relax.mean": "float32",
        "relax.nn.layer_norm": "float16",
    }
    found: dict[str, set[str]] = {}

    def look(node) -> None:
        if isinstance(node, relax.Call) and hasattr(node.op, "name"):
            found.setdefault(node.op.name, set()).add(f"{node.args[0].ty.dtype} to {node.ty.dtype}")

    relax.analysis.post_order_visit(mixed["main"], look)
    assert found["relax.nn.conv2d"] == found["relax.matmul"] == {"float16 to float32"}
    assert all(found[name] == {f"{dtype} to {dtype}"} for name, dtype in seen.items())
    (pool,) = (
        kernel for variable, kernel in nests.functions_items() if "pool" in variable.name_hint
    )
    sums = [
        block
        for block in blocks_of(pool)
        if any(one.iter_type == one.CommReduce for one in block.iter_vars)
    ]
    assert sums and all(
        str(region.source.dtype) == "float32" for block in sums for region in block.writes
    )


POOLS = {
    "windows": ((1, 8, 12, 12), lambda x: OP.nn.avg_pool2d(x, (2, 3), (2, 3))),
    "windows of volumes": ((1, 8, 4, 6, 6), lambda x: OP.nn.avg_pool3d(x, (2, 3, 2), (2, 3, 2))),
    "as many as wanted": ((1, 8, 12, 12), lambda x: OP.nn.adaptive_avg_pool2d(x, (3, 4))),
}


@pytest.mark.parametrize("pool", POOLS)
def test_an_average_of_float16_is_summed_in_float32(pool):
    shape, body = POOLS[pool]
    half = module({"x": np.zeros(shape, "float16")}, lambda emit, x: emit(body(x)))
    with target():
        nests = relax_pipeline.legalize_and_fuse(half, None)
    sums = [
        str(block.writes[0].source.dtype)
        for kernel in nests.functions.values()
        if isinstance(kernel, tvm.tirx.PrimFunc)
        for block in blocks_of(kernel)
        if any(one.iter_type == one.CommReduce for one in block.iter_vars)
    ]
    assert sums == ["float32"] and str(nests["main"].ret_ty.dtype) == "float16"


@pytest.mark.parametrize(
    ("arch", "rows", "columns", "on_tensor_cores"),
    [
        ("sm_61", 128, 128, False),
        ("sm_70", 128, 128, True),
        ("sm_90a", 128, 128, True),
        ("sm_80", 64, 32, True),  # padded to eight times as many
        ("sm_80", 63, 32, False),
    ],
)
def test_products_that_fill_tiles_are_on_tensor_cores_where_there_are(
    arch, rows, columns, on_tensor_cores
):
    def body(emit, x, w):
        return emit(OP.matmul(x, w, out_dtype="float32"))

    shapes = {"x": (rows, 64), "w": (64, columns)}
    inputs = {name: np.zeros(shape, "float16") for name, shape in shapes.items()}
    machine = resolve_target(
        Profile("gpu", {**SHIPPED["cuda-sm80"].target, "arch": arch}, "x86_64-linux-gnu")
    )
    with machine:
        nests = relax_pipeline.legalize_and_fuse(module(inputs, body), None)
    _, kernel = schedule_gpu_kernel("matmul", nests["matmul"], machine)
    assert (kernel.rule == "tensor cores") == on_tensor_cores


def test_what_follows_a_sum_in_its_kernel_is_rounded_once_and_what_two_kernels_read_is_float16():
    with target():
        nests = relax_pipeline.legalize_and_fuse(
            fp16_arithmetic.to_mixed_precision(
                relax_pipeline.run_passes_before_legalization(bound())
            ),
            None,
        )
    kernels = {
        variable.name_hint: kernel
        for variable, kernel in nests.functions_items()
        if isinstance(kernel, tvm.tirx.PrimFunc)
    }
    (first,) = (kernel for name, kernel in kernels.items() if "relu" in name)
    (second,) = (kernel for name, kernel in kernels.items() if "add" in name)

    def types(kernel, names: tuple[str, ...]) -> list[str]:
        return [
            str(block.writes[0].source.dtype)
            for block in blocks_of(kernel)
            if block.name_hint.startswith(names)
        ]

    assert types(first, ("compute",)) == ["float32", "float16"], first.script()
    assert types(second, ("T_add",)) == ["float32"]
    (call,) = (
        binding
        for block in nests["main"].body.blocks
        for binding in block.bindings
        if "relu" in str(binding.value.args[:1])
    )
    tensors = [call.var, *call.value.args[1].fields]
    assert {str(tensor.ty.dtype) for tensor in tensors} == {"float16"}, (
        "what two kernels read, the input, the weights"
    )


@pytest.mark.parametrize("name", HOSTS)
def test_a_halved_model_has_float16_weights_and_tensor_cores_in_its_code(
    name, context, kept, cache, tmp_path
):
    artifact = find_or_build_model(context, kept(X, network, WEIGHTS), SHIPPED[name], cache)
    content, (binary,) = artifact.library.read_bytes(), binaries(artifact.library)
    assert (
        elf_headers.read(artifact.library).machine == HOSTS[name]
        and b"__global__" not in content
        and b"mma_sync" not in content
    )
    code = disassembled(binary, tmp_path)
    assert f".target\t{SHIPPED[name].target['arch']}\n" in code
    with_them = {
        part.split("_kernel", 1)[0] for part in code.split("\n.text.")[1:] if "HMMA" in part
    }
    said = {kernel.name for kernel in artifact.kernels if kernel.rule == "tensor cores"}
    assert with_them == said and any("conv2d" in kernel for kernel in said), (with_them, said)
    assert artifact.nbytes and (artifact.parameters / SHARD).stat().st_size < 1.1 * sum(
        w.nbytes for w in WEIGHTS.values()
    )


def test_a_model_of_float32_stays_so(context, kept, cache, tmp_path):
    weights = {key: value.astype("float32") for key, value in WEIGHTS.items()}
    artifact = find_or_build_model(context, kept(X, network, weights), SHIPPED["cuda-sm80"], cache)
    (binary,) = binaries(artifact.library)
    assert "HMMA" not in disassembled(binary, tmp_path) and "tensor cores" not in {
        kernel.rule for kernel in artifact.kernels
    }
