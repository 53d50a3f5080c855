"""Make a selection of an `If` whose branches are computed, and one dataflow block of the graph.

TVM's importer computes both branches before an `If` that only chooses a result. A graph with an
`If` has no dataflow block, and passes that fuse operators and choose layouts work on these blocks
alone.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir.expr import GenericConst


def replace_relax_ifs_by_where(module: Any) -> Any:
    """Return the module with selections in place of such `If`s, and with dataflow blocks."""
    main = module["main"]
    if any(isinstance(block, relax.DataflowBlock) for block in main.body.blocks):
        return module
    chosen = _Selecting(module)
    module.update_func(module.get_global_var("main"), chosen.visit_expr(main))
    return relax.transform.ConvertToDataflow()(relax.transform.CanonicalizeBindings()(module))


@relax.expr_functor.mutator
class _Selecting(relax.PyExprMutator):  # type: ignore[misc]
    """Replace each `If` between two values of one type by `where`."""

    def visit_if_(self, choice: Any) -> Any:
        condition = self.visit_expr(choice.cond)
        pair = [_chosen(branch) for branch in (choice.true_branch, choice.false_branch)]
        if any(one is None for one in pair):
            return super().visit_if_(choice)
        yes, no = (self.visit_expr(one) for one in pair)
        selected = self._selected(condition, yes, no)
        return super().visit_if_(choice) if selected is None else selected

    def _selected(self, condition: Any, yes: Any, no: Any) -> Any:
        """Return the selection of two tensors or tuples; None if their types differ."""
        if (
            isinstance(yes, relax.Tuple)
            and isinstance(no, relax.Tuple)
            and len(yes.fields) == len(no.fields)
        ):
            parts = [
                self._selected(condition, one, other)
                for one, other in zip(yes.fields, no.fields, strict=True)
            ]
            return (
                None
                if any(part is None for part in parts)
                else relax.Tuple([self.builder_.emit(part) for part in parts])
            )
        kinds = [one.ty for one in (condition, yes, no)]
        if not all(isinstance(kind, relax.TensorType) and kind.shape is not None for kind in kinds):
            return None
        if kinds[1].dtype != kinds[2].dtype or not _same(kinds[1].shape, kinds[2].shape):
            return None
        scalar = (
            condition if kinds[0].ndim == 0 else self.builder_.emit(relax.op.reshape(condition, ()))
        )
        return relax.op.where(scalar, yes, no)


def _same(shape: Any, other: Any) -> bool:
    """Return whether two shapes are the same, with fixed extents or the same symbols."""
    extents, others = list(shape), list(other)
    return len(extents) == len(others) and all(
        one.same_as(two)
        or (hasattr(one, "value") and hasattr(two, "value") and one.value == two.value)
        for one, two in zip(extents, others, strict=True)
    )


def _chosen(branch: Any) -> Any:
    """Return the value of a branch that computes nothing; None if it computes something."""
    renamed: dict[Any, Any] = {}

    def resolved(value: Any) -> Any:
        if isinstance(value, relax.Tuple):
            fields = [resolved(field) for field in value.fields]
            return None if any(field is None for field in fields) else relax.Tuple(fields)
        if isinstance(value, relax.Var):
            return renamed.get(value, value)
        return value if isinstance(value, GenericConst) else None

    for block in branch.blocks:
        for binding in block.bindings:
            if (
                not isinstance(binding, relax.VarBinding)
                or (value := resolved(binding.value)) is None
            ):
                return None
            renamed[binding.var] = value
    return resolved(branch.body)
