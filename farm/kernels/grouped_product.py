"""Emit products of rows with the matrices of their groups (grouped GEMM), as experts have them.

A row's matrix is read where it lies; nothing is copied. Shazeer et al., "Outrageously Large Neural
Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017.
"""

from __future__ import annotations

from tvm import relax, te, tirx

_NAME = "grouped_product"


def emit_grouped_product(
    builder: relax.BlockBuilder, rows: relax.Expr, weights: relax.Expr, ends: relax.Expr
) -> relax.Expr:
    """Emit the product of each row [S, K] with the matrix of its group, of [G, K, N]: [S, N].

    Rows are sorted by group; `ends` [G] tells behind which row each group ends, as int32 or int64.
    The result is zero for rows behind the last group.
    """
    return builder.emit(builder.call_te(_product, rows, weights, ends, primfunc_name_hint=_NAME))


def _product(rows: te.Tensor, weights: te.Tensor, ends: te.Tensor) -> te.Tensor:
    count, depth, columns = rows.shape[0], rows.shape[1], weights.shape[2]
    groups, dtype = weights.shape[0], str(rows.dtype)
    g = te.reduce_axis((0, groups), name="g")
    before = te.compute(
        (count,),
        lambda s: te.sum(tirx.Cast("int32", ends[g] <= tirx.Cast(str(ends.dtype), s)), axis=g),
        name="groups_before",
    )
    k = te.reduce_axis((0, depth), name="k")
    products = te.compute(
        (count, columns),
        lambda s, n: te.sum(
            rows[s, k] * weights[tirx.min(before[s], tirx.Cast("int32", groups - 1)), k, n], axis=k
        ),
        name="products",
    )
    return te.compute(
        (count, columns),
        lambda s, n: tirx.Select(
            before[s] < tirx.Cast("int32", groups), products[s, n], tirx.const(0, dtype)
        ),
        name=_NAME,
    )
