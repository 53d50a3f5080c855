"""Convert products of rows with the matrices of their groups, as mixtures of experts have them.

The package transformers defines an operator for them, which torch must know to read a program with
it; farm does not need the package.
"""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from farm.importers.torch.converters.operators import Converter
from farm.kernels.grouped_product import emit_grouped_product

_PACKAGE, _NAME = "transformers", "grouped_mm_fallback"
_kept: list[torch.library.Library] = []  # a library is undone when it is collected


def register_operators() -> None:
    """Register the operator with torch, unless the package has."""
    if hasattr(getattr(torch.ops, _PACKAGE), _NAME):
        return
    library = torch.library.Library(_PACKAGE, "FRAGMENT")
    library.define(f"{_NAME}(Tensor input, Tensor weight, Tensor offs) -> Tensor")
    library.impl(_NAME, _products, "CPU")
    library.impl(_NAME, _products_meta, "Meta")
    _kept.append(library)


def converters() -> dict[str, Converter]:
    """Return the converters for `custom_convert_map` of `from_exported_program`."""
    return {f"{_NAME}.default": _grouped_product}


def _products(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Multiply rows [S, K] by the matrix of their group, of [G, K, N]."""
    made = _products_meta(rows, weights, ends).zero_()
    start = 0
    for matrix, end in zip(weights, ends.tolist(), strict=True):
        made[start:end] = rows[start:end] @ matrix
        start = end
    return made


def _products_meta(rows: torch.Tensor, weights: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return rows.new_empty((rows.shape[0], weights.shape[2]))


def _grouped_product(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert the products of sorted rows with the matrices of their groups."""
    rows, weights, ends = (importer.env[one] for one in node.args)
    return emit_grouped_product(importer.block_builder, rows, weights, ends)
