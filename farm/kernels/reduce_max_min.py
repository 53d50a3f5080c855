"""Emit max and min reductions of floating-point tensors that start at an infinity.

TVM's reductions start at the largest finite number, and return that number for infinities.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx


def emit_float_minmax_reduction(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Emit the kernel of a relax.max or relax.min; return None for integers and for one number.

    TVM's own reductions of integers are correct.
    """
    data, attributes = call.args[0], call.attrs
    count = int(data.ty.ndim)
    if "float" not in str(data.ty.dtype) or count < 1:
        return None
    axes = (
        range(count) if attributes.axis is None else [int(axis) % count for axis in attributes.axis]
    )
    largest = call.op.name == "relax.max"
    return builder.call_te(
        _reduced,
        data,
        sorted(axes),
        bool(attributes.keepdims),
        largest,
        primfunc_name_hint=call.op.name[6:],
    )


def _reduced(data: te.Tensor, axes: list[int], keepdims: bool, largest: bool) -> te.Tensor:
    """Return the max or min of `data` over `axes`, which are sorted and not negative."""
    reducer = reduce_max if largest else reduce_min
    over = {axis: te.reduce_axis((0, data.shape[axis]), name=f"k{axis}") for axis in axes}
    shape = [
        1 if axis in over else extent
        for axis, extent in enumerate(data.shape)
        if keepdims or axis not in over
    ]

    def body(*at: Any) -> Any:
        places = iter(at)
        where = []
        for axis in range(len(data.shape)):
            place = next(places) if keepdims or axis not in over else None
            where.append(over.get(axis, place))
        return reducer(data[tuple(where)], axis=list(over.values()))

    return te.compute(shape, body, name="max" if largest else "min")


reduce_max = te.comm_reducer(
    lambda one, other: tirx.max(one, other), lambda dtype: tirx.const(float("-inf"), dtype), "max"
)
reduce_min = te.comm_reducer(
    lambda one, other: tirx.min(one, other), lambda dtype: tirx.const(float("inf"), dtype), "min"
)

OPERATORS = ("relax.max", "relax.min")
