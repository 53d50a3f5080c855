"""Convert activations whose attributes TVM 0.27 takes for float32, whatever the input's type is."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs

_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _exponential_below_zero(data: relax.Expr, alpha: float) -> relax.Expr:
    """Return x above 0, alpha * (exp(x) - 1) below."""
    dtype = str(data.ty.dtype)
    falls = relax.op.nn.relu(relax.op.subtract(relax.const(1.0, dtype), relax.op.exp(data)))
    return relax.op.add(
        relax.op.multiply(relax.const(-alpha, dtype), falls), relax.op.nn.relu(data)
    )


class Elu(OnnxOpConverter):  # type: ignore[misc]
    """Elu: x above 0, alpha * (exp(x) - 1) below."""

    @classmethod
    def _impl_v1(
        cls, _builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        return _exponential_below_zero(inputs[0], attributes.get("alpha", 1.0))


class Selu(OnnxOpConverter):  # type: ignore[misc]
    """Selu: gamma times the Elu with another alpha."""

    @classmethod
    def _impl_v1(
        cls, _builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        gamma = relax.const(attributes.get("gamma", _SELU_GAMMA), str(inputs[0].ty.dtype))
        return relax.op.multiply(
            gamma, _exponential_below_zero(inputs[0], attributes.get("alpha", _SELU_ALPHA))
        )


class ThresholdedRelu(OnnxOpConverter):  # type: ignore[misc]
    """ThresholdedRelu: x above alpha, 0 elsewhere."""

    @classmethod
    def _impl_v1(
        cls, _builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, dtype = inputs[0], str(inputs[0].ty.dtype)
        above = relax.op.greater(data, relax.const(attributes.get("alpha", 1.0), dtype))
        return relax.op.where(above, data, relax.const(0.0, dtype))


class Shrink(onnx_frontend.Shrink):  # type: ignore[misc]
    """Shrink of floats; of integers it is computed as floats, as ONNX defines it."""

    @classmethod
    def _impl_v9(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
    ) -> relax.Expr:
        dtype = str(inputs[0].ty.dtype)
        if "float" in dtype:
            return super()._impl_v9(builder, inputs, attributes, params)
        data = builder.emit(relax.op.astype(inputs[0], "float64"))
        made = super()._impl_v9(builder, [data], attributes, params)
        return relax.op.astype(builder.emit(made), dtype)


class Clip(onnx_frontend.Clip):  # type: ignore[misc]
    """Clip; before opset 11 its limits are attributes, which have the type of the input."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, params: Any
    ) -> relax.Expr:
        dtype = str(inputs[0].ty.dtype)
        made = super()._impl_v1(builder, inputs, attributes, params)
        return made if str(made.ty.dtype) == dtype else relax.op.astype(made, dtype)


CONVERTERS = {
    "Elu": Elu,
    "Selu": Selu,
    "ThresholdedRelu": ThresholdedRelu,
    "Shrink": Shrink,
    "Clip": Clip,
}
