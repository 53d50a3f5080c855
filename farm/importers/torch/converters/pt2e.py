"""Convert the quantize and dequantize operators of models that torch's PT2E quantized.

TVM's torch importer has no converters for them. See
https://docs.pytorch.org/ao/stable/pt2e_quantization/index.html
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

_OPERATORS = "torch.ao.quantization.fx._decomposed"  # or torchao, which registers them as well
_TYPES = ("uint8", "int8")


def register_operators() -> None:
    """Register the operators with torch, which otherwise cannot read programs that use them."""
    for module in (_OPERATORS, "torchao.quantization.pt2e"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
            return


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """Return the converters for `custom_convert_map` of `from_exported_program`."""
    return {
        "quantize_per_tensor.default": _quantize,
        "dequantize_per_tensor.default": _dequantize,
        "quantize_per_channel.default": _quantize_channels,
        "dequantize_per_channel.default": _dequantize_channels,
    }


def _quantize(node: Any, importer: Any) -> Any:
    """Convert quantize_per_tensor."""
    data, scale, zero, low, high, dtype = node.args[:6]
    return _quantized(importer, data, _numbers(scale, zero, dtype), 0, low, high, dtype)


def _quantize_channels(node: Any, importer: Any) -> Any:
    """Convert quantize_per_channel."""
    data, scales, zeros, axis, low, high, dtype = node.args[:7]
    return _quantized(
        importer, data, _tensors(importer, scales, zeros, dtype), axis, low, high, dtype
    )


def _quantized(
    importer: Any, data: Any, numbers: tuple[Any, Any], axis: int, low: int, high: int, dtype: Any
) -> Any:
    """Return the quantized data, clipped to low and high if the type does not imply them."""
    emit, name = importer.block_builder.emit, _name(dtype)
    value = emit(relax.op.quantize(importer.env[data], *numbers, axis=axis, out_dtype=name))
    limits = np.iinfo(name)
    if low > limits.min:
        value = emit(relax.op.maximum(relax.const(low, name), value))
    if high < limits.max:
        value = emit(relax.op.minimum(relax.const(high, name), value))
    return value


def _dequantize(node: Any, importer: Any) -> Any:
    """Convert dequantize_per_tensor."""
    data, scale, zero, _, _, dtype = node.args[:6]
    return importer.block_builder.emit(
        relax.op.dequantize(importer.env[data], *_numbers(scale, zero, dtype), axis=0)
    )


def _dequantize_channels(node: Any, importer: Any) -> Any:
    """Convert dequantize_per_channel."""
    data, scales, zeros, axis, _, _, dtype = node.args[:7]
    return importer.block_builder.emit(
        relax.op.dequantize(
            importer.env[data], *_tensors(importer, scales, zeros, dtype), axis=axis
        )
    )


def _numbers(scale: float, zero: int, dtype: Any) -> tuple[Any, Any]:
    """Return scale and zero point as constants."""
    return relax.const(scale, "float32"), relax.const(zero, _name(dtype))


def _tensors(importer: Any, scales: Any, zeros: Any, dtype: Any) -> tuple[Any, Any]:
    """Return scales and zero points per channel; zeros if there are no zero points."""
    emit, name = importer.block_builder.emit, _name(dtype)
    scale = emit(relax.op.astype(importer.env[scales], "float32"))
    if zeros is None:
        return scale, relax.const(np.zeros([int(extent) for extent in scale.ty.shape], name), name)
    return scale, emit(relax.op.astype(importer.env[zeros], name))


def _name(dtype: Any) -> str:
    """Return the name of a one-byte type; raise NotImplementedError for other types."""
    name = str(dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise NotImplementedError(f"quantized to {name}: only {' and '.join(_TYPES)} are supported")
    return name
