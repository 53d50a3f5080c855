"""Rules of operators that combine the elements of axes: reductions, searches, normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_operators.drawing import Draw, Rule
from random_operators.random_values import FLOATS, Shape

_AXES_ARE_INPUT = {"ReduceSum": 13}  # from which opset; 18 of the others
_WIDE = ("float32", "float32", "float64", "float16", "int32", "int64")


def _reduce(draw: Draw) -> None:
    operator = draw.case.operator
    shape = draw.shape(1, 5)
    dtype = draw.dtype((*_WIDE, "int8", "uint8") if operator[6:] in ("Max", "Min") else _WIDE)
    value = draw.array(shape, dtype, scale=1.0)
    if operator in ("ReduceLogSum", "ReduceProd"):
        value = draw.between(0.5, 1.4, shape, "float64") if "float" in dtype else np.abs(value) % 3
        value = (value + (operator == "ReduceLogSum" and "float" not in dtype)).astype(dtype)
    data = draw.feed(value)
    axes = draw.axes(len(shape))
    if draw.opset < 11:
        axes = [axis % len(shape) for axis in axes]
    attributes = draw.some(keepdims=[0, 1])
    if draw.opset < _AXES_ARE_INPUT.get(operator, 18):
        draw.node(data, **({"axes": axes} if draw.chance(0.8) else {}), **attributes)
        return
    attributes |= draw.some(noop_with_empty_axes=[0, 1])
    given = draw.one_of([axes, axes, axes, axes, [], None])
    draw.node(data, "" if given is None else draw.whole_numbers(given), **attributes)


def _softmax(draw: Draw) -> None:
    shape = draw.shape(1, 5)
    rank = len(shape)
    axes = list(range(-rank if draw.opset >= 11 else 0, rank))
    if rank == 1 and draw.opset < 13:
        axes = [0]
    attributes = draw.some(axis=axes)
    if not attributes and rank == 1:
        attributes = {"axis": 0}
    draw.node(draw.feed(draw.array(shape, draw.dtype(FLOATS))), **attributes)


def _arg(draw: Draw) -> None:
    shape = draw.shape(1, 5)
    dtype = draw.dtype(("float32", "float32", "float64", "float16", "int32", "int8", "uint8"))
    value = draw.array(shape, dtype)
    if draw.chance(0.6):  # with several largest ones
        value = (np.round(value) % 3).astype(dtype)
    rank = len(shape)
    axes = list(range(-rank if draw.opset >= 11 else 0, rank))
    attributes = draw.some(axis=axes, keepdims=[0, 1], select_last_index=[0, 1, 1])
    draw.node(draw.feed(value), **attributes)


def _top_k(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    dtype = draw.dtype(("float32", "float32", "float64", "float16", "int32", "int64"))
    axis = draw.axis(len(shape)) if draw.opset >= 11 else draw.whole(0, len(shape) - 1)
    count = draw.whole(1, shape[axis])
    places = np.argsort(draw.random.random(shape), axis)  # all different along the axis
    value = (places - shape[axis] // 3).astype(dtype)
    stated = {} if axis in (-1, len(shape) - 1) and draw.chance(0.5) else {"axis": axis}
    more = draw.some(largest=[0, 1], sorted=[0, 1]) if draw.opset >= 11 else {}
    if draw.opset < 10:
        draw.node(draw.feed(value), outputs=2, k=count, **stated)
    else:
        wanted = draw.whole_numbers([count])
        draw.node(draw.feed(value), wanted, outputs=2, **stated, **more)
    if not more.get("sorted", 1):
        draw.case.unordered = axis


def _cumulated(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 4), draw.dtype(_WIDE)
    value = draw.array(shape, dtype)
    if draw.case.operator == "CumProd" and "float" in dtype:
        value = draw.between(-1.4, 1.4, shape, dtype)
    axis = np.asarray(draw.axis(len(shape)), draw.one_of(["int64", "int32"]))
    attributes = draw.some(exclusive=[0, 1], reverse=[0, 1])
    draw.node(draw.feed(value), draw.constant(axis), **attributes)


def _epsilon(draw: Draw) -> dict[str, Any]:
    return draw.some(epsilon=[0.1, 0.5])


def _image(draw: Draw, low: int = 3, high: int = 5) -> Shape:
    return tuple(draw.whole(1, most) for most in (2, 6, 7, 5, 4)[: draw.whole(low, high)])


def _batch_norm(draw: Draw) -> None:
    shape, dtype = _image(draw, 2), draw.dtype(FLOATS)
    each = (shape[1],)
    data = draw.feed(draw.array(shape, dtype))
    scale, bias = (draw.given(draw.array(each, dtype)) for _ in "sb")
    mean = draw.constant(draw.array(each, dtype))
    variance = draw.constant(draw.between(0.3, 2, each, dtype))
    attributes = {**_epsilon(draw), **draw.some(momentum=[0.5])}
    if draw.opset >= 14 and draw.chance(0.3):
        attributes["training_mode"] = 1
        draw.node(data, scale, bias, mean, variance, outputs=3, read=[0], **attributes)
        return
    draw.node(data, scale, bias, mean, variance, **attributes)


def _instance_norm(draw: Draw) -> None:
    shape, dtype = _image(draw), draw.dtype(("float32", "float32", "float16"))
    parts = [draw.given(draw.array((shape[1],), dtype)) for _ in "sb"]
    draw.node(draw.feed(draw.array(shape, dtype)), *parts, **_epsilon(draw))


def _group_norm(draw: Draw) -> None:
    dtype, groups, each = draw.dtype(("float32", "float16")), draw.whole(1, 3), draw.whole(1, 3)
    shape = (draw.whole(1, 2), groups * each, *draw.shape(1, 2))
    size = (groups if draw.opset < 21 else groups * each,)
    parts = [draw.given(draw.array(size, dtype)) for _ in "sb"]
    data = draw.feed(draw.array(shape, dtype))
    draw.node(data, *parts, num_groups=groups, **_epsilon(draw))


def _layer_norm(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 4, least=2), draw.dtype(("float32", "float32", "float16"))
    axis = draw.axis(len(shape))
    stated = {} if axis == -1 and draw.chance(0.5) else {"axis": axis}
    of = shape[axis % len(shape) :]
    data, scale = draw.feed(draw.array(shape, dtype)), draw.given(draw.array(of, dtype))
    with_bias = draw.chance(0.6) and draw.case.operator == "LayerNormalization"
    bias = draw.given(draw.array(of, dtype)) if with_bias else ""
    outputs = draw.one_of([1, 1, 1, 3]) if draw.case.operator == "LayerNormalization" else 1
    draw.node(data, scale, bias, outputs=outputs, **stated, **_epsilon(draw))


def _skip_layer_norm(draw: Draw) -> None:
    shape = (draw.whole(1, 2), draw.whole(1, 4), draw.whole(2, 9))
    each = shape[-1:]
    data, skip = (draw.feed(draw.array(shape)) for _ in "ds")
    parts = [draw.given(draw.array(each))]
    parts += [draw.given(draw.array(each)) if draw.chance(0.6) else "" for _ in "bo"]
    if draw.chance(0.3):  # the sum, too
        draw.node(data, skip, *parts, outputs=4, read=[0, 3], **_epsilon(draw))
    else:
        draw.node(data, skip, *parts, **_epsilon(draw))


def _mean_variance(draw: Draw) -> None:
    shape = tuple(draw.whole(2, 6) for _ in range(4))
    axes = sorted(int(axis) for axis in draw.random.permutation(4)[: draw.whole(1, 3)])
    draw.node(draw.feed(draw.array(shape)), **draw.some(axes=[axes]))


def _lp_norm(draw: Draw) -> None:
    value = draw.array(draw.shape(1, 4), draw.dtype(FLOATS))
    axis = list(range(-value.ndim, value.ndim))
    draw.node(draw.feed(value), **draw.some(axis=axis, p=[1, 2]))


def _response_norm(draw: Draw) -> None:
    shape = (draw.whole(1, 2), draw.whole(1, 9), draw.whole(1, 5), draw.whole(1, 5))
    attributes = draw.some(alpha=[0.3, 1.0], beta=[0.5, 1.5], bias=[2.0, 0.5])
    draw.node(draw.feed(draw.array(shape)), size=draw.one_of([1, 3, 5]), **attributes)


def _global_pool(draw: Draw) -> None:
    value = draw.array(_image(draw), draw.dtype(("float32", "float32", "float64", "float16")))
    draw.node(draw.feed(value), **draw.some(p=[1, 2, 3]))


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
            *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        ),
        _reduce,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    **dict.fromkeys(("CumSum", "CumProd"), _cumulated),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _layer_norm),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    "TopK": _top_k,
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp_norm,
    "LRN": _response_norm,
}
CONTRIBUTED: dict[str, Rule] = {"SkipLayerNormalization": _skip_layer_norm}
