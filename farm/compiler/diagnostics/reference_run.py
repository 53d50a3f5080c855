"""Run a model's reference kernels on this machine, in a process that may be sandboxed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.compiler.build import RawChoices
from farm.compiler.diagnostics.reference_steps import ReferenceSteps, tensor_value_file
from farm.compiler.parameter_files import array_bytes
from farm.processes.workers import TaskContext
from farm.types import Artifact, PreparedModel, Profile, Progress, Stage

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def compute_reference_steps(
    context: TaskContext,
    prepared: PreparedModel,
    artifact: Artifact,
    profile: Profile,
    records: Mapping[str, RawChoices],
    inputs: Mapping[str, Array],
    folder: Path,
) -> ReferenceSteps:
    """Compute every step of an artifact from the model's inputs, and write the values to a folder.

    `records` are the recorded choices by CPU model. A tensor is kept in memory until its last use.
    Raises BuildError as `reference_kernels.build_reference_kernels` does.
    """
    from farm.compiler.diagnostics.reference_kernels import build_reference_kernels

    context.note(Progress(Stage.COMPILING, "plain kernels for this machine"))
    parts = build_reference_kernels(prepared, artifact, profile, records)
    values = {
        number: inputs[spec.name]
        for number, spec in zip(parts.inputs, prepared.inputs, strict=True)
    }
    for number, value in parts.parameters.items():
        tensor_value_file(folder, number).write_bytes(array_bytes(value))
    uses = Counter(number for step in parts.steps for number in step.tensors)
    for place, step in enumerate(parts.steps):
        context.note(
            Progress(Stage.COMPILING, f"reference of {step.kernel}", place / len(parts.steps))
        )
        results = parts.compute(step, {**parts.parameters, **values})
        for (number, _, _), value in zip(step.outputs, results, strict=True):
            tensor_value_file(folder, number).write_bytes(array_bytes(value))
            values[number] = value
        for number in step.tensors:
            uses[number] -= 1
            if not uses[number]:
                values.pop(number, None)
    forms = {
        number: (tuple(value.shape), value.dtype.name) for number, value in parts.parameters.items()
    }
    return ReferenceSteps(parts.steps, parts.inputs, forms, dict(parts.places))
