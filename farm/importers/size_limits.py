"""Refuse tensors that a model declares larger than this machine's memory, before allocation."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

from farm.errors import ModelError
from farm.importers.archive_check import machine_memory_bytes
from farm.types import TensorSpec


def check_tensor_fits_memory(what: str, tensor: str, shape: Iterable[int], item_bytes: int) -> None:
    """Raise ModelError if a tensor of this shape is larger than this machine's memory.

    `what` names the model, `tensor` the tensor in the message.
    """
    extents = [max(int(extent), 0) for extent in shape]
    needed, memory = prod(extents) * item_bytes, machine_memory_bytes()
    if needed > memory:
        why = (
            f"its shape {extents} takes {needed / 1e9:,.1f} GB, and this machine has "
            f"{memory / 1e9:,.1f} GB of memory"
        )
        raise ModelError(
            f"{what}: {tensor} is too large for this machine",
            why,
            "import the model with smaller shapes, or on a larger machine",
        )


def check_specs_fit_memory(what: str, specs: Iterable[TensorSpec]) -> None:
    """Raise ModelError if an input or output is larger than this machine's memory."""
    for spec in specs:
        check_tensor_fits_memory(what, repr(spec.name), spec.shape, np.dtype(spec.dtype).itemsize)


def check_intermediates_fit_memory(what: str, module: object) -> None:
    """Raise ModelError if a fixed-shape tensor in a Relax module exceeds this machine's memory."""
    from tvm import DataType, relax, tirx

    found: dict[tuple[str, tuple[int, ...]], int] = {}

    def note(node: object) -> None:
        kind = getattr(node, "ty", None) if isinstance(node, (relax.Call, relax.Var)) else None
        if isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr):
            extents = tuple(
                int(extent) if isinstance(extent, tirx.IntImm) else 1
                for extent in kind.shape.values
            )
            name = (
                f"the result of {node.op.name}"
                if isinstance(node, relax.Call) and hasattr(node.op, "name")
                else "a tensor"
            )
            found[name, extents] = (DataType(str(kind.dtype)).bits + 7) // 8

    relax.analysis.post_order_visit(module["main"], note)  # type: ignore[index]
    # TVM would replace an error raised inside its visitor by its own.
    for (name, extents), item_bytes in found.items():
        check_tensor_fits_memory(what, name, extents, item_bytes)
