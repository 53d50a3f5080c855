"""Calibrate: run the float model over samples here and collect the ranges of its tensors.

Samples are read one at a time, and only a range and a histogram are kept per tensor: the data may
be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farm.compiler import host_run, relax_pipeline
from farm.compiler.graph.quantization.qdq_to_float import has_qdq
from farm.errors import ModelError
from farm.importers.imported_model import ImportedModel
from farm.importers.relax_postprocessing import detach_weights
from farm.quantize.insert_qdq import (
    QuantizationPoint,
    add_observed_outputs,
    insert_qdq,
    quantization_points,
)
from farm.quantize.ranges import ObservedRange
from farm.types import Profile, QuantizeSettings

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]
Note = Callable[[str, float | None], None]
Run = Callable[[Sequence[Array]], list[Array]]


@dataclass
class FoldedModel:
    """An imported float model with folded constants and batch norms, and its points to quantize."""

    imported: ImportedModel
    module: Any
    points: list[QuantizationPoint]
    _observer: Run | None = field(default=None, repr=False)

    @property
    def names(self) -> list[str]:
        """Return the descriptions of the points."""
        return [point.name for point in self.points]

    @property
    def observed(self) -> Any:
        """Return the module with the values of the points as additional outputs before its own."""
        return add_observed_outputs(self.module, [point.variable for point in self.points])

    def observer(self, host: Profile) -> Run:
        """Return a function that runs the observed module; it is built for this machine once."""
        if self._observer is None:
            self._observer = host_run.compile_host_runner(self.observed, [], host)
        return self._observer


def fold_for_int8(imported: ImportedModel, what: str) -> FoldedModel:
    """Prepare an imported model for quantization to integers.

    `what` names the model in errors. Raises ModelError if it is quantized already or has nothing to
    quantize.
    """
    module = relax_pipeline.fold_norms_and_constants(
        relax_pipeline.bind_weights(imported.module, imported.weights)
    )
    if has_qdq(module):
        fix = "use it as it is, or quantize the float model that it was made of"
        raise ModelError(
            f"{what} is quantized already", "it quantizes and dequantizes tensors by itself", fix
        )
    found = quantization_points(module)
    if not found:
        why = "it has no convolution over images and no product with a constant weight, of float32"
        raise ModelError(f"{what} has nothing to quantize", why, "use it as it is")
    return FoldedModel(imported, module, found)


def observe_ranges(
    model: FoldedModel,
    samples: Callable[[], Iterable[Inputs]],
    count: int,
    host: Profile,
    note: Note,
    spread: bool,
) -> list[ObservedRange]:
    """Return the ranges of each point over `count` samples; with `spread`, also the histograms.

    `samples` starts a new pass over the samples at each call. Raises ModelError if a sample makes a
    tensor NaN or infinite.
    """
    note("building the model for calibration", None)
    run, inputs = model.observer(host), [spec.name for spec in model.imported.inputs]
    seen = [ObservedRange() for _ in model.points]

    def observe(what: str, look: Callable[[ObservedRange, Array], None]) -> None:
        for index, sample in enumerate(samples()):
            values = run([sample[name] for name in inputs])
            for point, one, value in zip(model.points, seen, values, strict=False):
                try:
                    look(one, value)
                except ValueError as exc:
                    what_is = f"sample {index} makes {exc} of a tensor: {point.name}"
                    raise ModelError(
                        what_is,
                        "no range covers that",
                        "leave the sample out, or check the model's weights",
                    ) from exc
            note(f"{what}: {index + 1} of {count} samples", (index + 1) / count)

    observe("looking for ranges", ObservedRange.widen)
    if spread:
        observe("counting", ObservedRange.count)
    return seen


def quantize_with_given_scales(
    model: FoldedModel, found: Sequence[tuple[float, int]], settings: QuantizeSettings
) -> tuple[Any, list[Array]]:
    """Return the integer module and its weights, in the form of an import.

    `found` holds a scale and a zero point for each point.
    """
    return detach_weights(insert_qdq(model.module, found, settings), len(model.imported.inputs))
