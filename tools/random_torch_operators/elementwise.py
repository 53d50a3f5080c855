"""Rules of operators that compute each element for itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from random_torch_operators.drawing import Draw, Rule, broadcast_partner

_WIDE = ("float32", "float32", "float64", "float16")
_KINDS = (*_WIDE, "int64", "int32", "int8", "uint8", "int16", "bool")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
# By name, the range of inputs; None if integers will do, too.
_UNARY: dict[str, tuple[float, float] | None] = {
    **dict.fromkeys(
        [
            "abs",
            "neg",
            "sign",
            "sgn",
            "square",
            "exp",
            "exp2",
            "expm1",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "sigmoid",
            "erf",
            "erfc",
            "atan",
            "asinh",
            "ceil",
            "floor",
            "round",
            "trunc",
            "frac",
            "isnan",
            "isinf",
            "isfinite",
            "isneginf",
            "isposinf",
            "logical_not",
            "positive",
            "signbit",
            "reciprocal",
            "relu",
        ]
    ),
    **dict.fromkeys(["acos", "asin", "atanh", "erfinv"], (-0.95, 0.95)),
    **dict.fromkeys(["acosh", "lgamma", "digamma"], (1.1, 6.0)),
    **dict.fromkeys(["log", "log2", "log10", "log1p", "sqrt", "rsqrt"], (0.05, 6.0)),
    **dict.fromkeys(["sinc", "deg2rad", "rad2deg", "i0"], (-3.0, 3.0)),
}
_BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "floor_divide",
    "remainder",
    "fmod",
    "pow",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "atan2",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "hypot",
    "copysign",
    "logaddexp",
    "xlogy",
    "heaviside",
]
_BITS = ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"]
_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)


def _special(draw: Draw, value: Any) -> Any:
    """Return the array, some of whose numbers are not finite."""
    if value.dtype.kind == "f" and value.size and draw.chance(0.2):
        value = value.copy()
        for _ in range(3):
            value.reshape(-1)[draw.whole(0, value.size - 1)] = draw.one_of(_SPECIAL)
    return value


def _unary(domain: tuple[float, float] | None, draw: Draw) -> None:
    name, shape = draw.case.operator, draw.shape(0, 4)
    if name in ("ceil", "floor", "trunc", "round", "reciprocal", "frac"):
        kinds: Any = (*_WIDE, "int32") if name not in ("frac", "reciprocal") else _WIDE
    elif name in ("sign", "sgn", "square", "abs", "neg", "positive"):
        kinds = _KINDS[:-1]
    elif name == "relu":
        kinds = (*_WIDE, "int32", "int64")
    else:
        kinds = _KINDS
    dtype = draw.one_of(kinds)
    if domain and dtype != "bool":
        value = draw.between(*domain, shape, "float64")
        value = (np.ceil(value) if "float" not in dtype and domain[0] > 0 else value).astype(dtype)
        if "uint" in dtype:
            value = np.abs(value)
    else:
        value = _special(draw, draw.array(shape, dtype))
    data = draw.view(draw.feed(value))
    if dtype[:5] == "float" and domain is None and hasattr_inplace(name) and draw.chance(0.15):
        draw.call(f"({data} * 1).{name}_")
    else:
        draw.call(f"torch.{name}", data)


def hasattr_inplace(name: str) -> bool:
    return name not in ("isnan", "isinf", "isfinite", "isneginf", "isposinf", "positive", "signbit")


def _other(draw: Draw, shape: Any, kinds: Any, *, zero: bool = True) -> tuple[str, str]:
    """Return a number or a tensor, and its type."""
    if draw.chance(0.3):
        number = draw.one_of([3, -2, 2, 0.5, -1.5, 1])
        return str(number), "float" if isinstance(number, float) else "int"
    dtype = draw.one_of(kinds)
    value = draw.array(broadcast_partner(draw, shape), dtype)
    if not zero:
        value = np.where(value == 0, np.asarray(1, value.dtype), value)
    return draw.given(_special(draw, value) if zero else value), dtype


def _binary(draw: Draw) -> None:
    name, shape = draw.case.operator, draw.shape(0, 4)
    arithmetic = name in ("add", "sub", "mul", "floor_divide", "remainder", "fmod")
    kinds: Any = _KINDS[:-1] if arithmetic else _KINDS
    if name in ("atan2", "hypot", "logaddexp", "pow", "xlogy", "copysign", "heaviside"):
        kinds = _WIDE[:3]
    first = draw.one_of(kinds)
    value = draw.array(shape, first)
    if name == "pow":
        value = draw.between(0.2, 3, shape, first)
        if draw.chance(0.3):
            first = draw.one_of(["int64", "int32"])
            draw.call("torch.pow", draw.feed(draw.array(shape, first)), draw.one_of([0, 1, 2, 3]))
            return
    divides = name in ("div", "floor_divide", "remainder", "fmod")
    same = draw.chance(0.5)
    other, kind = _other(draw, shape, [first] if same else kinds, zero=not divides)
    if other[0] not in "cx" and name in ("maximum", "minimum", "fmax", "fmin", "hypot"):
        other, kind = draw.given(draw.array(shape, first)), first
    if other[0] not in "cx" and (name in ("logaddexp", "atan2", "heaviside") or "logical" in name):
        other, kind = draw.given(draw.array(shape, first)), first
    if name in ("heaviside",) and kind != first:
        other = draw.given(draw.array(shape, first))
    left = draw.view(draw.feed(value if divides else _special(draw, value)))
    named = {}
    if name in ("add", "sub") and draw.chance(0.5):
        named["alpha"] = draw.one_of([2, -3] if "float" not in first else [2, -0.5, 3])
    if name == "div" and draw.chance(0.7):
        named["rounding_mode"] = draw.one_of(["'floor'", "'trunc'", None])
    if name in ("mul", "sub", "add", "div", "pow") and draw.chance(0.2) and other[0] not in "cx":
        function = {"mul": "*", "sub": "-", "add": "+", "div": "/", "pow": "**"}[name]
        draw.compute(f"{other.lstrip('-')} {function} {left}")
        return
    draw.call(f"torch.{name}", left, other, **named)


def _bits(draw: Draw) -> None:
    name, shape = draw.case.operator, draw.shape(0, 4)
    shift = "shift" in name
    kinds = _INTEGERS if shift else (*_INTEGERS, "bool")
    first = draw.one_of(kinds)
    second = first if draw.chance(0.6) else draw.one_of(kinds)
    partner = broadcast_partner(draw, shape)
    value = draw.array(partner, second)
    if shift:
        value = np.abs(value) % 5
    other = draw.given(value) if draw.chance(0.7) else draw.one_of([1, 2, 3])
    draw.call(f"torch.{name}", draw.feed(draw.array(shape, first)), other)


def _activation(draw: Draw) -> None:
    choices: dict[str, dict[str, Any]] = {
        "elu": {"alpha": [0.5, 2.0]},
        "celu": {"alpha": [0.5, 2.0]},
        "selu": {},
        "gelu": {"approximate": ["'tanh'", "'none'"]},
        "leaky_relu": {"negative_slope": [0.2, -0.3]},
        "hardtanh": {"min_val": [-0.5, 0.1], "max_val": [0.7, 2]},
        "softplus": {"beta": [2.0, 0.5], "threshold": [1.0, 3.0]},
        "softshrink": {"lambd": [0.2, 1.0]},
        "hardshrink": {"lambd": [0.2, 1.0]},
        "threshold": {},
        **{
            name: {}
            for name in [
                "hardsigmoid",
                "hardswish",
                "relu6",
                "silu",
                "mish",
                "softsign",
                "logsigmoid",
                "tanhshrink",
            ]
        },
    }
    name = draw.one_of(sorted(choices))
    named = draw.some(**choices[name])
    data = draw.tensor(0, 4, draw.one_of(["float32", "float32", "float64", "float16"]), scale=3.0)
    if name == "threshold":
        draw.call("F.threshold", data, 0.3, -2.0)
        return
    draw.call(f"F.{name}", draw.view(data), **named)


def _clamp(draw: Draw) -> None:
    shape, kinds = draw.shape(0, 4), _KINDS[:-1]
    dtype = draw.one_of(kinds)
    data = draw.feed(_special(draw, draw.array(shape, dtype)))
    if draw.chance(0.5):
        bounds = draw.some(min=[-1, -2.5, 3, 0], max=[2, 1.5, -3])
        draw.call("torch.clamp", data, **(bounds or {"max": 1}))
        return
    bounds = {}
    for name in draw.one_of([("min",), ("max",), ("min", "max")]):
        kind = dtype if draw.chance(0.6) else draw.one_of(kinds)
        bounds[name] = draw.given(draw.array(broadcast_partner(draw, shape), kind))
    draw.call("torch.clamp", data, **bounds)


def _where(draw: Draw) -> None:
    shape = draw.shape(0, 4)
    condition = draw.feed(draw.array(shape, "bool"))
    one, _ = _other(draw, shape, _KINDS)
    other, _ = _other(draw, shape, _KINDS)
    draw.call("torch.where", condition, one, other)


def _masked_fill(draw: Draw) -> None:
    shape, dtype = draw.shape(0, 4), draw.one_of(_KINDS)
    data = draw.feed(draw.array(shape, dtype))
    mask = draw.given(draw.array(broadcast_partner(draw, shape)[-len(shape) or None :], "bool"))
    value = draw.one_of(["-inf", "nan", "2.5", "-1"] if "float" in dtype else ["3", "1"])
    if draw.chance(0.2):
        value = draw.constant(np.asarray(1).astype(dtype))
    draw.call(f"{data}.masked_fill", mask, value)


def _cast(draw: Draw) -> None:
    source, to = draw.one_of(_KINDS), draw.one_of(_KINDS)
    value = draw.array(draw.shape(0, 4), source, scale=4.0)
    if to == "uint8":
        value = np.abs(value)
    draw.call(f"{draw.view(draw.feed(value))}.to", f"torch.{to}")


def _several(draw: Draw) -> None:
    """addcmul, addcdiv, lerp: of three tensors."""
    shape, dtype = draw.shape(0, 4), draw.one_of(["float32", "float64"])
    name = draw.one_of(["addcmul", "addcdiv", "lerp", "lerp by number"])
    value = [draw.array(broadcast_partner(draw, shape), dtype) for _ in "abc"]
    if name == "addcdiv":
        value[2] = np.sign(value[2]) + value[2]
    names = [draw.given(value[0]), draw.feed(value[1]), draw.given(value[2])]
    if name == "lerp by number":
        draw.call("torch.lerp", *names[:2], draw.one_of([0.2, 1.5, -1]))
    elif name == "lerp":
        draw.call("torch.lerp", *names)
    else:
        draw.call(f"torch.{name}", *names, **draw.some(value=[0.5, -2]))


def _decimals(draw: Draw) -> None:
    data = draw.feed(draw.array(draw.shape(0, 3), draw.one_of(_WIDE[:3]), scale=20.0))
    draw.call("torch.round", data, decimals=draw.one_of([1, 2, -1, 0]))


def _nan_to_num(draw: Draw) -> None:
    value = draw.array(draw.shape(1, 3), draw.one_of(_WIDE))
    for number in _SPECIAL:
        value.reshape(-1)[draw.whole(0, value.size - 1)] = number
    draw.call(
        "torch.nan_to_num",
        draw.feed(value),
        **draw.some(nan=[1.5, -2.0], posinf=[7.0], neginf=[-8.0]),
    )


def _bucketize(draw: Draw) -> None:
    dtype = draw.one_of(["float32", "float64", "int64", "int32"])
    bounds = np.sort(draw.array((draw.whole(1, 9),), dtype))
    data = draw.tensor(0, 3, dtype)
    name = draw.one_of(["bucketize", "searchsorted"])
    how = draw.some(right=[True, False], out_int32=[True, False])
    if name == "bucketize":
        draw.call("torch.bucketize", data, draw.given(bounds), **how)
    else:
        draw.call("torch.searchsorted", draw.given(bounds), data, **how)


def _predicates(draw: Draw) -> None:
    dtype, shape = draw.one_of(["float32", "float64", "int64"]), draw.shape(1, 3)
    data = draw.feed(np.round(draw.array(shape, dtype)))
    other = draw.given(np.round(draw.array((4,), dtype)))
    if draw.chance(0.5):
        draw.call("torch.isin", data, other, **draw.some(invert=[True]))
    else:
        more = draw.given(np.round(draw.array(shape, dtype)))
        draw.call("torch.isclose", data, more, **draw.some(rtol=[0.5], atol=[1.0]))


def _loss(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    reduction = draw.one_of(["'none'", "'mean'", "'sum'"])
    name = draw.one_of(
        [
            *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "cross_entropy"),
            *("binary_cross_entropy_with_logits", "nll_loss"),
        ]
    )
    if name in ("cross_entropy", "nll_loss"):
        count, classes = draw.whole(1, 5), draw.whole(1, 6)
        more = tuple(draw.whole(1, 3) for _ in range(draw.whole(0, 2)))
        data = draw.feed(draw.array((count, classes, *more)))
        target = draw.feed(draw.random.integers(0, classes, (count, *more)))
        named = draw.some(ignore_index=[0, -100])
        if draw.chance(0.4):
            named["weight"] = draw.constant(draw.between(0.3, 2, (classes,), "float32"))
        if name == "cross_entropy":
            named |= draw.some(label_smoothing=[0.1, 0.3])
    else:
        data, target = (
            draw.feed(draw.array(shape)),
            draw.given(draw.between(0.1, 0.9, shape, "float32")),
        )
        named = {}
        if name == "smooth_l1_loss":
            named = draw.some(beta=[0.5, 2.0])
        if name == "huber_loss":
            named = draw.some(delta=[0.5, 2.0])
        if name == "kl_div":
            named = draw.some(log_target=[True, False])
    draw.call(f"F.{name}", data, target, reduction=reduction, **named)


RULES: dict[str, Rule] = {
    **{name: partial(_unary, domain) for name, domain in _UNARY.items()},
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_BITS, _bits),
    "activation": _activation,
    "clamp": _clamp,
    "where": _where,
    "masked_fill": _masked_fill,
    "to": _cast,
    "addcmul": _several,
    "round with decimals": _decimals,
    "nan_to_num": _nan_to_num,
    "bucketize": _bucketize,
    "isin": _predicates,
    "loss": _loss,
}
