"""Rules of operators that combine the elements of axes."""

from __future__ import annotations

import numpy as np

from random_tflite_operators.drawing import Draw, Rule


def _reduce(draw: Draw) -> None:
    name, shape = draw.case.operator, draw.shape(1, 4)
    dtype = draw.one_of(("float32", "float32", "int32", "int64", "int8", "uint8"))
    if name in ("REDUCE_ANY", "REDUCE_ALL"):
        dtype = "bool"
    if name == "REDUCE_PROD" and dtype in ("int8", "uint8"):  # LiteRT's overflow
        dtype = "float32"
    same = name in ("REDUCE_MAX", "REDUCE_MIN")
    value = draw.values(shape, dtype)
    if name == "REDUCE_PROD":
        value = draw.between(-1.5, 1.5, shape, "float64").round(3).astype(dtype)
    if name in ("REDUCE_ANY", "REDUCE_ALL"):
        value = draw.random.random(shape) < (0.15 if name == "REDUCE_ANY" else 0.85)
    data = draw.feed(value, **draw.quantization(dtype))
    axes = draw.axes(len(shape))
    where = draw.scalar(axes[0]) if draw.chance(0.2) else draw.whole_numbers(*axes)
    result = draw.made(dtype, data if same else None)
    draw.op([data, where], [result], "ReducerOptions", keepDims=draw.chance(0.5))


def _arg(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 4), draw.one_of(("float32", "float32", "int32", "int8", "uint8"))
    data = draw.data(shape, dtype)
    if draw.chance(0.6):
        value = draw.case.tensors[data].value
        draw.case.tensors[data].value = (np.round(value) % 3).astype(dtype)
    out = draw.one_of(("int32", "int64"))
    where = np.asarray(draw.axis(len(shape)), draw.one_of((np.int32, np.int64)))
    options = "ArgMaxOptions" if draw.case.operator == "ARG_MAX" else "ArgMinOptions"
    number = {"int32": 2, "int64": 4}[out]
    draw.op([data, draw.constant(where)], [draw.made(out)], options, outputType=number)


def _top_k(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    dtype = draw.one_of(("float32", "float32", "int32", "int64", "int8", "uint8"))
    count = draw.whole(1, shape[-1])
    value = np.argsort(draw.random.random(shape), -1) - (0 if dtype == "uint8" else shape[-1] // 3)
    if draw.chance(0.5):
        value //= 2
    data = draw.feed(value.astype(dtype), **draw.quantization(dtype))
    made = [draw.made(dtype, data), draw.made("int32")]
    draw.op([data, draw.scalar(count)], made, "TopKV2Options")


def _cumsum(draw: Draw) -> None:
    data = draw.data(shape := draw.shape(1, 4), draw.one_of(("float32", "int32", "int64")))
    fields = {"exclusive": draw.chance(0.5), "reverse": draw.chance(0.5)}
    draw.moved(data, draw.scalar(draw.axis(len(shape))), options="CumsumOptions", **fields)


def _softmax(draw: Draw) -> None:
    name = draw.case.operator
    dtype = draw.one_of(("float32", "float32", "int8", "uint8", "int16"))
    if name == "LOG_SOFTMAX" and dtype == "int16":
        dtype = "int8"
    data = draw.data(draw.shape(1, 4), dtype)
    result = draw.made(dtype)
    fixed = {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)}
    if name == "LOG_SOFTMAX":
        fixed = {"int8": (16 / 256, 127), "uint8": (16 / 256, 255)}
    if dtype in fixed:
        one = draw.case.tensors[result]
        one.scale, one.zero = fixed[dtype]
        draw.case.steps = 16 if dtype == "int16" else 1
    if name == "SOFTMAX":
        draw.op([data], [result], "SoftmaxOptions", beta=draw.one_of((1.0, 0.5, 2.0)))
    else:
        draw.op([data], [result], "LogSoftmaxOptions")


def _l2_norm(draw: Draw) -> None:
    dtype = draw.one_of(("float32", "float32", "int8", "uint8"))
    data = draw.data(draw.shape(1, 4), dtype)
    result = draw.made(dtype)
    if dtype != "float32":
        one = draw.case.tensors[result]
        one.scale, one.zero = 1 / 128, 0 if dtype == "int8" else 128
    draw.op([data], [result], "L2NormOptions", fusedActivationFunction=0)


def _response_norm(draw: Draw) -> None:
    shape = (draw.whole(1, 2), draw.whole(1, 4), draw.whole(1, 4), draw.whole(1, 9))
    fields = {
        "radius": draw.whole(1, 4),
        "bias": draw.one_of((1.0, 0.5, 2.0)),
        "alpha": draw.one_of((0.1, 1.0)),
        "beta": draw.one_of((0.5, 0.75, 1.5)),
    }
    options = "LocalResponseNormalizationOptions"
    draw.moved(draw.data(shape, "float32"), options=options, **fields)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"), _reduce),
    **dict.fromkeys(("REDUCE_ANY", "REDUCE_ALL"), _reduce),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _arg),
    "TOPK_V2": _top_k,
    "CUMSUM": _cumsum,
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX"), _softmax),
    "L2_NORMALIZATION": _l2_norm,
    "LOCAL_RESPONSE_NORMALIZATION": _response_norm,
}
