"""Halves a float model: its weights are kept in half precision, and are float32 again where something is computed with them.

The compiler keeps such weights as float16 in what it builds (see farm.compiler.halves). The arithmetic stays that of float32, so that a
model loses what rounding its weights to eleven binary digits loses, and nothing else: no calibration, no ranges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler import passes
from farm.compiler.dequantized import is_quantized
from farm.compiler.folding import view
from farm.compiler.halves import HALF, LEAST_BYTES, SINGLE
from farm.errors import ModelError
from farm.importers.imported import Imported
from farm.importers.relax_module import detach_weights
from farm.quantize.calibrating import Floating
from farm.quantize.inserting import Point, bindings_of, named

Array = np.ndarray[Any, Any]
LARGEST, LEAST_NORMAL, LEAST = 65504.0, 2.0**-14, 2.0**-25  # of float16; what is not above the last becomes zero


def floating(imported: Imported, what: str) -> Floating:
    """Raises ModelError for a model that is quantized already, and for one without weights to halve."""
    module = passes.folded(passes.bind(imported.module, imported.weights))
    if is_quantized(module):
        fix = "use it as it is, or halve the float model that it was made of"
        raise ModelError(f"{what} is quantized already", "it quantizes and dequantizes tensors by itself", fix)
    if not any(map(_is_weight, _constants(module))):
        why = f"it has no weight of float32 and of {LEAST_BYTES} bytes or more whose numbers float16 can hold"
        raise ModelError(f"{what} has nothing to keep in float16", why, "use it as it is")
    return Floating(imported, module, _points(module))


def halved(module: tvm.IRModule) -> tvm.IRModule:
    """The module with its weights as float16, each made float32 where it is used. One that holds a larger number than float16 can stays."""
    result = module.clone()
    result["main"] = _Halver(module).visit_expr(module["main"])
    return result


def detached(model: Floating) -> tuple[tvm.IRModule, list[Array]]:
    """The halved module and its weights, as an import gives them."""
    return detach_weights(halved(model.module), len(model.imported.inputs))


def remarks(module: tvm.IRModule) -> list[str]:
    """What float16 does to weights besides rounding them: which stay float32, and how many numbers lose more digits than others."""
    found, small, zero, total = [], 0, 0, 0
    for value in _constants(module):
        if _is_weight(value):
            size = np.abs(value[value != 0])
            small, zero, total = small + int((size < LEAST_NORMAL).sum()), zero + int((size <= LEAST).sum()), total + value.size
        elif _is_large(value):
            largest = float(np.abs(value).max())
            shape = "x".join(map(str, value.shape))
            why = f"{largest:.3g} is above {LARGEST:.0f}" if np.isfinite(largest) else "it holds numbers that are not finite"
            found.append(f"a weight of {shape} stays float32: {why}")
    if small:
        are = "is" if small == 1 else "are"
        lost = {0: "none becomes zero", 1: "1 of them becomes zero"}.get(zero, f"{zero} of them become zero")
        found.append(f"{small} of {total} numbers {are} below {LEAST_NORMAL:.1e}, where float16 has fewer digits; {lost}")
    return found


def _points(module: tvm.IRModule) -> list[Point]:
    """What is computed with the weights, in the order in which it is: of operators with several results the first."""
    bindings, found = bindings_of(module), []
    bound = {binding.var: binding.value for binding in bindings}
    direct = {binding.var for binding in bindings if any(map(_is_weight, _constants_in(binding.value)))}
    for binding in bindings:
        first = isinstance(binding.value, relax.TupleGetItem) and int(binding.value.index) == 0 and binding.value.tuple_value in direct
        if (binding.var in direct or first) and str(getattr(binding.var.ty, "dtype", "")) == SINGLE:
            found.append(Point(binding.var, named(binding.var, bound)))
    return found


def _constants(module: tvm.IRModule) -> list[Array]:
    return _constants_in(module["main"])


def _constants_in(expression: Any) -> list[Array]:
    found: dict[Any, Array] = {}

    def look(node: Any) -> None:
        if isinstance(node, GenericConst) and node not in found:
            found[node] = view(node.value)

    relax.analysis.post_order_visit(expression, look)
    return list(found.values())


def _is_large(value: Array) -> bool:
    return value.dtype == np.float32 and value.ndim > 1 and value.nbytes >= LEAST_BYTES


def _is_weight(value: Array) -> bool:
    return _is_large(value) and bool(np.isfinite(value).all() and np.abs(value).max() <= LARGEST)


@mutator
class _Halver(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._made: dict[Any, relax.Expr] = {}

    def visit_generic_const_(self, expression: GenericConst) -> relax.Expr:
        if expression not in self._made:
            value = view(expression.value)
            if not _is_weight(value):
                return expression
            self._made[expression] = relax.const(value.astype(np.float16), HALF)
        return self.builder_.emit(relax.op.astype(self._made[expression], SINGLE))
