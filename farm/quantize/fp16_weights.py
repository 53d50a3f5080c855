"""Store the weights of a float model in half precision and convert them to float32 before use.

The compiler keeps such weights as float16 in a build (see
farm.compiler.graph.precision.fp16_weights). The arithmetic stays float32, so the only loss is the
rounding of the weights to eleven binary digits: neither calibration nor ranges are needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler import relax_pipeline
from farm.compiler.graph.precision.fp16_weights import HALF, LEAST_BYTES, SINGLE
from farm.compiler.graph.quantization.qdq_to_float import has_qdq
from farm.compiler.ir.constants import tensor_as_array
from farm.errors import ModelError
from farm.importers import relax_postprocessing
from farm.importers.imported_model import ImportedModel
from farm.quantize.calibration import FoldedModel
from farm.quantize.insert_qdq import QuantizationPoint, describe_tensor, main_bindings

Array = np.ndarray[Any, Any]
# Magnitudes of float16. Numbers up to LEAST become zero.
LARGEST, LEAST_NORMAL, LEAST = 65504.0, 2.0**-14, 2.0**-25


def fold_for_fp16_weights(imported: ImportedModel, what: str) -> FoldedModel:
    """Prepare an imported model for float16 weights.

    `what` names the model in errors. Raises ModelError if it is quantized already or has no weights
    to store as float16.
    """
    module = relax_pipeline.fold_norms_and_constants(
        relax_pipeline.bind_weights(imported.module, imported.weights)
    )
    if has_qdq(module):
        fix = "use it as it is, or halve the float model that it was made of"
        raise ModelError(
            f"{what} is quantized already", "it quantizes and dequantizes tensors by itself", fix
        )
    if not any(map(_is_weight, _constants(module))):
        why = (
            f"it has no weight of float32 and of {LEAST_BYTES} bytes or more whose numbers "
            "float16 can hold"
        )
        raise ModelError(f"{what} has nothing to keep in float16", why, "use it as it is")
    return FoldedModel(imported, module, _points(module))


def cast_weights_to_fp16(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with its weights as float16 constants, each followed by a cast to float32.

    A weight with a number too large for float16 stays float32.
    """
    result = module.clone()
    result["main"] = _Halver(module).visit_expr(module["main"])
    return result


def detach_weights(model: FoldedModel) -> tuple[tvm.IRModule, list[Array]]:
    """Return the module with float16 weights, and these weights, in the form of an import."""
    return relax_postprocessing.detach_weights(
        cast_weights_to_fp16(model.module), len(model.imported.inputs)
    )


def conversion_remarks(module: tvm.IRModule) -> list[str]:
    """Return remarks on the conversion: weights that stay float32, numbers that lose precision."""
    found, small, zero, total = [], 0, 0, 0
    for value in _constants(module):
        if _is_weight(value):
            size = np.abs(value[value != 0])
            small, zero, total = (
                small + int((size < LEAST_NORMAL).sum()),
                zero + int((size <= LEAST).sum()),
                total + value.size,
            )
        elif _is_large(value):
            largest = float(np.abs(value).max())
            shape = "x".join(map(str, value.shape))
            why = (
                f"{largest:.3g} is above {LARGEST:.0f}"
                if np.isfinite(largest)
                else "it holds numbers that are not finite"
            )
            found.append(f"a weight of {shape} stays float32: {why}")
    if small:
        are = "is" if small == 1 else "are"
        lost = {0: "none becomes zero", 1: "1 of them becomes zero"}.get(
            zero, f"{zero} of them become zero"
        )
        found.append(
            f"{small} of {total} numbers {are} below {LEAST_NORMAL:.1e}, where float16 has "
            f"fewer digits; {lost}"
        )
    return found


def _points(module: tvm.IRModule) -> list[QuantizationPoint]:
    """Return the results computed from the weights, in order; for a tuple, its first element."""
    bindings, found = main_bindings(module), []
    bound = {binding.var: binding.value for binding in bindings}
    direct = {
        binding.var for binding in bindings if any(map(_is_weight, _constants_in(binding.value)))
    }
    for binding in bindings:
        first = (
            isinstance(binding.value, relax.TupleGetItem)
            and int(binding.value.index) == 0
            and binding.value.tuple_value in direct
        )
        if (binding.var in direct or first) and str(getattr(binding.var.ty, "dtype", "")) == SINGLE:
            found.append(QuantizationPoint(binding.var, describe_tensor(binding.var, bound)))
    return found


def _constants(module: tvm.IRModule) -> list[Array]:
    return _constants_in(module["main"])


def _constants_in(expression: Any) -> list[Array]:
    found: dict[Any, Array] = {}

    def look(node: Any) -> None:
        if isinstance(node, GenericConst) and node not in found:
            found[node] = tensor_as_array(node.value)

    relax.analysis.post_order_visit(expression, look)
    return list(found.values())


def _is_large(value: Array) -> bool:
    """Return True for a float32 tensor of at least two axes and LEAST_BYTES."""
    return value.dtype == np.float32 and value.ndim > 1 and value.nbytes >= LEAST_BYTES


def _is_weight(value: Array) -> bool:
    """Return True for a large tensor whose numbers are all finite and within float16's range."""
    return _is_large(value) and bool(np.isfinite(value).all() and np.abs(value).max() <= LARGEST)


@mutator
class _Halver(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._made: dict[Any, relax.Expr] = {}

    def visit_generic_const_(self, expression: GenericConst) -> relax.Expr:
        if expression not in self._made:
            value = tensor_as_array(expression.value)
            if not _is_weight(value):
                return expression
            self._made[expression] = relax.const(value.astype(np.float16), HALF)
        return self.builder_.emit(relax.op.astype(self._made[expression], SINGLE))
