"""Run generated graphs one after the other, for tools/fuzz-graphs: graph_runner.py CPU FOLDER
SEED...

Prints a line of JSON for each. The kernels run one by one, as by `farm check --guard`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import random_onnx_graphs  # noqa: E402

from farm.compiler.codegen.executable import compile_executable  # noqa: E402
from farm.compiler.codegen.link import fcompile_for_profile  # noqa: E402
from farm.compiler.codegen.parallel_codegen import export_shared_library  # noqa: E402
from farm.compiler.diagnostics import guarded_run  # noqa: E402
from farm.compiler.diagnostics.steps_of_main import MainSteps  # noqa: E402
from farm.compiler.lower import lower_module, resolve_target  # noqa: E402
from farm.errors import FarmError  # noqa: E402
from farm.importers.onnx.load import load  # noqa: E402
from farm.types import Model, Profile  # noqa: E402

_RIGHT = 1e-4  # of the largest number of an output


def check(path: Path, cpu: str) -> tuple[str, str]:
    """The result of a graph: right, refused, failed, wrong or guard; and why."""
    try:
        imported = load(Model("graph", str(path)))
    except FarmError as error:
        return "refused", f"{error.what}: {error.why}"
    profile = Profile("fuzz", {"kind": "llvm", "mcpu": cpu}, "")
    with tempfile.TemporaryDirectory(prefix="graph-") as folder:
        library = Path(folder) / "library.so"
        try:
            target = resolve_target(profile)
            lowered = lower_module(imported.module, imported.weights, target, {})
            main = lowered.module["main"]
            steps = MainSteps("graph", main, lowered.parameters_as_called())
            outputs = steps.of(main.body.body)
            export_shared_library(
                compile_executable(lowered.module, target),
                library,
                fcompile_for_profile(profile),
                Path(folder),
            )
        except Exception as error:  # whatever TVM says
            return "failed", str(error).strip().splitlines()[-1][:200]
        values = dict(steps.parameters)
        for number, spec in zip(steps.inputs, imported.inputs, strict=True):
            values[number] = imported.example[spec.name]
        ran = guarded_run.run_guarded(library, steps.steps, outputs, values, path.parent)
    if ran.findings:
        one = ran.findings[0]
        return "guard", f"{one.kernel} {one.what} ({one.place})"
    for ours, theirs in zip(ran.outputs, imported.reference(imported.example), strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return "wrong", f"{ours.dtype} {ours.shape} instead of {theirs.dtype} {theirs.shape}"
        scale = max(1.0, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0)))
        if not np.allclose(ours, theirs, rtol=_RIGHT, atol=_RIGHT * scale, equal_nan=True):
            return "wrong", f"by {np.abs(ours.astype('float64') - theirs).max():.3g}"
    return "right", ""


def main() -> None:
    cpu, folder, seeds = sys.argv[1], Path(sys.argv[2]), list(map(int, sys.argv[3:]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for seed in seeds:
        path = folder / f"{seed}.onnx"
        onnx.save(random_onnx_graphs.generated(seed), path)
        result, why = check(path, cpu)
        if result == "right":
            path.unlink()
        print(json.dumps({"seed": seed, "result": result, "why": why}), file=answers, flush=True)


if __name__ == "__main__":
    main()
