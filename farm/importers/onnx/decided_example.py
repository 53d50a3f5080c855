"""Find example inputs on which a model that selects by value decides clearly.

Two engines round differently. Where two scores are equal but for that, or one lies at a threshold,
both answers are right and nothing can be learned from comparing them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from farm import stats
from farm.importers.imported_model import Reference, example_inputs
from farm.types import LIMITS, TensorSpec

_SEEDS = 5
_NOISE = 1e-6  # of each number: as much as the rounding of a network's layers
_DRAWS = 3
Array = np.ndarray[Any, Any]


def decided_example(inputs: Sequence[TensorSpec], reference: Reference) -> dict[str, Array]:
    """Return the first example that the reference answers alike if its numbers change a little.

    Only the reference is asked. If no example of a few seeds is such, the first is returned.
    """
    for seed in range(_SEEDS):
        example = example_inputs(inputs, seed)
        answer = reference(example)
        if all(
            stats.compare_outputs_with_reference(reference(other), answer, LIMITS["float32"]).right
            for other in _changed(example)
        ):
            return example
    return example_inputs(inputs)


def _changed(example: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield copies of inputs whose floating-point numbers have a little noise."""
    generator = np.random.default_rng(0)
    for _ in range(_DRAWS):
        yield {
            name: (value * (1 + _NOISE * generator.standard_normal(value.shape))).astype(
                value.dtype
            )
            if value.dtype.kind == "f"
            else value
            for name, value in example.items()
        }
