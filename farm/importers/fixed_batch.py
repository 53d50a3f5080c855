"""Import a model for a fixed batch, for `farm bench --batch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from farm.errors import ModelError
from farm.importers.imported_model import ImportedModel, fix_input_shapes
from farm.types import Model, TensorSpec
from farm.types.python_function_reference import is_python_function_reference

_FIX = (
    "export it with an open batch (dynamic_axes of torch.onnx.export, dynamic_shapes of "
    "torch.export), or leave --batch out"
)


def import_at_batch(
    model: Model, imported: ImportedModel, load: Callable[[Model], ImportedModel]
) -> ImportedModel:
    """Return the model imported by `load` for a batch of `model.batch` samples.

    `imported` is the model without a fixed batch. The batch is the first axis of the inputs where
    it is open. If no input's is open, it is the first axis of all inputs that have the same extent
    there as the first input with axes. Raises ModelError if the model supports no other batch than
    its own.
    """
    assert model.batch is not None
    batch, what = (
        model.batch,
        model.source if is_python_function_reference(model.source) else Path(model.source).name,
    )
    changed = _of_batch(imported.inputs, batch)
    if not changed:
        raise ModelError(f"{what} has no batch", "it has no inputs with axes", "leave --batch out")
    if tuple(changed) == imported.inputs:
        return imported
    try:
        made = load(fix_input_shapes(model, changed))
    except ModelError as error:
        raise ModelError(
            f"{what} cannot be built for a batch of {batch}", f"{error.what}: {error.why}", _FIX
        ) from error
    if not any(spec.shape and spec.shape[0] % batch == 0 for spec in made.outputs):
        shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in made.outputs)
        raise ModelError(
            f"{what} cannot be built for a batch of {batch}",
            f"of its outputs none has as many rows: {shapes}",
            _FIX,
        )
    return made


def inputs_at_batch_one(inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the inputs of a model with a batch of one."""
    return _of_batch(inputs, 1)


def _of_batch(inputs: Sequence[TensorSpec], batch: int) -> list[TensorSpec]:
    """Return the inputs with another batch; an empty list if no input has an axis."""
    first = next((spec.shape[0] for spec in inputs if spec.shape), None)
    if first is None:
        return []
    is_open = any(spec.open for spec in inputs)

    def has_it(spec: TensorSpec) -> bool:
        return spec.open if is_open else spec.shape[:1] == (first,)

    return [
        replace(spec, shape=(batch, *spec.shape[1:]), open=False) if has_it(spec) else spec
        for spec in inputs
    ]
