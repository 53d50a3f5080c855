"""Multiply by one matrix where an exporter has repeated it for each product of a batch.

torch decomposes a linear layer whose input is not contiguous, as after a transpose, into a batch of
products: the weight is broadcast to the batch, 448 times in MaxViT. Without this pass the copies
are constants of their own: the files are larger than the model, and each product reads its weight
from memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.dynamic_extents import shapes_are_equal
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, op_name, shape_of

# They leave each matrix of the batch as it is, if the last two extents stay.
_BATCH_OPERATORS = ("relax.broadcast_to", "relax.expand_dims", "relax.reshape", "relax.squeeze")


@mutator
class BroadcastMatrixRewriter(Rewriter):
    """Replaces the right operand of a matmul by the matrix that it repeats."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.matmul": self._by_one_matrix}

    def _by_one_matrix(self, call: Call) -> relax.Expr | None:
        left, right = call.args
        shape, result = shape_of(left), shape_of(call)
        matrix = self._repeated_matrix(right)
        if matrix is None or shape is None or result is None:
            return None
        if not shapes_are_equal(shape[:-1], result[:-1]):  # the copies make the batch larger
            return None
        return relax.op.matmul(left, matrix, call.attrs.out_dtype)

    def _repeated_matrix(self, expression: relax.Expr) -> relax.Expr | None:
        """Return the matrix of which a tensor is copies; None if it is something else."""
        shape = shape_of(expression)
        if shape is None or len(shape) < 3:
            return None
        wanted, is_repeated = shape[-2:], False
        while len(shape) > 2:
            made = self.producer(expression)
            if made is None or op_name(made) not in _BATCH_OPERATORS:
                return None
            is_repeated |= op_name(made) == "relax.broadcast_to"
            expression = made.args[0]
            shape = shape_of(expression)
            if shape is None or not shapes_are_equal(shape[-2:], wanted):
                return None
        return expression if is_repeated else None
