"""Join many tensors in groups.

A kernel that joins tensors chooses among all of them for each element, and LLVM takes time in the
square of their number: half a minute for the 498 steps of an unrolled loop. The groups of such a
loop are alike, so that they share a kernel. Each group costs one more copy of its elements.
`fusion_barriers` keeps groups and what joins them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.ir.relax_rewriter import Rewriter, Rule

MOST_JOINED = 32  # the most tensors that one kernel joins


@mutator
class WideConcatRewriter(Rewriter):
    """Rewrites concatenations and stacks of many tensors as concatenations of few."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.concat": self._concat, "relax.stack": self._stack}

    def _concat(self, call: Call) -> relax.Expr | None:
        parts = self._parts(call)
        if parts is None or call.attrs.axis is None:  # None: all axes become one
            return None
        return self._joined(parts, int(call.attrs.axis))

    def _stack(self, call: Call) -> relax.Expr | None:
        if (parts := self._parts(call)) is None:
            return None
        axis = int(call.attrs.axis)
        groups = [
            self.builder_.emit(relax.op.stack(parts[first : first + MOST_JOINED], axis))
            for first in range(0, len(parts), MOST_JOINED)
        ]
        return self._joined(groups, axis)

    def _parts(self, call: Call) -> list[relax.Expr] | None:
        """Return the tensors that a call joins; None for few."""
        parts = self.bound(call.args[0])
        wide = isinstance(parts, relax.Tuple) and len(parts.fields) > MOST_JOINED
        return list(parts.fields) if wide else None

    def _joined(self, parts: Sequence[relax.Expr], axis: int) -> relax.Expr:
        while len(parts) > MOST_JOINED:
            parts = [
                self.builder_.emit(relax.op.concat(parts[first : first + MOST_JOINED], axis))
                for first in range(0, len(parts), MOST_JOINED)
            ]
        return relax.op.concat(parts, axis)
