"""Small models for the agent's tests: built for an architecture, linked as the farm links them,
with their numbers from numpy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from timeouts import LIMIT_S

from farm.processes import subprocesses
from farm.processes.deadline import Deadline

BATCH, INPUTS, OUTPUTS = 2, 64, 10
TARGETS: dict[str, dict[str, object]] = {
    "x86_64": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"},
    "aarch64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic"},
    "armv7": {
        "kind": "llvm",
        "mtriple": "armv7l-linux-gnueabihf",
        "mcpu": "cortex-a9",
        "mattr": ["+neon"],
        "mfloat-abi": "hard",
    },
    "armv7-soft": {
        "kind": "llvm",
        "mtriple": "armv7l-linux-gnueabi",
        "mcpu": "cortex-a9",
        "mfloat-abi": "soft",
    },
}


@dataclass(frozen=True)
class SmallModel:
    """tanh(x @ w + b), then softmax: it needs expf and tanhf of the device. `library` takes x, w
    and b.
    """

    library: Path
    parameters: Path  # a folder that vm.builtin.tensor_cache.load reads: w is param_0, b is param_1
    x: Path
    expected: Path


def build(kind: str, folder: Path) -> SmallModel:
    from tvm.contrib import tvmjs

    rng = np.random.default_rng(7)
    x, w, b = (
        rng.standard_normal(shape).astype("float32")
        for shape in ((BATCH, INPUTS), (INPUTS, OUTPUTS), (OUTPUTS,))
    )
    t = np.tanh(x @ w + b)
    expected = np.exp(t) / np.exp(t).sum(axis=1, keepdims=True)
    np.save(folder / "x.npy", x)
    np.save(folder / "expected.npy", expected)
    tvmjs.dump_tensor_cache(
        {"param_0": w, "param_1": b},
        str(folder / "parameters"),
        encode_format="raw",
        show_progress=False,
    )
    library = folder / "model.so"
    _compile(_module(), kind, library)
    return SmallModel(library, folder / "parameters", folder / "x.npy", folder / "expected.npy")


@dataclass(frozen=True)
class Deployable:
    """A model as farm builds them. `classifier` takes x and an array of parameters; `pair` takes a
    and b, and gives four tensors.
    """

    files: list[Path]
    inputs: dict[str, Path]
    manifest: dict[str, Any]


def classifier(kind: str, folder: Path) -> Deployable:
    from tvm.contrib import tvmjs

    rng = np.random.default_rng(7)
    x, w, b = (
        rng.standard_normal(shape).astype("float32")
        for shape in ((1, INPUTS), (INPUTS, OUTPUTS), (OUTPUTS,))
    )
    np.save(folder / "x.npy", x)
    tvmjs.dump_tensor_cache(
        {"parameter_0": w, "parameter_1": b}, str(folder), encode_format="raw", show_progress=False
    )
    _compile(_module(batch=1, array=True), kind, folder / "library.so")
    names = ["library.so", "tensor-cache.json", "params_shard_0.bin"]
    inputs = [{"name": "x", "shape": [1, INPUTS], "dtype": "float32"}]
    outputs = [{"name": "scores", "shape": [1, OUTPUTS], "dtype": "float32"}]
    return Deployable(
        [folder / name for name in names],
        {"x": folder / "x.npy"},
        {"inputs": inputs, "outputs": outputs},
    )


def halved(kind: str, folder: Path) -> Deployable:
    """x @ w, as farm builds it: w is float16 in the file, and widened when it is loaded.
    `expected.npy` is what numpy makes of it.
    """
    import tvm
    from tvm import relax

    from farm.compiler import parameter_files as parameters
    from farm.compiler.codegen.executable import compile_executable
    from farm.compiler.lower import lower_module

    rng = np.random.default_rng(9)
    values, w = (
        rng.standard_normal((1, INPUTS)).astype("float32"),
        rng.standard_normal((INPUTS, INPUTS)).astype("float16"),
    )
    np.save(folder / "x.npy", values)
    np.save(folder / "expected.npy", values.astype("float64") @ w.astype("float64"))
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, INPUTS), "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            wide = builder.emit(relax.op.astype(relax.const(w, "float16"), "float32"))
            out = builder.emit_output(relax.op.matmul(x, wide))
        builder.emit_func_output(out)
    target = tvm.target.Target(TARGETS[kind])
    lowered = lower_module(builder.get(), [], target, {})
    assert [value.dtype.name for value in lowered.parameters] == ["float16"]
    parameters.write_parameters(folder / "parameters", lowered.parameters)
    compile_executable(lowered.module, target).export_library(
        str(folder / "library.so"), fcompile=_link
    )
    files = [
        folder / "library.so",
        *(folder / "parameters" / name for name in ("tensor-cache.json", "params_shard_0.bin")),
    ]
    specs = ({"name": name, "shape": [1, INPUTS], "dtype": "float32"} for name in ("x", "y"))
    return Deployable(
        files,
        {"x": folder / "x.npy"},
        {key: [spec] for key, spec in zip(("inputs", "outputs"), specs, strict=True)},
    )


def transformed_with_strides(kind: str, folder: Path) -> Deployable:
    """As `transformed`, for a kernel of 7 x 5 with strides of 2."""
    return transformed(kind, folder, (7, 5), (2, 2))


def transformed(
    kind: str,
    folder: Path,
    taps: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
) -> Deployable:
    """x * w, w a weight of a convolution in the file and as Winograd's kernels read it when it is
    loaded. `expected.npy` is what numpy makes of it.
    """
    import tvm
    from tvm import relax

    from farm.compiler import load_time_transforms, parameter_files
    from farm.compiler.codegen.executable import compile_executable
    from farm.compiler.cpu.kernel_config import PackedWeight
    from farm.compiler.ir.constants import array_address
    from farm.compiler.lower import lower_module
    from farm.compiler.winograd_weights import WinogradTransform

    weight = np.random.default_rng(9).standard_normal((*taps, 19, 30)).astype("float32")
    weight[:, :, 2], weight[:, :, 3] = 0.0, -0.0
    depth = 20 * strides[0] * strides[1]
    transform = WinogradTransform(4, depth, 16, strides)
    expected = transform.apply(weight)
    np.save(folder / "x.npy", np.ones_like(expected))
    np.save(folder / "expected.npy", expected)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(expected.shape, "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.multiply(x, relax.const(expected)))
        builder.emit_func_output(out)
    target = tvm.target.Target(TARGETS[kind])
    lowered = lower_module(builder.get(), [], target, {})
    [parameter] = lowered.parameters
    source = PackedWeight(None, parameter.shape, weight, transform)
    without_on_load = tvm.IRModule(
        {
            variable: function
            for variable, function in lowered.module.functions_items()
            if variable.name_hint != parameter_files.ON_LOAD
        }
    )
    stored = load_time_transforms.defer_transforms_to_load(
        without_on_load, [parameter], {array_address(parameter): source}
    )
    assert [value.shape for value in stored.parameters] == [weight.shape]
    parameter_files.write_parameters(folder / "parameters", stored.parameters, stored.transforms)
    compile_executable(stored.module, target).export_library(
        str(folder / "library.so"), fcompile=_link
    )
    files = [
        folder / "library.so",
        *(folder / "parameters" / name for name in (parameter_files.INDEX, parameter_files.SHARD)),
    ]
    specs = (
        {"name": name, "shape": list(expected.shape), "dtype": "float32"} for name in ("x", "y")
    )
    return Deployable(
        files,
        {"x": folder / "x.npy"},
        {key: [spec] for key, spec in zip(("inputs", "outputs"), specs, strict=True)},
    )


def pair(kind: str, folder: Path) -> Deployable:
    from tvm import relax

    rng = np.random.default_rng(8)
    values = {
        "a": rng.integers(-9, 9, (3, 5)).astype("int64"),
        "b": rng.standard_normal((3, 5)).astype("float32"),
    }
    for name, value in values.items():
        np.save(folder / f"{name}.npy", value)
    builder = relax.BlockBuilder()
    a, b = (
        relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
        for name, value in values.items()
    )
    with builder.function("main", [a, b], attrs={"num_input": 2}):
        with builder.dataflow():
            total = builder.emit(relax.op.add(relax.op.astype(a, "float32"), b))
            kinds = [relax.op.astype(total, dtype) for dtype in ("float16", "int8")]
            out = builder.emit_output(
                relax.Tuple(
                    [
                        total,
                        relax.op.less(total, b),
                        relax.Tuple([builder.emit(each) for each in kinds]),
                    ]
                )
            )
        builder.emit_func_output(out)
    _compile(builder.get(), kind, folder / "library.so")
    inputs = [
        {"name": name, "shape": list(value.shape), "dtype": str(value.dtype)}
        for name, value in values.items()
    ]
    names = {"/total": "float32", "is less": "bool", ".half": "float16", "_half": "int8"}
    outputs = [{"name": name, "shape": [3, 5], "dtype": dtype} for name, dtype in names.items()]
    return Deployable(
        [folder / "library.so"],
        {name: folder / f"{name}.npy" for name in values},
        {"inputs": inputs, "outputs": outputs},
    )


def _module(batch: int = BATCH, array: bool = False) -> Any:
    """tanh(x @ w + b), then softmax. `array`: w and b come as one array."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, INPUTS), "float32"))
    types = [
        relax.TensorType((INPUTS, OUTPUTS), "float32"),
        relax.TensorType((OUTPUTS,), "float32"),
    ]
    separate = [relax.Var(name, kind) for name, kind in zip("wb", types, strict=True)]
    parameters = [relax.Var("parameters", relax.TupleType(types))] if array else separate
    with builder.function("main", [x, *parameters], attrs={"num_input": 1}):
        with builder.dataflow():
            w, b = (
                (builder.emit(relax.TupleGetItem(parameters[0], index)) for index in range(2))
                if array
                else separate
            )
            y = builder.emit(relax.op.tanh(relax.op.add(relax.op.matmul(x, w), b)))
            out = builder.emit_output(relax.op.nn.softmax(y))
        builder.emit_func_output(out)
    return builder.get()


def _compile(module: Any, kind: str, library: Path) -> None:
    import tvm
    from tvm import relax

    target = tvm.target.Target(TARGETS[kind])
    built = tvm.compile(module, target, relax_pipeline=relax.get_default_pipeline(target))
    built.export_library(str(library), fcompile=_link)


def _link(output: str, objects: str | list[str], **_: object) -> None:
    files = [objects] if isinstance(objects, str) else objects
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "ld.lld",
        "-shared",
        "--hash-style=gnu",
        "-s",
        "-o",
        output,
        *files,
    ]
    subprocesses.run_program(command, deadline=Deadline(LIMIT_S), what="linking a test's model")
