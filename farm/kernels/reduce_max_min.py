"""Emit max and min reductions of floating-point tensors that start at an infinity.

TVM's reductions start at the largest finite number, and return that number for infinities.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx


def emit_float_minmax_reduction(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Emit the kernel of a relax.max or relax.min; return None for integers.

    TVM's own reductions of integers are correct.
    """
    data, attributes = call.args[0], call.attrs
    if "float" not in str(data.ty.dtype):
        return None
    count = len(data.ty.shape)
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
    dtype = str(data.dtype)
    begin = tirx.const(float("-inf") if largest else float("inf"), dtype)
    pick = tirx.max if largest else tirx.min
    reducer = te.comm_reducer(
        lambda one, other: pick(one, other), lambda _: begin, name="max" if largest else "min"
    )
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


EMIT = {"relax.max": emit_float_minmax_reduction, "relax.min": emit_float_minmax_reduction}
