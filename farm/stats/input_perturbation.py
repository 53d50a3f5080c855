"""Change inputs as little as a floating-point number can change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_CHANGES = 3


def inputs_changed_in_the_last_bit(inputs: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield three copies of inputs whose floating-point numbers differ in the last bit.

    Each number is replaced by the next larger or the next smaller one, at random, but always by the
    same. Other inputs stay.
    """
    import numpy as np

    generator = np.random.default_rng(0)
    for _ in range(_CHANGES):
        yield {name: _changed(value, generator) for name, value in inputs.items()}


def _changed(value: Array, generator: np.random.Generator) -> Array:
    import numpy as np

    if value.dtype.kind != "f":
        return value
    directions: Array = generator.choice((-np.inf, np.inf), value.shape).astype(value.dtype)
    changed: Array = np.nextafter(value, directions)
    return changed
