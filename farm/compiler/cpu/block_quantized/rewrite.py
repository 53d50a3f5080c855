"""Replace the imported kernels of products with weights of few bits."""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.cpu.block_quantized.few_rows import product_of_few_rows
from farm.compiler.cpu.block_quantized.many_rows import product_of_many_rows
from farm.compiler.ir.blocks import block_names
from farm.compiler.ir.dynamic_extents import is_dynamic, product_at_batch_one
from farm.compiler.ir.relax_rewriter import Rewriter, Rule
from farm.kernels.block_quantized import PRODUCT

_MANY_ROWS = 16  # from here on it is faster to make floats of codes once for all rows


@mutator
class BlockQuantizedProductRewriter(Rewriter):
    """Replaces the imported kernels of such products by those of this package."""

    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._module = module

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.call_tir": self._product}

    def _product(self, call: Call) -> relax.Expr | None:
        kernel, operands = self._module[call.args[0]], call.args[1].fields
        if PRODUCT not in block_names(kernel):
            return None
        *outer, _ = operands[0].ty.shape
        is_open = any(map(is_dynamic, outer))
        many = not is_open and product_at_batch_one(outer) >= _MANY_ROWS
        body = product_of_many_rows if many else product_of_few_rows
        return self.builder_.call_te(body, *operands, primfunc_name_hint=PRODUCT)
