"""Judge what farm makes of cases: import, build for this machine, run, compare with a reference.

The reference is ONNX Runtime; where it has no implementation, ONNX's own evaluator.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from farm.compiler.host_run import compile_host_runner
from farm.errors import FarmError
from farm.importers.onnx.load import load_with_session_factory
from farm.importers.onnx.reference.runtime import create_session
from farm.types import Model
from random_operators.comparing import (
    BROKEN,
    HOST,
    REFUSED,
    TOGETHER,
    TOLERANCES,
    UNJUDGED,
    Judged,
    difference,
    judge_together,
    one_line,
)
from random_operators.drawing import Case, model_of
from random_operators.random_values import Array

_NEWEST_OF_RUNTIME = 26  # an opset; newer ones that changed nothing are run as this one
# Where it has no rule of old versions, or gives the result another shape.
_EVALUATED_WRONGLY = (
    "Hardmax",
    "GlobalMaxPool",
    "MaxPool",
    "AveragePool",
    "LpPool",
    *("RNN", "GRU", "LSTM"),
)


def judge(cases: Sequence[Case]) -> Iterator[Judged]:
    """Yield what becomes of each case. Those of one opset are built together."""
    ready: dict[int, list[tuple[Case, list[Array]]]] = defaultdict(list)
    for case in cases:
        try:
            answers = expected(case)
        except Exception as error:
            yield Judged(case, UNJUDGED, one_line(error))
            continue
        try:
            _imported([case], [answers])
        except FarmError as error:
            yield Judged(case, REFUSED, f"{error.what}: {error.why}")
        except Exception as error:
            yield Judged(case, BROKEN, one_line(error))
        else:
            ready[case.opset].append((case, answers))
    for some in ready.values():
        for at in range(0, len(some), TOGETHER):
            yield from judge_together(some[at : at + TOGETHER], run_together, _second_opinion)


def expected(case: Case) -> list[Array]:
    """Return the outputs of ONNX Runtime; of the same in float32 where it lacks the type; or of
    ONNX's evaluator.
    """
    if case.evaluated:
        return _evaluated(case)
    try:
        return _of_onnxruntime(case)
    except Exception:
        other = _in_float32(case)
    if other is not None:
        with contextlib.suppress(Exception):
            case.rtol = max(case.rtol, TOLERANCES["float32"][0])
            kinds = _declared_types(case)
            return [
                value.astype(kind)
                for value, kind in zip(_of_onnxruntime(other), kinds, strict=True)
            ]
    if case.operator in _EVALUATED_WRONGLY:
        raise NotImplementedError("ONNX Runtime cannot run it, and ONNX's evaluator is wrong")
    return _evaluated(case)


def _of_onnxruntime(case: Case) -> list[Array]:
    """Return ONNX Runtime's outputs, if need be as of an older opset that differs in types only."""
    refused: Exception | None = None
    fed = {f"p0_{name}": value for name, value in case.fed.items()}
    for opset in _same_meaning(case):
        model = model_of([replace(case, opset=opset)], other_form=True)
        try:
            session = create_session(model.SerializeToString())
            return [np.asarray(value) for value in session.run(None, fed)]
        except Exception as error:
            refused = refused or error
    raise refused or NotImplementedError(f"an opset above {_NEWEST_OF_RUNTIME}")


def _same_meaning(case: Case) -> Iterator[int]:
    """Yield opsets in which the case is valid, the newest first."""
    if case.opset <= _NEWEST_OF_RUNTIME:
        yield case.opset
    if case.domain:
        return
    schema = onnx.defs.get_schema(case.operator, case.opset, "")
    if case.opset > _NEWEST_OF_RUNTIME >= schema.since_version:
        yield _NEWEST_OF_RUNTIME
    if schema.since_version > 1:
        older = schema.since_version - 1
        with contextlib.suppress(onnx.defs.SchemaError):
            if _parts(case.operator, older) == _parts(case.operator, case.opset):
                yield min(older, _NEWEST_OF_RUNTIME)


def _parts(operator: str, opset: int) -> tuple[list[str], list[str]]:
    schema = onnx.defs.get_schema(operator, opset, "")
    return [one.name for one in schema.inputs], sorted(schema.attributes)


def _declared_types(case: Case) -> list[Any]:
    """Return the type of each output as ONNX's inference has it."""
    inferred = onnx.shape_inference.infer_shapes(model_of([case]))
    return [
        onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in inferred.graph.output
    ]


def _in_float32(case: Case) -> Case | None:
    """Return the case with numbers of float32; None if it has no other floats."""
    wanted = (np.float16, np.float64)
    if not any(value.dtype in wanted for value in case.fed.values()):
        return None
    values = [
        {
            name: value.astype(np.float32) if value.dtype in wanted else value
            for name, value in of.items()
        }
        for of in (case.fed, case.constants)
    ]
    return replace(case, fed=values[0], constants=values[1])


def _evaluated(case: Case) -> list[Array]:
    model = model_of([case])
    fed = {f"p0_{name}": value for name, value in case.fed.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = ReferenceEvaluator(model).run(None, fed)
    return [np.asarray(value) for value in made]


def _second_opinion(case: Case, answers: Sequence[Array], ours: Sequence[Array]) -> str:
    """Return with whom ONNX's evaluator agrees."""
    try:
        others = _evaluated(case)
    except Exception:
        return "ONNX's evaluator cannot run it"
    with_whom = [
        who
        for who, of in (("the reference", answers), ("farm", ours))
        if not any(difference(case, one, other) for one, other in zip(of, others, strict=True))
    ]
    return f"ONNX's evaluator agrees with {' and '.join(with_whom) or 'neither'}"


def run_together(cases: Sequence[Case], answers: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Return the outputs of each case, built by farm as one model; raises what farm raises.

    The file declares the types of `answers`.
    """
    imported = _imported(cases, answers)
    run = compile_host_runner(imported.module, imported.weights, HOST)
    fed = {
        f"p{place}_{name}": value
        for place, case in enumerate(cases)
        for name, value in case.fed.items()
    }
    made = run([np.asarray(fed[spec.name], order="C") for spec in imported.inputs])
    ours = dict(zip([spec.name for spec in imported.outputs], made, strict=True))
    return [[ours[f"p{place}_{name}"] for name in case.outputs] for place, case in enumerate(cases)]


def _imported(cases: Sequence[Case], answers: Sequence[Sequence[Array]]) -> Any:
    results = {
        f"p{place}_{name}": value
        for place, (case, of) in enumerate(zip(cases, answers, strict=True))
        for name, value in zip(case.outputs, of, strict=True)
    }
    shapes = {
        f"p{place}_{name}": value.shape
        for place, case in enumerate(cases)
        if case.open_axes
        for name, value in case.fed.items()
        if value.ndim
    }
    with tempfile.TemporaryDirectory(prefix="operators-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model_of(cases, results), path)
        return load_with_session_factory(Model("case", str(path), shapes=shapes), lambda _: None)
