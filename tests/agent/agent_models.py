"""Small models for the agent's tests: built for an architecture, linked as the farm links them, with their numbers from numpy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm import process
from farm.deadline import Deadline

BATCH, INPUTS, OUTPUTS = 2, 64, 10
TARGETS: dict[str, dict[str, object]] = {
    "x86_64": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"},
    "aarch64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic"},
    "armv7": {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mcpu": "cortex-a9", "mattr": ["+neon"], "mfloat-abi": "hard"},
    "armv7-soft": {"kind": "llvm", "mtriple": "armv7l-linux-gnueabi", "mcpu": "cortex-a9", "mfloat-abi": "soft"},
}


@dataclass(frozen=True)
class SmallModel:
    """tanh(x @ w + b), then softmax: it needs expf and tanhf of the device. `library` takes x, w and b."""

    library: Path
    parameters: Path  # a folder that vm.builtin.tensor_cache.load reads: w is param_0, b is param_1
    x: Path
    expected: Path


def build(kind: str, folder: Path) -> SmallModel:
    from tvm.contrib import tvmjs

    rng = np.random.default_rng(7)
    x, w, b = (rng.standard_normal(shape).astype("float32") for shape in ((BATCH, INPUTS), (INPUTS, OUTPUTS), (OUTPUTS,)))
    t = np.tanh(x @ w + b)
    expected = np.exp(t) / np.exp(t).sum(axis=1, keepdims=True)
    np.save(folder / "x.npy", x)
    np.save(folder / "expected.npy", expected)
    tvmjs.dump_tensor_cache({"param_0": w, "param_1": b}, str(folder / "parameters"), encode_format="raw", show_progress=False)
    library = folder / "model.so"
    _compile(_module(), kind, library)
    return SmallModel(library, folder / "parameters", folder / "x.npy", folder / "expected.npy")


def _module() -> Any:
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((BATCH, INPUTS), "float32"))
    w = relax.Var("w", relax.TensorType((INPUTS, OUTPUTS), "float32"))
    b = relax.Var("b", relax.TensorType((OUTPUTS,), "float32"))
    with builder.function("main", [x, w, b], attrs={"num_input": 1}):
        with builder.dataflow():
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
    command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "--hash-style=gnu", "-s", "-o", output, *files]
    process.run(command, deadline=Deadline(60), what="linking a test's model")
