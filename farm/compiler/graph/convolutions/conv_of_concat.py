"""Rewrite a 1 x 1 convolution of a concatenation as a sum of convolutions of its parts.

The concatenation then needs no copy. SqueezeNet's modules (Iandola et al., 2016) have this form: 1
x 1 convolutions reduce the many channels of two other convolutions to few. Each further part costs
one more sum that is written and read again; the concatenation costs a write and a read of its
channels. The rewrite therefore pays only for few output channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, count_readers, shape_of


@mutator
class ConvOfConcatRewriter(Rewriter):
    """Rewrites 1 x 1 convolutions (NCHW, OIHW) that are the only consumer of a concatenation."""

    _layer = ""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._readers = count_readers(module["main"])

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.nn.conv2d": self._of_parts}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Remember the name of the binding that is rewritten next."""
        self._layer = binding.var.name
        super().visit_var_binding_(binding)

    def _of_parts(self, call: Call) -> relax.Expr | None:
        data, given, weight, joined = (
            call.args[0],
            call.attrs,
            constant_value(call.args[1]),
            self.called(call.args[0], "relax.concat"),
        )
        if (
            weight is None
            or joined is None
            or int(joined.attrs.axis) not in (1, -3)
            or self._readers[data] != 1
        ):
            return None
        plain = (given.data_layout, given.kernel_layout, int(given.groups)) == ("NCHW", "OIHW", 1)
        if not plain or weight.shape[2:] != (1, 1) or any(map(int, given.padding)):
            return None
        parts = self.bound(joined.args[0])
        shapes = (
            [shape_of(part) for part in parts.fields] if isinstance(parts, relax.Tuple) else [None]
        )
        outputs, inputs = weight.shape[:2]
        if (
            any(shape is None or is_dynamic(shape[1]) for shape in shapes)
            or 2 * (len(shapes) - 1) * outputs > inputs
        ):
            return None
        ends = np.cumsum([int(shape[1]) for shape in shapes])  # type: ignore[index]
        kernels = [np.ascontiguousarray(kernel) for kernel in np.split(weight, ends[:-1], axis=1)]
        sums = [
            relax.op.nn.conv2d(
                part,
                relax.const(kernel, kernel.dtype.name),
                given.strides,
                out_dtype=given.out_dtype,
            )
            for part, kernel in zip(parts.fields, kernels, strict=True)
        ]
        return reduce(lambda sum_, made: relax.op.add(self._emit(made), self._emit(sum_)), sums)

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value, name_hint=self._layer)
