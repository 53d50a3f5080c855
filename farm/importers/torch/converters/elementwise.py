"""Convert elementwise operators of types and forms that TVM's importer gets wrong or refuses."""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from farm.importers.torch.converters.operators import Converter

_FLOATS = (torch.float16, torch.float32, torch.float64)


def converters() -> dict[str, Converter]:
    """Return the converters for `custom_convert_map` of `from_exported_program`."""
    return {
        "neg.default": _negative,
        "clamp.Tensor": _clamp,
        **{f"{name}.default": _of_integers_too(name) for name in ("isnan", "isinf", "isfinite")},
        **{
            name: _shift(side)
            for side in ("left", "right")
            for name in (
                *(f"bitwise_{side}_shift.{overload}" for overload in ("Tensor", "Tensor_Scalar")),
                *(f"__{side[0]}shift__.{overload}" for overload in ("Tensor", "Scalar")),
            )
        },
    }


def _negative(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert neg; numbers without a sign wrap around."""
    value, emit = importer.env[node.args[0]], importer.block_builder.emit
    dtype = str(value.ty.dtype)
    if not dtype.startswith("uint"):
        return emit(relax.op.negative(value))
    return emit(relax.op.subtract(relax.const(0, dtype), value))


def _clamp(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert clamp between tensors, for which TVM gives integers an infinite bound."""
    value, emit = importer.env[node.args[0]], importer.block_builder.emit
    named = [node.kwargs.get(name) for name in ("min", "max")]
    bounds = [*node.args[1:], *[None] * (3 - len(node.args))]
    for given, other, operator in zip(
        bounds, named, (relax.op.maximum, relax.op.minimum), strict=True
    ):
        bound = other if given is None else given
        if bound is not None:
            value = emit(operator(value, importer.env[bound]))
    return value


def _of_integers_too(name: str) -> Converter:
    """Return a converter of a question to which integers have one answer."""

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        value, emit = importer.env[node.args[0]], importer.block_builder.emit
        if node.args[0].meta["val"].dtype in _FLOATS:
            return emit(getattr(relax.op, name)(value))
        shape = [int(extent) for extent in node.meta["val"].shape]
        return emit(relax.op.full(shape, relax.const(name == "isfinite", "bool"), "bool"))

    return convert


def _shift(side: str) -> Converter:
    """Return a converter of a shift of bits; one to the right keeps the sign."""

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        emit, dtype = importer.block_builder.emit, str(node.meta["val"].dtype)[6:]
        values = [
            emit(relax.op.astype(importer.env[one], dtype))
            if isinstance(one, torch.fx.Node)
            else relax.const(one, dtype)
            for one in node.args
        ]
        return emit(getattr(relax.op, f"{side}_shift")(*values))

    return convert
