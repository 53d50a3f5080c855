"""Transform and pack the weights of Winograd's convolution, in numpy. TVM is not imported here.

A weight takes (m + 2)^2 / 9 times its memory when it is transformed: four times for m = 4.
Therefore builds keep it as it is in the model, and a function of the library transforms it when the
model is loaded, see farm.compiler.load_time_transforms. This file defines the values that it has to
compute, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

POINTS = {2: (1.0,), 4: (0.5**0.5, 2.0**0.5)}  # the positive points of an output tile's size
# Of a coefficient. Its product with a float32, of 24 bits, is then exact in double precision, so
# that the sums are the same on CPUs that fuse multiplication and addition and on those that do not.
_DIGITS = 53 - 24
_STRIP = 1 << 15  # numbers of each of the nine planes that are transformed at once


@lru_cache
def transform_coefficients(size: int) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Return the coefficients for tiles of `size`: by point, down and then across, and by tap.

    The value at a point is the sum of the nine taps, row by row, times these coefficients.
    """
    points = [0.0, *(sign * point for point in POINTS[size] for sign in (1, -1))]
    lines = [
        [power / math.prod(point - other for other in points if other != point) for power in powers]
        for point, powers in ((point, (1.0, point, point * point)) for point in points)
    ]
    lines.append([0.0, 0.0, 1.0])
    return tuple(
        tuple(tuple(_rounded(down * across) for down in one for across in other) for other in lines)
        for one in lines
    )


def _rounded(value: float) -> float:
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, _DIGITS)), exponent - _DIGITS)


@dataclass(frozen=True, slots=True)
class WinogradTransform:
    """How a weight [3, 3, CI, CO] becomes [CO / block, m + 2, m + 2, depth, block], m = `size`.

    Input channels are padded with zeros to `depth`, output channels to whole blocks.
    """

    size: int
    depth: int
    block: int

    def shape(self, weight: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the transformed weight, from that of the weight."""
        side = self.size + 2
        return (-(-weight[3] // self.block), side, side, self.depth, self.block)

    def growth(self, weight: tuple[int, ...]) -> int:
        """Return the bytes that the transformed weight takes beyond those of the weight."""
        return 4 * (math.prod(self.shape(weight)) - math.prod(weight))

    def apply(self, weight: Array) -> Array:
        """Return the transformed weight."""
        import numpy as np

        blocks, side, _, depth, block = self.shape(weight.shape)
        _, _, inputs, outputs = weight.shape
        matrix = np.array(transform_coefficients(self.size)).reshape(side * side, 9)
        result = np.zeros((blocks, side, side, depth, block), np.float32)
        step = max(1, _STRIP // outputs)
        for first in range(0, inputs, step):
            taps = weight[:, :, first : first + step].astype(np.float64).reshape(9, -1)
            count = min(step, inputs - first)
            values = (matrix @ taps).astype(np.float32).reshape(side, side, count, outputs)
            rows = slice(first, first + count)
            whole = outputs // block
            result[:whole, :, :, rows] = (
                values[..., : whole * block]
                .reshape(side, side, count, whole, block)
                .transpose(3, 0, 1, 2, 4)
            )
            if rest := outputs - whole * block:
                result[whole, :, :, rows, :rest] = values[..., whole * block :]
        return result

    def to_json(self) -> dict[str, int]:
        """Return the transform as the index of a build's parameters has it."""
        return {"winograd": self.size, "depth": self.depth, "block": self.block}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], weight: tuple[int, ...]) -> WinogradTransform:
        """Read the result of `to_json`, for a weight of this shape.

        Raises KeyError, TypeError or ValueError for anything else: a sandboxed process wrote it.
        """
        made = cls(int(body["winograd"]), int(body["depth"]), int(body["block"]))
        if made.size not in POINTS or len(weight) != 4 or weight[:2] != (3, 3):
            raise ValueError("no weight of a convolution of 3 x 3")
        # a few vectors more than the channels
        if not weight[2] <= made.depth <= weight[2] + 64 or not 1 <= made.block <= 1024:
            raise ValueError("other channels than the weight's")
        return made
