"""Rules of operators that compute each element for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from random_operators.drawing import Draw, Rule
from random_operators.random_values import FLOATS, INTEGERS, NUMBERS, UNSIGNED, Shape

_TYPES = (*FLOATS, *INTEGERS, "bool")
_RANGES = {  # of the inputs of functions that are not defined, or steep, elsewhere
    "Acos": (-0.95, 0.95),
    "Asin": (-0.95, 0.95),
    "Atanh": (-0.95, 0.95),
    "Acosh": (1.01, 4),
    "Log": (0.05, 9),
    "Sqrt": (0.01, 9),
    "Reciprocal": (0.2, 4),
    "Tan": (-1.3, 1.3),
}
_ATTRIBUTES: dict[str, dict[str, Sequence[Any]]] = {
    "Celu": {"alpha": [0.3, 2.0]},
    "Elu": {"alpha": [0.3, 2.0]},
    "HardSigmoid": {"alpha": [0.1, 0.5], "beta": [0.1, 0.8]},
    "LeakyRelu": {"alpha": [0.2, 1.5]},
    "Selu": {"alpha": [0.4, 2.0], "gamma": [0.5, 3.0]},
    "Shrink": {"bias": [0.3, -1.0], "lambd": [0.2, 1.5]},
    "Swish": {"alpha": [0.3, 2.0]},
    "ThresholdedRelu": {"alpha": [0.2, 2.5]},
    "Gelu": {"approximate": ["none", "tanh"]},
}
_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf"),
    *("Exp", "Floor", "HardSwish", "Identity", "Log", "Mish", "Neg", "Reciprocal", "Relu"),
    *("Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh"),
)
_STATED_IN_HALVES = ("Round", "Ceil", "Floor")


def _unary(draw: Draw) -> None:
    operator = draw.case.operator
    dtype = draw.dtype(NUMBERS)
    if operator in _RANGES and "float" in dtype:
        value = draw.between(*_RANGES[operator], draw.shape(), dtype)
    else:
        value = draw.array(draw.shape(), dtype)
    if operator in _STATED_IN_HALVES:
        value = (np.round(value * 4) / 4).astype(dtype)
    attributes = draw.some(**_ATTRIBUTES.get(operator, {}))
    draw.node(draw.feed(value), **attributes)


def _not_finite(draw: Draw) -> None:
    value = draw.array(draw.shape(1), draw.dtype(FLOATS))
    for place, special in enumerate((np.inf, -np.inf, np.nan)):
        value.reshape(-1)[place::5] = special
    attributes = draw.some(detect_negative=[0, 1], detect_positive=[0, 1])
    draw.node(draw.feed(value), **attributes)


def _logical_not(draw: Draw) -> None:
    draw.node(draw.feed(draw.array(draw.shape(), "bool")))


def _bitwise_not(draw: Draw) -> None:
    draw.node(draw.feed(draw.array(draw.shape(), draw.dtype(INTEGERS))))


def broadcast_shapes(draw: Draw, count: int) -> list[Shape]:
    """Return shapes that broadcast to one: with axes of 1, and with fewer axes."""
    whole = draw.shape(0, 5)
    shapes = [whole]
    for _ in range(count - 1):
        kept = [1 if draw.chance(0.3) else extent for extent in whole]
        shapes.append(tuple(kept[draw.one_of([0, 0, draw.whole(0, len(kept))]) :]))
    return [shapes[int(place)] for place in draw.random.permutation(count)]


def _fed_and_given(draw: Draw, arrays: Sequence[Any]) -> list[str]:
    """Return inputs of which at least one is fed."""
    fed = draw.whole(0, len(arrays) - 1)
    return [
        draw.feed(array) if place == fed else draw.given(array)
        for place, array in enumerate(arrays)
    ]


def _binary(draw: Draw) -> None:
    dtype = draw.dtype((*NUMBERS, "bool"))
    draw.node(
        *_fed_and_given(draw, [draw.array(shape, dtype) for shape in broadcast_shapes(draw, 2)])
    )


def _binary_of_bools(draw: Draw) -> None:
    arrays = [draw.array(shape, "bool") for shape in broadcast_shapes(draw, 2)]
    draw.node(*_fed_and_given(draw, arrays))


def _divided(draw: Draw) -> None:
    dtype = draw.dtype(NUMBERS)
    left, right = (draw.array(shape, dtype) for shape in broadcast_shapes(draw, 2))
    right = np.where(np.abs(right) < 0.1, np.asarray(3, dtype), right)
    draw.node(*_fed_and_given(draw, [left, right]), **draw.some(fmod=[0, 1]))


def _modulo(draw: Draw) -> None:
    dtype = draw.dtype(NUMBERS)
    left, right = (draw.array(shape, dtype) for shape in broadcast_shapes(draw, 2))
    right = np.where(np.abs(right) < 0.1, np.asarray(3, dtype), right)
    fmod = {"fmod": 1} if "float" in dtype else draw.some(fmod=[0, 1])
    draw.node(*_fed_and_given(draw, [left, right]), **fmod)


def _power(draw: Draw) -> None:
    base = draw.dtype((*FLOATS, "int32", "int64"))
    other = draw.dtype((*FLOATS, *INTEGERS), 1) if draw.opset >= 12 else base
    left, right = broadcast_shapes(draw, 2)
    exponent = draw.one_of([2, 3, 0.5, -1, 1.5, 0]) if draw.chance(0.3) else None
    if "float" in base:
        value = draw.between(0.3, 3, left, base)
        if exponent is None or exponent in (2, 3, 0):
            value = value * draw.one_of([1, 1, -1]) if "float" not in other else value
        powers = draw.between(-2, 2, right, "float64")
    else:
        value, powers = draw.array(left, base), draw.random.integers(0, 4, right)
    if exponent is not None and "float" in base:
        powers = np.full(right, exponent)
    if "float" not in other:
        powers = np.abs(powers) if other.startswith("u") else powers
    draw.node(*_fed_and_given(draw, [np.asarray(value, base), np.asarray(powers).astype(other)]))


def _bits(draw: Draw) -> None:
    dtype = draw.dtype(INTEGERS)
    draw.node(
        *_fed_and_given(draw, [draw.array(shape, dtype) for shape in broadcast_shapes(draw, 2)])
    )


def _shifted(draw: Draw) -> None:
    dtype = draw.dtype(UNSIGNED)
    value, by = broadcast_shapes(draw, 2)
    shifts = draw.random.integers(0, 7, by).astype(dtype)
    value = draw.random.integers(0, 250, value).astype(dtype)
    draw.node(*_fed_and_given(draw, [value, shifts]), direction=draw.one_of(["LEFT", "RIGHT"]))


def _slope(draw: Draw) -> None:
    dtype, shape = draw.dtype(FLOATS), draw.shape(1, 5)
    slope = tuple(1 if draw.chance(0.4) else extent for extent in shape)
    slope = slope[draw.whole(0, len(slope)) :]
    draw.node(draw.feed(draw.array(shape, dtype)), draw.given(draw.array(slope, dtype)))


def _several(draw: Draw) -> None:
    dtype = draw.dtype(NUMBERS)
    shapes = broadcast_shapes(draw, draw.whole(1, 4))
    if draw.opset < 8:
        shapes = [shapes[0]] * len(shapes)
    draw.node(*_fed_and_given(draw, [draw.array(shape, dtype) for shape in shapes]))


def _clip(draw: Draw) -> None:
    dtype = draw.dtype(NUMBERS) if draw.opset >= 12 else draw.dtype(FLOATS)
    data = draw.feed(draw.array(draw.shape(), dtype))
    low, high = (-1.5, 2) if "float" in dtype else (3 if dtype.startswith("u") else -2, 5)
    if draw.opset < 11:
        draw.node(data, **draw.some(min=[float(low)], max=[float(high)]))
        return
    bounds = [
        draw.given(np.asarray(bound, dtype)) if draw.chance(0.7) else "" for bound in (low, high)
    ]
    draw.node(data, *bounds)


def _cast(draw: Draw) -> None:
    source, wanted = draw.dtype(_TYPES), draw.one_of(_TYPES)
    value = draw.array(draw.shape(), source)
    if wanted.startswith("u") and value.dtype != bool:
        value = np.abs(value)
    draw.node(draw.feed(value), to=_number(wanted))


def _cast_like(draw: Draw) -> None:
    source, wanted = draw.dtype(_TYPES), draw.one_of(_TYPES)
    value = draw.array(draw.shape(), source)
    if wanted.startswith("u") and value.dtype != bool:
        value = np.abs(value)
    draw.node(draw.feed(value), draw.given(draw.array(draw.shape(), wanted)))


def _bit_cast(draw: Draw) -> None:
    width = draw.one_of([1, 2, 4, 8])
    same = [one for one in (*FLOATS, *INTEGERS) if np.dtype(one).itemsize == width]
    source = draw.array(draw.shape(), draw.one_of(same))
    draw.node(draw.feed(source), to=_number(draw.one_of(same)))


def _number(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _where(draw: Draw) -> None:
    dtype = draw.dtype(_TYPES, 1)
    shapes = broadcast_shapes(draw, 3)
    arrays = [draw.array(shapes[0], "bool"), *(draw.array(one, dtype) for one in shapes[1:])]
    draw.node(*_fed_and_given(draw, arrays))


def _dropout(draw: Draw) -> None:
    data = draw.feed(draw.array(draw.shape(1), draw.dtype(FLOATS)))
    if draw.opset < 12:
        draw.node(data, **draw.some(ratio=[0.1, 0.9]))
        return
    ratio = draw.constant(np.float32(0.4)) if draw.chance(0.6) else ""
    training = draw.constant(np.asarray(False)) if draw.chance(0.5) else ""
    draw.node(data, ratio, training, **draw.some(seed=[3]))


def _fast_gelu(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    bias = draw.given(draw.array(shape[-1:])) if draw.chance(0.6) else ""
    draw.node(draw.feed(draw.array(shape)), bias)


def _bias_gelu(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    draw.node(draw.feed(draw.array(shape)), draw.given(draw.array(shape[-1:])))


def _quick_gelu(draw: Draw) -> None:
    draw.node(draw.feed(draw.array(draw.shape(1))), **draw.some(alpha=[0.5, 3.0]))


RULES: dict[str, Rule] = {
    **dict.fromkeys((*_UNARY, *_ATTRIBUTES), _unary),
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"), _binary
    ),
    **dict.fromkeys(("And", "Or", "Xor"), _binary_of_bools),
    **dict.fromkeys(("Max", "Min", "Mean", "Sum"), _several),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _bits),
    "Div": _divided,
    "Mod": _modulo,
    "Pow": _power,
    "BitShift": _shifted,
    "BitwiseNot": _bitwise_not,
    "Not": _logical_not,
    "IsInf": _not_finite,
    "IsNaN": _not_finite,
    "PRelu": _slope,
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast_like,
    "BitCast": _bit_cast,
    "Where": _where,
    "Dropout": _dropout,
}
CONTRIBUTED: dict[str, Rule] = {
    "FastGelu": _fast_gelu,
    "BiasGelu": _bias_gelu,
    "QuickGelu": _quick_gelu,
}
