"""Write scatters whose constant indices are a slice as kernels without indices.

torch's exporter by TorchScript writes `x[:, 1:] += y` as a ScatterND with an index along each axis
for each element of y. Without this pass those indices are a constant of twice the size of y for
each axis: as large as the weights in MViTv2.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import mutator

from farm.compiler.graph.scattered_rows import number_of_full
from farm.compiler.ir.constants import constant_value
from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.relax_rewriter import Rewriter, Rule, shape_of
from farm.kernels.slice_scatter import REDUCTIONS, emit_slice_scatter, slices_of_indices


@mutator
class SliceScatterRewriter(Rewriter):
    """Computes scatters of slices by farm's kernel, on all targets."""

    def rules(self) -> Mapping[str, Rule]:
        """Return the rules by the names of operators."""
        return {"relax.scatter_nd": self._scatter}

    def _scatter(self, call: Call) -> relax.Expr | None:
        data, indices, _ = call.args
        shape, value = shape_of(data), constant_value(indices)
        if (
            shape is None
            or value is None
            or not value.size
            or str(call.attrs.reduction) not in REDUCTIONS
        ):
            return None
        extents = shape[: value.shape[-1]]
        if any(map(is_dynamic, extents)):
            return None
        slices = slices_of_indices(value, [int(extent) for extent in extents])
        if slices is None:
            return None
        return emit_slice_scatter(self.builder_, call, slices, number_of_full(self.bound(data)))
