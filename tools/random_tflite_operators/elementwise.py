"""Rules of operators that compute each element for itself."""

from __future__ import annotations

import numpy as np

from random_tflite_operators.drawing import WIDE, Draw, Rule, type_number

ACTIVATIONS = (0, 0, 1, 2, 3)  # none, RELU, RELU_N1_TO_1, RELU6
_OPTIONS = {
    **{name: f"{name.title()}Options" for name in ("ADD", "SUB", "MUL", "DIV", "POW")},
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), "MaximumMinimumOptions"),
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions",
    "FLOOR_DIV": "FloorDivOptions",
    "FLOOR_MOD": "FloorModOptions",
    "EQUAL": "EqualOptions",
    "NOT_EQUAL": "NotEqualOptions",
    "GREATER": "GreaterOptions",
    "GREATER_EQUAL": "GreaterEqualOptions",
    "LESS": "LessOptions",
    "LESS_EQUAL": "LessEqualOptions",
    "LOGICAL_AND": "LogicalAndOptions",
    "LOGICAL_OR": "LogicalOrOptions",
}
_BINARY_TYPES = {
    **dict.fromkeys(("ADD", "SUB"), (*WIDE, "int8", "uint8", "int16")),
    "MUL": (*WIDE, "int8", "uint8", "int16"),
    "DIV": ("float32", "float32", "int32"),  # LiteRT's of uint8 is wrong near 0
    "POW": ("float32", "float32", "int32"),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), (*WIDE, "int8", "uint8", "int16")),
    "SQUARED_DIFFERENCE": ("float32", "float32", "int32", "int8"),
    "FLOOR_DIV": ("float32", "int32", "int32"),
    "FLOOR_MOD": ("float32", "int32", "int64"),
    "ATAN2": ("float32",),
    "RIGHT_SHIFT": ("int8", "uint8", "int16", "uint16", "int32", "uint32"),
    "BITWISE_XOR": ("int8", "uint8", "int16", "uint16", "int32", "uint32"),
}
_COMPARED = (*WIDE, "int8", "uint8")
_FUSED = ("ADD", "SUB", "MUL", "DIV")
_UNQUANTIZED = ("RIGHT_SHIFT", "BITWISE_XOR")
_SAME_SCALE = ("MAXIMUM", "MINIMUM")


def _pair(draw: Draw, low: int = 0, high: int = 4) -> list[tuple[int, ...]]:
    """Return two shapes that broadcast."""
    whole = draw.shape(low, high)
    shapes = [whole, whole]
    if draw.chance(0.6):
        part = whole[draw.whole(0, len(whole)) :]
        shapes[1] = tuple(1 if draw.chance(0.3) else extent for extent in part)
        if draw.chance(0.3):
            shapes[0] = tuple(1 if draw.chance(0.2) else extent for extent in whole)
    return shapes[::-1] if draw.chance(0.3) else shapes


def _binary(draw: Draw) -> None:
    name = draw.case.operator
    dtype = draw.one_of(_BINARY_TYPES[name])
    shapes = _pair(draw)
    if name == "ATAN2":  # LiteRT's does not broadcast
        shapes[1] = shapes[0]
    plain = name in _UNQUANTIZED
    like = None
    given = []
    for place, shape in enumerate(shapes):
        value = draw.array(shape, dtype) if plain else draw.values(shape, dtype)
        if place and name in ("DIV", "FLOOR_DIV", "FLOOR_MOD"):
            if "float" in dtype:
                value = (np.sign(value) + (value == 0)) * (np.abs(value) + 0.3).astype(dtype)
            else:
                value = np.where(value == 0, 3, value).astype(dtype)
        if name == "POW":
            value = np.abs(value) % 4 if dtype == "int32" else (value if place else np.abs(value))
        if name == "RIGHT_SHIFT" and place:
            value = np.abs(value) % 8
        how = {} if plain else draw.quantized_like(dtype, like)
        value = value.astype(dtype)
        given.append(draw.feed(value, **how) if not place else draw.given(value, **how))
        if name in _SAME_SCALE:
            like = given[0]
    if draw.chance(0.3) and name in ("ADD", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"):
        given.reverse()
    result = draw.made(dtype, like) if not plain else draw.made_plain(dtype)
    fields = {"fusedActivationFunction": draw.one_of(ACTIVATIONS)} if name in _FUSED else {}
    if dtype == "int16" and name in ("ADD", "SUB"):
        fields["potScaleInt16"] = False
    if dtype not in ("float32", "int8", "uint8", "int16", "int32"):
        fields.pop("fusedActivationFunction", None)
    draw.op(given, [result], _OPTIONS.get(name, ""), **fields)


def _comparison(draw: Draw) -> None:
    name = draw.case.operator
    types = (*_COMPARED, "bool") if name in ("EQUAL", "NOT_EQUAL") else _COMPARED
    dtype = "bool" if name.startswith("LOGICAL") else draw.one_of(types)
    first, second = _pair(draw)
    value, other = draw.array(first, dtype), draw.array(second, dtype)
    if "float" in dtype:
        value, other = np.round(value), np.round(other)
    how = draw.quantization(dtype)
    given = [draw.feed(value, **how), draw.given(other, **how)]
    draw.op(given, [draw.made("bool")], _OPTIONS[name])


def _not(draw: Draw) -> None:
    draw.op([draw.feed(draw.array(draw.shape(), "bool"))], [draw.made("bool")], "LogicalNotOptions")


_UNARY_TYPES = {
    "ABS": ("float32", "int8", "int16", "int32"),
    "NEG": WIDE,
    "SIGN": ("float32", "float64", "int32"),
    "CEIL": ("float32",),
    "LOG": ("float32", "int8"),
    "EXP": ("float32", "int8"),
    "RSQRT": ("float32", "int8"),
    "SQUARE": ("float32",),
}


def _unary(draw: Draw) -> None:
    name = draw.case.operator
    dtype = draw.one_of(_UNARY_TYPES.get(name, ("float32",)))
    shape, how = draw.shape(), draw.quantization(dtype)
    value = draw.values(shape, dtype)
    if name in ("LOG", "RSQRT", "SQRT"):
        if how:
            how["zero"] = -128
            value = np.maximum(value, -120).astype(dtype)
        else:
            value = np.abs(value) + np.float32(0.1)
    if name == "ROUND":
        value = np.round(value * 2) / np.float32(2)
    options = {"ABS": "AbsOptions", "EXP": "ExpOptions", "COS": "CosOptions", "NEG": "NegOptions"}
    draw.op([draw.feed(value, **how)], [draw.made(dtype)], options.get(name, ""))


def _activation(draw: Draw) -> None:
    name = draw.case.operator
    dtype = draw.one_of(("float32", "int8", "uint8", "int16"))
    if dtype in ("uint8", "int16") and name in ("ELU", "GELU", "RELU_0_TO_1"):
        dtype = "int8"
    if dtype == "int16" and name in ("HARD_SWISH", "RELU_N1_TO_1"):
        dtype = "int8"
    given = draw.data(draw.shape(1, 4), dtype)
    if name in ("LOGISTIC", "TANH") and dtype != "float32":
        at = draw.case.tensors[draw.made(dtype)]
        fixed = {
            "LOGISTIC": {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)},
            "TANH": {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)},
        }
        at.scale, at.zero = fixed[name][dtype]
        result = len(draw.case.tensors) - 1
        if dtype == "int16":
            draw.case.steps = 8
    else:
        result = draw.made(dtype)
    fields = {}
    options = {
        "LEAKY_RELU": "LeakyReluOptions",
        "GELU": "GeluOptions",
        "HARD_SWISH": "HardSwishOptions",
    }
    if name == "LEAKY_RELU":
        fields["alpha"] = draw.one_of([0.1, 0.5, 1.5, -0.5])
    if name == "GELU":
        fields["approximate"] = draw.chance(0.5)
    draw.op([given], [result], options.get(name, ""), **fields)


def _prelu(draw: Draw) -> None:
    dtype = draw.one_of(("float32", "float32", "int8", "uint8"))
    shape = draw.shape(2, 4)
    part = shape[draw.whole(0, len(shape) - 1) :]
    alpha = tuple(1 if draw.chance(0.3) else extent for extent in part)
    slope = draw.given(draw.values(alpha, dtype), **draw.quantization(dtype))
    draw.op([draw.data(shape, dtype), slope], [draw.made(dtype)])


_CASTS = (
    "float32",
    "float64",
    "float16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "uint16",
    "uint32",
)


def _cast(draw: Draw) -> None:
    source, target = draw.one_of(_CASTS), draw.one_of(_CASTS)
    value = draw.array(draw.shape(), source, 4.0)
    if target.startswith("u") and value.dtype.kind != "b":
        value = np.abs(value)
    fields = {"inDataType": type_number(source), "outDataType": type_number(target)}
    draw.op([draw.feed(value)], [draw.made_plain(target)], "CastOptions", **fields)


def _add_n(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 4), draw.one_of(("float32", "int32"))
    given = [draw.data(shape, dtype) for _ in range(draw.whole(2, 4))]
    draw.op(given, [draw.made(dtype)], "AddNOptions")


def _select(draw: Draw) -> None:
    name = draw.case.operator
    dtype = draw.one_of(("float32", "float32", "int32", "int64", "int8", "bool"))
    whole = draw.shape(1, 4, least=2)
    if name == "SELECT":
        by_rows = draw.chance(0.3)
        shapes = [whole[:1] if by_rows else whole, whole, whole]
    else:
        # LiteRT does not resize results of one element
        shapes = [whole, *(_pair_of(draw, whole) for _ in range(2))]
        shapes = [shapes[at] for at in draw.random.permutation(3)]
    condition = draw.feed(draw.array(shapes[0], "bool"))
    first = draw.data(shapes[1], dtype)
    second = draw.data(shapes[2], dtype, first)
    draw.op(
        [condition, first, second],
        [draw.made(dtype, first)],
        "SelectV2Options" if name[-1] == "2" else "SelectOptions",
    )


def _pair_of(draw: Draw, whole: tuple[int, ...]) -> tuple[int, ...]:
    if draw.chance(0.5):
        return whole
    return tuple(1 if draw.chance(0.4) else one for one in whole[draw.whole(0, len(whole)) :])


def _quantize(draw: Draw) -> None:
    source = draw.one_of(("float32", "float32", "int8", "uint8", "int16"))
    target = draw.one_of(("int8", "uint8", "int16") if source == "float32" else ("int8", "uint8"))
    if source == "int16":
        target = draw.one_of(("int8", "int16"))
    draw.op([draw.data(draw.shape(1, 4), source)], [draw.made(target)], "QuantizeOptions")


def _dequantize(draw: Draw) -> None:
    source = draw.one_of(("int8", "uint8", "int16", "float16"))
    draw.op([draw.data(draw.shape(1, 4), source)], [draw.made("float32")], "DequantizeOptions")


def _fake_quant(draw: Draw) -> None:
    fields = {
        "min": draw.one_of([-1.0, -0.3, 0.0, 0.2]),
        "max": draw.one_of([1.0, 2.5]),
        "numBits": draw.whole(2, 10),
        "narrowRange": False,
    }
    draw.op(
        [draw.data(draw.shape(1, 4), "float32")],
        [draw.made("float32")],
        "FakeQuantOptions",
        **fields,
    )


def _zeros_like(draw: Draw) -> None:
    dtype = draw.one_of(WIDE)
    draw.op([draw.data(draw.shape(0, 4), dtype)], [draw.made(dtype)], "ZerosLikeOptions")


def _bitcast(draw: Draw) -> None:
    source, target = draw.one_of(
        [
            ("int32", "float32"),
            ("float32", "int32"),
            ("int16", "int8"),
            ("int64", "int32"),
            ("uint8", "int8"),
            ("int16", "uint32"),
            ("int8", "int32"),
        ]
    )
    ratio = np.dtype(target).itemsize // np.dtype(source).itemsize
    shape = draw.shape(0, 3)
    value = draw.array((*shape, ratio) if ratio > 1 else shape, source)
    draw.op([draw.feed(value)], [draw.made_plain(target)], "BitcastOptions")


def _bucketize(draw: Draw) -> None:
    dtype = draw.one_of(("float32", "int32", "int64", "float64"))
    value = draw.array(draw.shape(1, 3), dtype, 4.0)
    draw.op(
        [draw.feed(value)],
        [draw.made("int32")],
        "BucketizeOptions",
        boundaries=[-3.0, 0.0, 1.0, 4.0],
    )


RULES: dict[str, Rule] = {
    **dict.fromkeys(_BINARY_TYPES, _binary),
    **dict.fromkeys(
        ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"), _comparison
    ),
    **dict.fromkeys(("LOGICAL_AND", "LOGICAL_OR"), _comparison),
    "LOGICAL_NOT": _not,
    **dict.fromkeys(
        (
            "ABS",
            "NEG",
            "SIGN",
            "CEIL",
            "FLOOR",
            "ROUND",
            "EXP",
            "LOG",
            "SQRT",
            "RSQRT",
            "SIN",
            "COS",
            "SQUARE",
        ),
        _unary,
    ),
    **dict.fromkeys(
        (
            "RELU",
            "RELU6",
            "RELU_N1_TO_1",
            "RELU_0_TO_1",
            "LOGISTIC",
            "TANH",
            "ELU",
            "GELU",
            "HARD_SWISH",
            "LEAKY_RELU",
        ),
        _activation,
    ),
    "PRELU": _prelu,
    "CAST": _cast,
    "ADD_N": _add_n,
    "SELECT": _select,
    "SELECT_V2": _select,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
    "FAKE_QUANT": _fake_quant,
    "ZEROS_LIKE": _zeros_like,
    "BITCAST": _bitcast,
    "BUCKETIZE": _bucketize,
}
