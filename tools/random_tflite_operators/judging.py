"""Judge what farm makes of cases: import, build for this machine, run, compare with LiteRT."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import interpreter
from random_operators.comparing import (
    BROKEN,
    REFUSED,
    RIGHT,
    UNJUDGED,
    WRONG,
    Judged,
    differences,
    one_line,
)

from farm.compiler.host_run import compile_host_runner
from farm.errors import FarmError
from farm.importers.tflite.load import load
from farm.types import Model, Profile
from random_tflite_operators.drawing import Array, Case

_HOST = Profile("this machine", {"kind": "llvm", "mcpu": "native"}, "")


def judge(cases: Sequence[Case]) -> Iterator[Judged]:
    """Yield what becomes of each case."""
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="operators-") as folder:
            yield _judged(case, Path(folder) / "model.tflite")


def _judged(case: Case, path: Path) -> Judged:
    try:
        answers = save_with_shapes(case, path)
    except Exception as error:
        return Judged(case, UNJUDGED, one_line(error))
    try:
        made = run(path, case)
    except FarmError as error:
        return Judged(case, REFUSED, f"{error.what}: {error.why}")
    except Exception as error:
        return Judged(case, BROKEN, one_line(error))
    said = differences(case, made, answers)
    return Judged(case, WRONG if said else RIGHT, said)


def save_with_shapes(case: Case, path: Path) -> list[Array]:
    """Write the model with the shapes that LiteRT finds, and return LiteRT's outputs."""
    case.save(path)
    case.save(path, [answer.shape for answer in expected(path, case)])
    return expected(path, case)


def expected(path: Path, case: Case) -> list[Array]:
    """Return LiteRT's outputs; raises what LiteRT raises."""
    running = interpreter.Interpreter(
        model_path=str(path),
        num_threads=1,
        experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    running.allocate_tensors()
    for one in running.get_input_details():
        running.set_tensor(one["index"], case.fed[one["name"]])
    running.invoke()
    return [np.array(running.get_tensor(one["index"])) for one in running.get_output_details()]


def run(path: Path, case: Case) -> list[Array]:
    """Return the outputs of the model built by farm; raises what farm raises."""
    imported: Any = load(Model("case", str(path)))
    built = compile_host_runner(imported.module, imported.weights, _HOST)
    return built([np.asarray(case.fed[spec.name], order="C") for spec in imported.inputs])
