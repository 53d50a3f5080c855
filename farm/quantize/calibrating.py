"""Calibration: the float model runs on this machine over samples, and what is seen of its tensors gives their scales.

Samples are read one at a time, and of each tensor only a range and a histogram are kept: data may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farm.compiler import here, passes
from farm.compiler.dequantized import is_quantized
from farm.errors import ModelError
from farm.importers.imported import Imported
from farm.importers.relax_module import detach_weights
from farm.quantize.inserting import Point, inserted, observing, points
from farm.quantize.ranges import Seen
from farm.types import Profile, Quantize

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]
Note = Callable[[str, float | None], None]
Run = Callable[[Sequence[Array]], list[Array]]


@dataclass
class Floating:
    """A float model as it was imported, with constants and batch norms folded, and what of it is to be quantized."""

    imported: Imported
    module: Any
    points: list[Point]
    _observer: Run | None = field(default=None, repr=False)

    @property
    def names(self) -> list[str]:
        return [point.name for point in self.points]

    @property
    def observed(self) -> Any:
        """The module with the points' values in front of its outputs."""
        return observing(self.module, [point.variable for point in self.points])

    def observer(self, host: Profile) -> Run:
        """What gives the points' values in front of the outputs; built for this machine once."""
        if self._observer is None:
            self._observer = here.built(self.observed, [], host)
        return self._observer


def floating(imported: Imported, what: str) -> Floating:
    """Raises ModelError for a model that is quantized already, and for one without anything to quantize."""
    module = passes.folded(passes.bind(imported.module, imported.weights))
    if is_quantized(module):
        fix = "use it as it is, or quantize the float model that it was made of"
        raise ModelError(f"{what} is quantized already", "it quantizes and dequantizes tensors by itself", fix)
    found = points(module)
    if not found:
        why = "it has no convolution over images and no product with a constant weight, of float32"
        raise ModelError(f"{what} has nothing to quantize", why, "use it as it is")
    return Floating(imported, module, found)


def observed(model: Floating, samples: Callable[[], Iterable[Inputs]], count: int, host: Profile, note: Note, spread: bool) -> list[Seen]:
    """What is seen of each point; with `spread` also how its numbers are spread. `samples` gives the `count` samples anew at each call.

    Raises ModelError where a sample makes NaN or infinity of a tensor.
    """
    note("building the model for calibration", None)
    run, inputs = model.observer(host), [spec.name for spec in model.imported.inputs]
    seen = [Seen() for _ in model.points]

    def observe(what: str, look: Callable[[Seen, Array], None]) -> None:
        for index, sample in enumerate(samples()):
            values = run([sample[name] for name in inputs])
            for point, one, value in zip(model.points, seen, values, strict=False):
                try:
                    look(one, value)
                except ValueError as exc:
                    what_is = f"sample {index} makes {exc} of a tensor: {point.name}"
                    raise ModelError(what_is, "no range covers that", "leave the sample out, or check the model's weights") from exc
            note(f"{what}: {index + 1} of {count} samples", (index + 1) / count)

    observe("looking for ranges", Seen.widen)
    if spread:
        observe("counting", Seen.count)
    return seen


def quantized(model: Floating, found: Sequence[tuple[float, int]], settings: Quantize) -> tuple[Any, list[Array]]:
    """The module of integers and its weights, as an import gives them."""
    return detach_weights(inserted(model.module, found, settings), len(model.imported.inputs))
