"""Transform weights to what kernels read, in numpy. TVM is not imported here.

A library makes some of these transforms when it is loaded (farm.compiler.load_time_transforms), so
that its parameters are stored as the model has them:

    Winograd's transform  always: it is often several times as large as its weight
    blocks of columns     if another parameter is made of the same weight: the file has it once. An
                          example is the table of an embedding, transposed for the last product.
                          And if each group of a convolution is padded to blocks of its own
    repeated columns      if the result is at least twice as large. An example is the bias of
                          relative positions in attention, which a model gathers from a small table
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm.compiler.winograd_weights import WinogradTransform

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_LARGEST_BLOCK = 1024
_BLOCK, _TRANSPOSED, _GROUPS = "columns", "transposed", "groups"
_SHAPE, _ROWS = "shape", "rows"
_GATHERED = range(1 << 14, (1 << 26) + 1)  # elements of a tensor whose columns are compared
_LARGEST_TABLE = 1 << 24  # columns; float32 has no larger indices
_SAMPLED_ROWS, _SAMPLED_COLUMNS = 16, 4096  # that tell most other tensors apart


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


@dataclass(frozen=True, slots=True)
class GatherTransform:
    """How indices and a table become a tensor of a shape, whose columns are those of the table.

    The tensor is seen as `rows` and columns. It is stored as a vector of float32: for each column
    the index of one in the table, then the table by rows. Such indices are exact as float32.
    """

    shape: tuple[int, ...]
    rows: int

    @property
    def columns(self) -> int:
        """Return the number of columns of the tensor."""
        return math.prod(self.shape) // self.rows

    def apply(self, weight: Array) -> Array:
        """Return the tensor. An index outside of the table is that of its last or first column."""
        import numpy as np

        table = weight[self.columns :].reshape(self.rows, -1)
        given, last = weight[: self.columns], table.shape[1] - 1
        indices = np.maximum(np.where(given < last, given, last), 0).astype(np.int64)  # NaN: last
        return np.ascontiguousarray(table[:, indices]).reshape(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the transform as the index of a build's parameters has it."""
        return {_SHAPE: list(self.shape), _ROWS: self.rows}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], weight: tuple[int, ...]) -> GatherTransform:
        """Read the result of `to_json`, for a vector of this shape.

        Raises KeyError, TypeError or ValueError for anything else: a sandboxed process wrote it.
        """
        made = cls(tuple(body[_SHAPE]), body[_ROWS])
        if any(type(number) is not int for number in (*made.shape, made.rows)):
            raise ValueError("no numbers of elements")
        size = math.prod(made.shape)
        if min(made.shape, default=0) < 1 or size not in _GATHERED:
            raise ValueError("no shape of a tensor")
        if not 1 <= made.rows <= size or size % made.rows:
            raise ValueError("no rows of a tensor")
        (stored,) = weight
        width, rest = divmod(stored - made.columns, made.rows)
        if not 1 <= width <= _LARGEST_TABLE or rest:
            raise ValueError("no indices and table")
        return made


def gather_of_repeated_columns(value: Array) -> tuple[Array, GatherTransform] | None:
    """Return the vector and the transform that make a tensor of float32; None if it stays as it is.

    Of the ways to see it as rows and columns, the one with the shortest vector is taken.
    """
    import numpy as np

    if str(value.dtype) != "float32" or value.size not in _GATHERED:
        return None
    bits = np.ascontiguousarray(value).view(np.uint32)
    best: tuple[Array, GatherTransform] | None = None
    for axis in range(1, value.ndim):
        rows = math.prod(value.shape[:axis])
        columns = bits.reshape(rows, -1)
        some = columns[:: -(-rows // _SAMPLED_ROWS), :_SAMPLED_COLUMNS]
        if rows < 2 or some.shape[1] < _SAMPLED_COLUMNS or _few_columns(some) is None:
            continue
        if (found := _few_columns(columns)) is None:
            continue
        firsts, indices = found
        table = columns[:, firsts].view(np.float32)
        stored = np.concatenate([indices.astype(np.float32), table.reshape(-1)])
        if 2 * stored.size <= value.size and (best is None or stored.size < best[0].size):
            best = stored, GatherTransform(value.shape, rows)
    return best


def _few_columns(columns: Array) -> tuple[Array, Array] | None:
    """Return a place of each distinct column, and for each column its number among these.

    None if more than half of the columns are distinct. Equal columns are found by a hash, and then
    compared whole.
    """
    import numpy as np

    factors = np.random.default_rng(0).integers(1 << 62, size=len(columns), dtype=np.uint64) | 1
    hashes = np.zeros(columns.shape[1], np.uint64)
    for row, factor in zip(columns, factors, strict=True):
        hashes += row * factor  # wraps
    _, firsts, indices = np.unique(hashes, return_index=True, return_inverse=True)
    if 2 * len(firsts) > len(hashes) or len(firsts) > _LARGEST_TABLE:
        return None
    same = all((row == row[firsts][indices]).all() for row in columns)
    return (firsts, indices) if same else None


PackingTransform = WinogradTransform | BlockTransform  # that a kernel chose for its weight
WeightTransform = PackingTransform | GatherTransform


def transform_from_json(body: Mapping[str, Any], weight: tuple[int, ...]) -> WeightTransform:
    """Read the result of a transform's `to_json`, for a weight of this shape.

    Raises KeyError, TypeError or ValueError for anything else.
    """
    kinds: dict[str, type[WeightTransform]] = {_BLOCK: BlockTransform, _SHAPE: GatherTransform}
    kind = next((kind for name, kind in kinds.items() if name in body), WinogradTransform)
    return kind.from_json(body, weight)
