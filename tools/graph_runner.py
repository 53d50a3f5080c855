"""Run generated graphs one after the other, for tools/fuzz-graphs: graph_runner.py CPU FOLDER
SEED...

Prints a line of JSON for each. Memory is not planned: each intermediate result is a tensor of its
own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import graphs  # noqa: E402
import tvm  # noqa: E402
from tvm import relax  # noqa: E402

from farm.compiler.codegen import executable as codegen_executable  # noqa: E402
from farm.compiler.codegen.stack_tiles import with_tiles_on_stack  # noqa: E402
from farm.compiler.graph import fp16_weights  # noqa: E402
from farm.compiler.lower import lower, resolve_target  # noqa: E402
from farm.errors import FarmError  # noqa: E402
from farm.importers.onnx.load import load  # noqa: E402
from farm.types import Model, Profile  # noqa: E402

_PLANNING = ("StaticPlanBlockMemory", "KillAfterLastUse")
_RIGHT = 1e-4  # of the largest number of an output


def compiled(imported: Any, cpu: str) -> Any:
    """What runs the model on inputs in order, with memory of its own for each tensor."""
    target = resolve_target(Profile("fuzz", {"kind": "llvm", "mcpu": cpu}, ""))
    lowered = lower(imported.module, imported.weights, target, {})
    passes = [one for one in codegen_executable._PIPELINE.passes if one.info.name not in _PLANNING]
    pipeline = tvm.transform.Sequential(passes)
    executable = tvm.compile(
        lowered.module, target=target, relax_pipeline=pipeline, tir_pipeline=with_tiles_on_stack()
    )
    machine = relax.VirtualMachine(executable, tvm.cpu(), memory_cfg="naive")
    parameters = [
        tvm.runtime.tensor(value)
        for value in fp16_weights.parameters_as_called(lowered.module, lowered.parameters)
    ]

    def run(inputs: list[Any]) -> list[Any]:
        answer = machine["main"](
            *map(tvm.runtime.tensor, inputs), *([parameters] if parameters else [])
        )
        return [one.numpy() for one in answer] if not hasattr(answer, "numpy") else [answer.numpy()]

    return run


def check(path: Path, cpu: str) -> tuple[str, str]:
    """The result of a graph: right, refused, failed, wrong or threads; and why."""
    try:
        imported = load(Model("graph", str(path)))
    except FarmError as error:
        return "refused", f"{error.what}: {error.why}"
    try:
        run = compiled(imported, cpu)
    except Exception as error:  # whatever TVM says
        return "failed", str(error).strip().splitlines()[-1][:200]
    inputs = [imported.example[spec.name] for spec in imported.inputs]
    expected, first = imported.reference(imported.example), None
    for threads in (1, 2, 3):
        tvm.get_global_func("runtime.config_threadpool")(0, threads)
        answers = run(inputs)
        for ours, theirs in zip(answers, expected, strict=True):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                return (
                    "wrong",
                    f"{ours.dtype} {ours.shape} instead of {theirs.dtype} {theirs.shape}",
                )
            scale = max(1.0, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0)))
            if not np.allclose(ours, theirs, rtol=_RIGHT, atol=_RIGHT * scale, equal_nan=True):
                return (
                    "wrong",
                    f"by {np.abs(ours.astype('float64') - theirs).max():.3g}, {threads} threads",
                )
        first = answers if first is None else first
        if not all(
            np.array_equal(one, other, equal_nan=True)
            for one, other in zip(answers, first, strict=True)
        ):
            return "threads", f"other bits with {threads} threads than with 1"
    return "right", ""


def main() -> None:
    cpu, folder, seeds = sys.argv[1], Path(sys.argv[2]), list(map(int, sys.argv[3:]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for seed in seeds:
        path = folder / f"{seed}.onnx"
        onnx.save(graphs.generated(seed), path)
        result, why = check(path, cpu)
        if result == "right":
            path.unlink()
        print(json.dumps({"seed": seed, "result": result, "why": why}), file=answers, flush=True)


if __name__ == "__main__":
    main()
