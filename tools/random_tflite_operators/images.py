"""Rules of operators that slide windows over images, or sample them."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_tflite_operators.drawing import Draw, Rule
from random_tflite_operators.elementwise import ACTIVATIONS

_SAME, _VALID = 0, 1


def weights(draw: Draw, shape: tuple[int, ...], dtype: str, axis: int) -> int:
    """Return constant weights; of bytes with a scale of each channel, or with one."""
    if dtype == "float32":
        return draw.constant(draw.array(shape, scale=0.5))
    if dtype == "uint8":
        how = draw.quantization("uint8")
        return draw.constant(draw.values(shape, "uint8"), **how)
    value = draw.random.integers(-127, 128, shape).astype(np.int8)
    count = shape[axis] if draw.chance(0.7) else 1
    axis = axis if count > 1 else 0
    scale = draw.random.uniform(0.005, 0.03, count).astype(np.float32)
    return draw.constant(value, scale=scale.tolist(), zero=0, axis=axis)


def bias(draw: Draw, count: int, data: int, weight: int, optional: bool = True) -> int:
    """Return a constant bias in the scale of the products, or none."""
    if optional and draw.chance(0.25):
        return -1
    given, by = draw.case.tensors[data], draw.case.tensors[weight]
    if given.scale is None:
        return draw.constant(draw.array((count,)))
    kind = np.int64 if given.dtype == "int16" else np.int32
    value = draw.random.integers(-3000, 3000, count).astype(kind)
    scale = (np.atleast_1d(np.asarray(by.scale, np.float32)) * np.float32(given.scale)).tolist()
    return draw.constant(value, scale=scale, zero=0)


def _strides(draw: Draw, most: int = 3) -> dict[str, int]:
    return {"strideH": draw.whole(1, most), "strideW": draw.whole(1, most)}


def _dilations(draw: Draw) -> dict[str, int]:
    if draw.chance(0.6):
        return {}
    return {"dilationHFactor": draw.whole(1, 3), "dilationWFactor": draw.whole(1, 3)}


def _wide_result(draw: Draw, data: int) -> int:
    """Return a result of a wider range than the data, where there are products."""
    result = draw.made(draw.dtype_of(data))
    one = draw.case.tensors[result]
    if one.scale is not None:
        one.scale = float(one.scale * draw.one_of((1, 3, 10)))
    return result


def _conv(draw: Draw) -> None:
    name = draw.case.operator
    dtype = draw.one_of(("float32", "float32", "int8", "int8", "uint8", "int16"))
    kernel = (draw.whole(1, 4), draw.whole(1, 4))
    channels = draw.one_of((1, 2, 3, 4, 6, 8, 16))
    padding, dilations = draw.whole(0, 1), _dilations(draw)
    spans = [
        (side - 1) * dilations.get(f"dilation{at}Factor", 1) + 1
        for side, at in zip(kernel, "HW", strict=True)
    ]
    sides = [draw.whole(span if padding == _VALID else 1, span + 7) for span in spans]
    data = draw.data((draw.whole(1, 2), *sides, channels), dtype)
    fields: dict[str, Any] = {"padding": padding, **_strides(draw), **dilations}
    fields["fusedActivationFunction"] = draw.one_of(ACTIVATIONS)
    if name == "CONV_2D":
        groups = draw.one_of([one for one in (1, 1, 1, 2, 3, 4) if channels % one == 0])
        out = groups * draw.whole(1, 5) if dtype in ("float32", "int8") else draw.whole(1, 9)
        groups = groups if dtype in ("float32", "int8") else 1
        weight = weights(draw, (out, *kernel, channels // groups), dtype, 0)
        options = "Conv2DOptions"
    else:
        times = draw.whole(1, 3)
        out = channels * times
        weight = weights(draw, (1, *kernel, out), dtype, 3)
        fields["depthMultiplier"], options = times, "DepthwiseConv2DOptions"
    given = [data, weight, bias(draw, out, data, weight, optional=dtype == "float32")]
    draw.op(given, [_wide_result(draw, data)], options, **fields)


def _transpose_conv(draw: Draw) -> None:
    dtype = draw.one_of(("float32", "float32", "int8", "uint8", "int16"))
    kernel, strides = (draw.whole(1, 4), draw.whole(1, 4)), _strides(draw)
    padding, channels, out = draw.whole(0, 1), draw.whole(1, 6), draw.whole(1, 6)
    sides = [draw.whole(1, 5), draw.whole(1, 5)]
    steps = [strides["strideH"], strides["strideW"]]
    if padding == _SAME:
        made = [
            side * step - draw.whole(0, step - 1) for side, step in zip(sides, steps, strict=True)
        ]
    else:
        made = [
            (side - 1) * step + span + draw.whole(0, step - 1)
            for side, step, span in zip(sides, steps, kernel, strict=True)
        ]
    batch = draw.whole(1, 2)
    data = draw.data((batch, *sides, channels), dtype)
    weight = weights(draw, (out, *kernel, channels), dtype, 0)
    given = [draw.whole_numbers(batch, *made, out), weight, data]
    if draw.chance(0.6) and (added := bias(draw, out, data, weight)) >= 0:
        given.append(added)
    fields = {"padding": padding, **strides}
    if draw.chance(0.4):
        fields["fusedActivationFunction"] = draw.one_of(ACTIVATIONS)
    draw.op(given, [_wide_result(draw, data)], "TransposeConvOptions", **fields)


def _pool(draw: Draw) -> None:
    name = draw.case.operator
    dtype = draw.one_of(("float32", "float32", "int8", "uint8", "int16"))
    if name == "L2_POOL_2D":
        dtype = "float32"
    kernel, padding = (draw.whole(1, 4), draw.whole(1, 4)), draw.whole(0, 1)
    sides = [draw.whole(side if padding == _VALID else 1, side + 6) for side in kernel]
    data = draw.data((draw.whole(1, 2), *sides, draw.whole(1, 9)), dtype)
    fields = {
        "padding": padding,
        **_strides(draw),
        "filterHeight": kernel[0],
        "filterWidth": kernel[1],
    }
    fields["fusedActivationFunction"] = draw.one_of(ACTIVATIONS)
    result = draw.made(dtype, data)
    if name == "AVERAGE_POOL_2D" and dtype != "float32":
        draw.case.steps = 1
    draw.op([data], [result], "Pool2DOptions", **fields)


def _resize(draw: Draw) -> None:
    bilinear = draw.case.operator == "RESIZE_BILINEAR"
    dtype = draw.one_of(("float32", "float32", "int8", "uint8", "int16"))
    data = draw.data(
        (draw.whole(1, 2), draw.whole(1, 8), draw.whole(1, 8), draw.whole(1, 4)), dtype
    )
    size = draw.whole_numbers(draw.whole(1, 17), draw.whole(1, 17))
    options = "ResizeBilinearOptions" if bilinear else "ResizeNearestNeighborOptions"
    fields = draw.one_of(((False, False), (True, False), (False, True), (False, True)))
    result = draw.made(dtype, data)
    if bilinear and dtype != "float32":
        draw.case.steps = 400 if dtype == "int16" else 1  # LiteRT's weights have ten bits
    how = {"alignCorners": fields[0], "halfPixelCenters": fields[1]}
    draw.op([data, size], [result], options, **how)


def _conv_3d(draw: Draw) -> None:
    padding = draw.whole(0, 1)
    kernel = tuple(draw.whole(1, 3) for _ in range(3))
    channels, out = draw.whole(1, 4), draw.whole(1, 4)
    strides = {f"stride{one}": draw.whole(1, 2) for one in "DHW"}
    activation = {"fusedActivationFunction": draw.one_of(ACTIVATIONS)}
    if draw.case.operator == "CONV_3D":
        dilations = {f"dilation{one}Factor": draw.one_of((1, 1, 2)) for one in "DHW"}
        sides = [draw.whole(2 * side, 2 * side + 3) for side in kernel]
        data = draw.data((draw.whole(1, 2), *sides, channels), "float32")
        given = [data, draw.constant(draw.array((*kernel, channels, out)))]
        given += [draw.constant(draw.array((out,)))] if draw.chance(0.6) else []
        fields = {"padding": padding, **strides, **dilations, **activation}
    else:
        sides = [draw.whole(1, 4) for _ in kernel]
        steps = [strides[f"stride{one}"] for one in "DHW"]
        made = [
            side * step if padding == _SAME else (side - 1) * step + span
            for side, step, span in zip(sides, steps, kernel, strict=True)
        ]
        batch = draw.whole(1, 2)
        given = [
            draw.whole_numbers(batch, *made, out),
            draw.constant(draw.array((*kernel, out, channels))),
        ]
        given.append(draw.data((batch, *sides, channels), "float32"))
        given += [draw.constant(draw.array((out,)))] if draw.chance(0.6) else []
        fields = {"padding": padding, **strides, **activation}
    draw.op(given, [draw.made("float32")], "Conv3DOptions", **fields)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), _conv),
    "TRANSPOSE_CONV": _transpose_conv,
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), _pool),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _resize),
    **dict.fromkeys(("CONV_3D", "CONV_3D_TRANSPOSE"), _conv_3d),
}
