"""Transform weights to what kernels read, in numpy. TVM is not imported here.

A library makes some of these transforms when it is loaded (farm.compiler.load_time_transforms), so
that its parameters are stored as the model has them:

    Winograd's transform  always: it is often several times as large as its weight
    blocks of columns     if another parameter is made of the same weight: the file has it once. An
                          example is the table of an embedding, transposed for the last product.
                          And if each group of a convolution is padded to blocks of its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm.compiler.winograd_weights import WinogradTransform

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_LARGEST_BLOCK = 1024
_BLOCK, _TRANSPOSED, _GROUPS = "columns", "transposed", "groups"


@dataclass(frozen=True, slots=True)
class BlockTransform:
    """How a weight [..., CO], or [CO, CI] if `transposed`, becomes [CO / block, ..., block].

    The output channels of each of `groups` are padded with zeros to whole blocks.
    """

    block: int
    transposed: bool = False
    groups: int = 1

    def shape(self, weight: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the blocks, from that of the weight."""
        *others, columns = reversed(weight) if self.transposed else weight
        return (self.groups * -(-columns // self.groups // self.block), *others, self.block)

    def apply(self, weight: Array) -> Array:
        """Return the blocks of a weight, contiguous."""
        import numpy as np

        blocks, *others, block = self.shape(weight.shape)
        columns = weight.T if self.transposed else weight
        grouped = columns.reshape(*columns.shape[:-1], self.groups, -1)
        more = [(0, 0)] * (len(others) + 1)
        more.append((0, blocks * block // self.groups - grouped.shape[-1]))
        split = np.pad(grouped, more).reshape(*others, blocks, block)
        return np.ascontiguousarray(np.moveaxis(split, -2, 0))

    def to_json(self) -> dict[str, int]:
        """Return the transform as the index of a build's parameters has it."""
        return {
            _BLOCK: self.block,
            **({_TRANSPOSED: 1} if self.transposed else {}),
            **({_GROUPS: self.groups} if self.groups > 1 else {}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any], weight: tuple[int, ...]) -> BlockTransform:
        """Read the result of `to_json`, for a weight of this shape.

        Raises KeyError, TypeError or ValueError for anything else: a sandboxed process wrote it.
        """
        made = cls(int(body[_BLOCK]), bool(body.get(_TRANSPOSED)), int(body.get(_GROUPS, 1)))
        if not 1 <= made.block <= _LARGEST_BLOCK or not weight:
            raise ValueError("no blocks of a weight")
        if made.transposed and len(weight) != 2:
            raise ValueError("a weight of other than two axes is not transposed")
        if made.groups < 1 or weight[-1] % made.groups or (made.transposed and made.groups > 1):
            raise ValueError("no groups of a weight")
        return made


WeightTransform = WinogradTransform | BlockTransform


def transform_from_json(body: Mapping[str, Any], weight: tuple[int, ...]) -> WeightTransform:
    """Read the result of a transform's `to_json`, for a weight of this shape.

    Raises KeyError, TypeError or ValueError for anything else.
    """
    kind = BlockTransform if _BLOCK in body else WinogradTransform
    return kind.from_json(body, weight)
