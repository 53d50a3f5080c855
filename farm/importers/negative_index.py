"""Mends two conversions of TVM 0.27's torch importer that read out of bounds for negative indices: `x[:, -1]` and `x[:, [-1, 0]]`.

TVM's `take` does not count negative indices from the end, and the importer hands them on as they are. Other forms (slices, `x.flip`,
`torch.roll`) are right. Every import is compared with torch afterwards all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """What `from_exported_program` takes as `custom_convert_map`."""
    return {"select.int": _select, "index.Tensor": _index}


def _select(node: Any, importer: Any) -> Any:
    """`x.select(axis, index)`, with a constant index."""
    data, axis, index = importer.env[node.args[0]], node.args[1], node.args[2]
    if isinstance(index, int) and index < 0:
        index += _length(data, axis)
    return importer.block_builder.emit(relax.op.take(data, relax.const(index, "int64"), axis))


def _index(node: Any, importer: Any) -> Any:
    """`x[i, :, j]` with tensors of indices: those below zero get the length of their axis added, then TVM's own conversion follows."""
    data = importer.env[node.args[0]]
    lengths: dict[Any, set[int]] = {}
    for axis, index_node in enumerate(node.args[1]):
        if index_node is not None and "int" in str(importer.env[index_node].ty.dtype):
            lengths.setdefault(index_node, set()).add(_length(data, axis))
    kept = {index_node: importer.env[index_node] for index_node in lengths}
    for index_node, (length, *others) in lengths.items():
        if not others:  # one tensor for axes of different lengths has no one meaning below zero
            importer.env[index_node] = importer.block_builder.emit(_from_the_start(kept[index_node], length))
    try:
        return importer._index_tensor(node)
    finally:
        importer.env.update(kept)


def _from_the_start(index: Any, length: int) -> Any:
    zero, size = (relax.const(number, str(index.ty.dtype)) for number in (0, length))
    return relax.op.where(relax.op.less(index, zero), relax.op.add(index, size), index)


def _length(data: Any, axis: int) -> int:
    length = data.ty.shape[axis]
    if not isinstance(length, tirx.IntImm):
        raise NotImplementedError(f"a negative index into an axis of open length ({length})")
    return int(length)
