"""Transform and pack the weights of Winograd's convolution, in numpy. TVM is not imported here.

A weight takes more memory when it is transformed: four times for F(4 x 4, 3 x 3). Therefore builds
keep it as it is in the model, and a function of the library transforms it when the model is loaded,
see farm.compiler.load_time_transforms. This file defines the values that it has to compute, to the
bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# The positive points, by the side of a tile. Their product is one: see winograd.compute on the
# error.
POINTS = {
    1: (),
    4: (1.0,),
    6: (0.5**0.5, 2.0**0.5),
    8: (0.5, 1.0, 2.0),
    10: (0.5, 0.8, 1.25, 2.0),
}
_LONGEST_OF_TWO = 8  # with longer sides, the error is too large for tiles with two axes
# Of a coefficient. Its product with a float32, of 24 bits, is then exact in double precision, so
# that the sums are the same on CPUs that fuse multiplication and addition and on those that do not.
_DIGITS = 53 - 24
_STRIP = 1 << 15  # numbers of each plane, one for each tap, that are transformed at once
SIZES = (2, 4)  # of tiles, see WinogradTile.for_weight
_STRIDES = ("stride_height", "stride_width")  # in the index of a build's parameters


@dataclass(frozen=True, slots=True)
class WinogradTile:
    """A tile of F(m x n, r x s): its m x n outputs, and the r x s taps of the kernel.

    An axis of one tap has tiles of one output, and is not transformed.
    """

    outputs: tuple[int, int]
    taps: tuple[int, int]

    @classmethod
    def for_weight(cls, size: int, weight: Sequence[int]) -> WinogradTile:
        """Return the tile of a size for a weight of shape [KH, KW, ...].

        The size is the number of outputs along an axis with an odd number of taps. With an even
        number there is one output more: points come in pairs, so that a side is even.
        """
        taps = weight[0], weight[1]
        down, across = (size + (count % 2 == 0) if count > 1 else 1 for count in taps)
        return cls((down, across), taps)

    @property
    def sides(self) -> tuple[int, int]:
        """Return the number of inputs, which is that of points, down and across."""
        (m, n), (r, s) = self.outputs, self.taps
        return m + r - 1, n + s - 1

    @property
    def is_accurate(self) -> bool:
        """Return whether there are points for the tile with which its error is small."""
        two_axes = min(self.sides) > 1
        return (
            min(self.outputs) > 0
            and max(self.sides) > 1
            and all(side in POINTS for side in self.sides)
            and not (two_axes and max(self.sides) > _LONGEST_OF_TWO)
        )


@dataclass(frozen=True, slots=True, order=True)
class Phases:
    """The phases of a stride: a convolution with strides is a sum of convolutions without.

    Each phase has every `strides`-th row and column of the input and of the kernel, from its own
    first ones on (the polyphase decomposition of signal processing). The phases of the input are
    channels here, one phase after another, row by row. Where a phase has fewer taps than another,
    its last ones are zeros.
    """

    taps: tuple[int, int]
    strides: tuple[int, int] = (1, 1)

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of phases that have taps, down and across."""
        (r, s), (down, across) = self.taps, self.strides
        return min(r, down), min(s, across)

    @property
    def taps_of_each(self) -> tuple[int, int]:
        """Return the taps of a phase, down and across."""
        (r, s), (down, across) = self.taps, self.strides
        return -(-r // down), -(-s // across)

    def shape(self, weight: Sequence[int]) -> tuple[int, int, int, int]:
        """Return the shape of a weight [KH, KW, CI, CO] with the phases as input channels."""
        return (*self.taps_of_each, math.prod(self.counts) * weight[2], weight[3])

    def apply(self, weight: Array) -> Array:
        """Return a weight [KH, KW, CI, CO] with the phases as input channels."""
        if self.strides == (1, 1):
            return weight
        import numpy as np

        inputs, outputs = weight.shape[2:]
        result = np.zeros((*self.taps_of_each, *self.counts, inputs, outputs), weight.dtype)
        for row in range(self.counts[0]):
            for column in range(self.counts[1]):
                part = weight[row :: self.strides[0], column :: self.strides[1]]
                result[: part.shape[0], : part.shape[1], row, column] = part
        return result.reshape(self.shape(weight.shape))


@lru_cache
def transform_coefficients(tile: WinogradTile) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Return the coefficients for a tile: by point, down and then across, and by tap.

    The value at a point is the sum of the taps, row by row, times these coefficients.
    """
    down, across = map(_lines, tile.sides, tile.taps)
    return tuple(
        tuple(tuple(_rounded(one * other) for one in row for other in column) for column in across)
        for row in down
    )


def _lines(side: int, taps: int) -> list[list[float]]:
    """Return the coefficients of an axis, by point and tap."""
    if side == 1:
        return [[1.0]]
    points = [0.0, *(sign * point for point in POINTS[side] for sign in (1, -1))]
    lines = [
        [
            math.prod([point] * power)
            / math.prod(point - other for other in points if other != point)
            for power in range(taps)
        ]
        for point in points
    ]
    return [*lines, [*[0.0] * (taps - 1), 1.0]]


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError("a size that is no whole number")
    return value


def _rounded(value: float) -> float:
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, _DIGITS)), exponent - _DIGITS)


@dataclass(frozen=True, slots=True)
class WinogradTransform:
    """How a weight [KH, KW, CI, CO] becomes [CO / block, *sides, depth, block].

    `size` is that of `WinogradTile.for_weight`. Input channels, those of all phases of `strides`,
    are padded with zeros to `depth`, output channels to whole blocks.
    """

    size: int
    depth: int
    block: int
    strides: tuple[int, int] = (1, 1)

    def phases(self, weight: tuple[int, ...]) -> Phases:
        """Return the phases of a weight of this shape."""
        return Phases((weight[0], weight[1]), self.strides)

    def tile(self, weight: tuple[int, ...]) -> WinogradTile:
        """Return the tile for a weight of this shape."""
        return WinogradTile.for_weight(self.size, self.phases(weight).taps_of_each)

    def shape(self, weight: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the transformed weight, from that of the weight."""
        sides = self.tile(weight).sides
        return (-(-weight[3] // self.block), *sides, self.depth, self.block)

    def growth(self, weight: tuple[int, ...]) -> int:
        """Return the bytes that the transformed weight takes beyond those of the weight."""
        return 4 * (math.prod(self.shape(weight)) - math.prod(weight))

    def apply(self, weight: Array) -> Array:
        """Return the transformed weight."""
        import numpy as np

        tile, block = self.tile(weight.shape), self.block
        result = np.zeros(self.shape(weight.shape), np.float32)
        weight = self.phases(weight.shape).apply(weight)
        *taps, inputs, outputs = weight.shape
        matrix = np.array(transform_coefficients(tile)).reshape(-1, math.prod(taps))
        step = max(1, _STRIP // outputs)
        for first in range(0, inputs, step):
            strip = weight[:, :, first : first + step].astype(np.float64)
            count = min(step, inputs - first)
            sums = matrix @ strip.reshape(math.prod(taps), -1)
            values = sums.astype(np.float32).reshape(*tile.sides, count, outputs)
            rows = slice(first, first + count)
            whole = outputs // block
            result[:whole, :, :, rows] = (
                values[..., : whole * block]
                .reshape(*tile.sides, count, whole, block)
                .transpose(3, 0, 1, 2, 4)
            )
            if rest := outputs - whole * block:
                result[whole, :, :, rows, :rest] = values[..., whole * block :]
        return result

    def to_json(self) -> dict[str, int]:
        """Return the transform as the index of a build's parameters has it."""
        strides = zip(_STRIDES, self.strides, strict=True) if self.strides != (1, 1) else ()
        return {"winograd": self.size, "depth": self.depth, "block": self.block, **dict(strides)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], weight: tuple[int, ...]) -> WinogradTransform:
        """Read the result of `to_json`, for a weight of this shape.

        Raises KeyError, TypeError or ValueError for anything else: a sandboxed process wrote it.
        """
        size, depth, block = (_whole(body[name]) for name in ("winograd", "depth", "block"))
        down, across = (_whole(body.get(name, 1)) for name in _STRIDES)
        made = cls(size, depth, block, (down, across))
        if len(weight) != 4 or min(weight) < 1 or min(made.strides) < 1 or size not in SIZES:
            raise ValueError("no weight of a convolution with tiles of this size")
        if not made.tile(weight).is_accurate:
            raise ValueError("no tiles of this size for such a kernel")
        inputs = made.phases(weight).shape(weight)[2]
        # a few vectors more than the channels
        if not inputs <= depth <= inputs + 64 or not 1 <= block <= 1024:
            raise ValueError("other channels than the weight's")
        return made
