"""Change inputs a little: as little as a floating-point number can change, or by noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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

    def change(value: Array, generator: np.random.Generator) -> Array:
        directions: Array = generator.choice((-np.inf, np.inf), value.shape).astype(value.dtype)
        return np.asarray(np.nextafter(value, directions))

    yield from _changed(inputs, change)


def inputs_with_noise(inputs: Mapping[str, Array], relative: float) -> Iterator[dict[str, Array]]:
    """Yield three copies of inputs whose floating-point numbers have normal noise.

    `relative` is its deviation, as a share of each number. The noise is always the same. Other
    inputs stay.
    """
    import numpy as np

    def change(value: Array, generator: np.random.Generator) -> Array:
        noise = generator.standard_normal(value.shape)
        return np.asarray(value * (1 + relative * noise), value.dtype)

    yield from _changed(inputs, change)


def _changed(
    inputs: Mapping[str, Array], change: Callable[[Array, np.random.Generator], Array]
) -> Iterator[dict[str, Array]]:
    import numpy as np

    generator = np.random.default_rng(0)
    for _ in range(_CHANGES):
        yield {
            name: change(value, generator) if value.dtype.kind == "f" else value
            for name, value in inputs.items()
        }
