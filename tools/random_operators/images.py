"""Rules of operators that slide windows over images, or sample them."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_operators.drawing import Draw, Rule
from random_operators.random_values import Shape

_TYPES = ("float32", "float32", "float32", "float64", "float16")
_LENGTHS = ((5, 20), (4, 12), (3, 7))  # the least and largest extent of 1, 2 and 3 axes


def _lengths(draw: Draw, low: int = 1, high: int = 3) -> list[int]:
    rank = draw.one_of([one for one in (1, 2, 2, 2, 3) if low <= one <= high])
    return [draw.whole(*_LENGTHS[rank - 1]) for _ in range(rank)]


def _reach(kernel: list[int], dilations: list[int]) -> list[int]:
    return [(one - 1) * by + 1 for one, by in zip(kernel, dilations, strict=True)]


def _windows(draw: Draw, lengths: list[int], *, dilated: bool = True) -> dict[str, Any]:
    """Return kernel_shape, strides, dilations, and pads or auto_pad; all may be left out but the
    first.
    """
    rank = len(lengths)
    while True:
        kernel = [draw.whole(1, 4) for _ in lengths]
        dilations = [draw.whole(1, 2) for _ in lengths] if dilated else [1] * rank
        reach = _reach(kernel, dilations)
        if all(one <= length for one, length in zip(reach, lengths, strict=True)):
            break
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if draw.chance(0.7):
        attributes["strides"] = [draw.whole(1, 3) for _ in lengths]
    if dilated and (max(dilations) > 1 or draw.chance(0.3)):
        attributes["dilations"] = dilations
    how = draw.whole(0, 5)
    if how < 3:
        attributes["pads"] = [draw.whole(0, reach[at % rank] // 2) for at in range(2 * rank)]
        if how == 0:
            attributes["auto_pad"] = "NOTSET"
    elif how < 5:
        attributes["auto_pad"] = draw.one_of(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return attributes


def _conv(draw: Draw) -> None:
    lengths, dtype = _lengths(draw), draw.dtype(_TYPES)
    attributes = _windows(draw, lengths)
    groups = draw.one_of([1, 1, 2, 3])
    depth, made = groups * draw.whole(1, 3), groups * draw.whole(1, 3)
    kernel = attributes["kernel_shape"]
    if draw.chance(0.3):
        del attributes["kernel_shape"]
    data = draw.feed(draw.array((draw.whole(1, 2), depth, *lengths), dtype))
    weight = draw.given(draw.array((made, depth // groups, *kernel), dtype, scale=1.0))
    bias = draw.given(draw.array((made,), dtype)) if draw.chance(0.5) else ""
    stated = {} if groups == 1 and draw.chance(0.5) else {"group": groups}
    draw.node(data, weight, bias, **attributes, **stated)


def _conv_transpose(draw: Draw) -> None:
    lengths, dtype = _lengths(draw), draw.dtype(("float32", "float32", "float16"))
    lengths = [min(length, 6) for length in lengths]
    rank = len(lengths)
    kernel = [draw.whole(1, 4) for _ in lengths]
    attributes: dict[str, Any] = {"kernel_shape": kernel} if draw.chance(0.7) else {}
    attributes |= {} if draw.chance(0.3) else {"strides": [draw.whole(1, 3) for _ in lengths]}
    attributes |= {} if draw.chance(0.5) else {"dilations": [draw.whole(1, 2) for _ in lengths]}
    strides, dilations = (attributes.get(one, [1] * rank) for one in ("strides", "dilations"))
    if draw.chance(0.4):
        attributes["output_padding"] = [
            draw.whole(0, max(one, by) - 1) for one, by in zip(strides, dilations, strict=True)
        ]
    more = attributes.get("output_padding", [0] * rank)
    reach = _reach(kernel, dilations)
    how = draw.whole(0, 6)
    if how < 3:
        attributes["pads"] = [draw.whole(0, (reach[at % rank] - 1) // 2) for at in range(2 * rank)]
    elif how < 5:
        attributes["auto_pad"] = draw.one_of(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif how == 5:
        full = [
            (length - 1) * stride + one + extra
            for length, stride, one, extra in zip(lengths, strides, reach, more, strict=True)
        ]
        attributes["output_shape"] = [draw.whole(max(1, one - 2), one) for one in full]
        attributes |= draw.some(auto_pad=["SAME_UPPER", "SAME_LOWER"])
    groups = draw.one_of([1, 1, 2, 3])
    depth, made = groups * draw.whole(1, 3), draw.whole(1, 3)
    data = draw.feed(draw.array((draw.whole(1, 2), depth, *lengths), dtype))
    weight = draw.given(draw.array((depth, made, *kernel), dtype, scale=1.0))
    bias = draw.given(draw.array((made * groups,), dtype)) if draw.chance(0.5) else ""
    stated = {} if groups == 1 and draw.chance(0.5) else {"group": groups}
    draw.node(data, weight, bias, **attributes, **stated)


def _pool(draw: Draw) -> None:
    lengths = _lengths(draw)
    operator = draw.case.operator
    attributes = _windows(draw, lengths, dilated=draw.has("dilations"))
    if attributes.get("auto_pad", "")[:4] == "SAME":  # ONNX Runtime leaves holes out of account
        attributes.pop("dilations", None)
        if "strides" in attributes:  # and cuts off the begin where windows leave gaps
            pairs = zip(attributes["strides"], attributes["kernel_shape"], strict=True)
            attributes["strides"] = [min(stride, reach) for stride, reach in pairs]
    attributes |= draw.some(ceil_mode=[0, 1, 1]) if "pads" in attributes else {}
    attributes |= draw.some(count_include_pad=[0, 1, 1], p=[1, 2, 3])
    dtype = draw.dtype((*_TYPES, "int8", "uint8") if operator == "MaxPool" else _TYPES)
    draw.node(
        draw.feed(draw.array((draw.whole(1, 2), draw.whole(1, 3), *lengths), dtype)), **attributes
    )


def _conv_integer(draw: Draw) -> None:
    lengths = _lengths(draw, 2, 2)
    attributes = _windows(draw, lengths)
    groups = draw.one_of([1, 1, 2])
    depth, made = groups * draw.whole(1, 3), groups * draw.whole(1, 3)
    kernel = attributes["kernel_shape"]
    data = draw.feed(_bytes(draw, (draw.whole(1, 2), depth, *lengths)))
    weight = draw.given(_bytes(draw, (made, depth // groups, *kernel)))
    zeros = [draw.given(_bytes(draw, ())) if draw.chance(0.6) else "" for _ in "xw"]
    stated = {} if groups == 1 and draw.chance(0.5) else {"group": groups}
    draw.node(data, weight, *zeros, **attributes, **stated)


def _bytes(draw: Draw, shape: Shape) -> Any:
    return np.asarray(draw.random.integers(0, 255, shape)).astype("uint8")


_REGIONS = ((0.13, 0.71), (0.29, 1.17), (-0.23, 0.91), (0, 1))
_WAYS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def _resize(draw: Draw) -> None:
    if draw.opset < 11:
        _by_scales(draw)
        return
    mode = draw.one_of(["nearest", "linear", "cubic"])
    lengths = _lengths(draw, 2, 2) if mode == "cubic" else _lengths(draw)
    shape = [draw.whole(1, 2), draw.whole(1, 3), *lengths]
    wanted = [max(1, int(length * draw.one_of([0.4, 0.6, 1, 1.5, 2, 2.3]))) for length in lengths]
    ways = [*_WAYS, "tf_crop_and_resize"]
    ways += (
        ["half_pixel_symmetric"]
        if draw.opset >= 19
        else ["tf_half_pixel_for_nn"][: draw.opset < 13]
    )
    attributes: dict[str, Any] = {} if mode == "nearest" and draw.chance(0.5) else {"mode": mode}
    attributes |= draw.some(coordinate_transformation_mode=ways)
    if mode == "nearest":
        attributes |= draw.some(
            nearest_mode=["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        )
    if mode == "cubic":
        attributes |= draw.some(cubic_coeff_a=[-0.5, -1.0], exclude_outside=[0, 1])
    axes = list(range(len(shape)))
    if draw.opset >= 18 and draw.chance(0.4):
        axes = [int(axis) for axis in 2 + draw.random.permutation(len(lengths))]
        attributes["axes"] = [axis - (len(shape) if draw.chance(0.3) else 0) for axis in axes]
        if draw.opset < 19:
            attributes["axes"] = axes
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        # ONNX Runtime 1.31 copies axes whose length does not change, whatever the region is.
        wanted = [one + (one == own) for one, own in zip(wanted, lengths, strict=True)]
    new = [*shape[:2], *wanted]
    region = "" if draw.opset >= 13 else _nothing(draw)
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        attributes |= draw.some(extrapolation_value=[7.0, -3.0])
        begins, ends = [0.0] * len(shape), [1.0] * len(shape)
        for axis in range(2, len(shape)):
            begins[axis], ends[axis] = draw.one_of(_REGIONS)
        region = draw.constant(
            np.asarray(
                [*(begins[axis] for axis in axes), *(ends[axis] for axis in axes)], "float32"
            )
        )
        draw.case.evaluated = mode == "cubic"  # ONNX Runtime 1.31 takes part of the region only
    dtype = draw.dtype(("float32", "float32", "float32", "float64", "int32", "uint8"))
    data = draw.feed(draw.array(shape, dtype if mode == "nearest" else "float32"))
    if draw.chance(0.5) or "extrapolation_value" in attributes:
        sizes = draw.whole_numbers([new[axis] for axis in axes])
        draw.node(data, region, "" if draw.opset >= 13 else _nothing(draw), sizes, **attributes)
        return
    part = draw.one_of([0, 0, 0.4])  # of an element that the last length lacks of a whole one
    scales = np.asarray([(new[axis] + part * (axis > 1)) / shape[axis] for axis in axes], "float32")
    draw.node(data, region, draw.constant(scales), **attributes)


def _nothing(draw: Draw) -> str:
    return draw.constant(np.zeros(0, "float32"))


def _by_scales(draw: Draw) -> None:
    """Upsample, and Resize of opset 10."""
    mode = draw.one_of(["nearest", "linear"])
    lengths = _lengths(draw, 2, 2) if mode == "linear" else _lengths(draw)
    scales = np.asarray([1, 1, *(draw.one_of([1, 2, 3]) for _ in lengths)], "float32")
    if draw.case.operator == "Resize" and draw.chance(0.3):
        lengths = [2 * length for length in lengths]
        scales[2:] = 0.5
    data = draw.feed(draw.array((draw.whole(1, 2), draw.whole(1, 3), *lengths)))
    stated = {} if mode == "nearest" and draw.chance(0.5) else {"mode": mode}
    if draw.case.operator == "Upsample" and draw.opset < 9:
        draw.node(data, scales=[float(scale) for scale in scales], **stated)
    else:
        draw.node(data, draw.constant(scales), **stated)


def _affine_grid(draw: Draw) -> None:
    lengths = [draw.whole(2, 5) for _ in range(draw.whole(2, 3))]
    batch, rank = draw.whole(1, 2), len(lengths)
    theta = draw.feed(draw.array((batch, rank, rank + 1)))
    size = draw.whole_numbers([batch, 3, *lengths])
    draw.node(theta, size, **draw.some(align_corners=[0, 1]))


def _grid_sample(draw: Draw) -> None:
    lengths = [draw.whole(2, 7) for _ in range(3 if draw.opset >= 20 and draw.chance(0.2) else 2)]
    old = {"linear": "bilinear", "cubic": "bicubic"}
    mode = draw.one_of(["linear", "nearest", *(["cubic"] if len(lengths) == 2 else [])])
    stated = {"mode": mode if draw.opset >= 20 else old.get(mode, mode)}
    stated = {} if mode == "linear" and draw.chance(0.3) else stated
    batch, taken = draw.whole(1, 2), [draw.whole(1, 5) for _ in lengths]
    data = draw.feed(draw.array((batch, draw.whole(1, 3), *lengths)))
    grid = draw.feed(draw.between(-1.4, 1.4, (batch, *taken, len(lengths)), "float32"))
    padding = draw.some(padding_mode=["zeros", "border", "reflection"], align_corners=[0, 1])
    draw.node(data, grid, **stated, **padding)


def _regions(draw: Draw, count: int, extent: float) -> Any:
    begins = draw.between(0, extent * 0.5, (count, 2), "float32")
    ends = begins + draw.between(extent * 0.1, extent * 0.6, (count, 2), "float32")
    return np.concatenate([begins, ends], 1)


def _roi_align(draw: Draw) -> None:
    batch, count, scale = draw.whole(1, 2), draw.whole(2, 4), draw.one_of([1.0, 0.5, 2.0])
    data = draw.feed(draw.array((batch, draw.whole(1, 3), draw.whole(3, 9), draw.whole(3, 9))))
    regions = draw.feed(_regions(draw, count, 8 / scale))
    images = draw.feed(draw.random.integers(0, batch, count).astype(np.int64))
    attributes = draw.some(
        output_height=[1, 2, 3],
        output_width=[1, 2, 4],
        sampling_ratio=[0, 1, 2],
        coordinate_transformation_mode=["half_pixel", "output_half_pixel"],
    )
    attributes |= {"spatial_scale": scale} if scale != 1 else {}
    draw.node(data, regions, images, **attributes)


def _roi_pool(draw: Draw) -> None:
    batch, count, scale = draw.whole(1, 2), draw.whole(1, 4), draw.one_of([1.0, 0.5])
    data = draw.feed(draw.array((batch, draw.whole(1, 3), 9, 8)))
    regions = np.round(_regions(draw, count, 7 / scale))
    images = draw.random.integers(0, batch, (count, 1))
    rois = draw.feed(np.concatenate([images, regions], 1).astype("float32"))
    size = [draw.whole(1, 3), draw.whole(1, 3)]
    draw.node(data, rois, pooled_shape=size, spatial_scale=scale)


def _blocks_to_image(draw: Draw) -> None:
    lengths = _lengths(draw)
    attributes = _windows(draw, lengths)
    attributes.pop("auto_pad", None)
    block, rank = attributes.pop("kernel_shape"), len(lengths)
    strides, dilations = (attributes.get(one, [1] * rank) for one in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * rank)
    columns = 1
    for at, reach in enumerate(_reach(block, dilations)):
        columns *= (lengths[at] + pads[at] + pads[rank + at] - reach) // strides[at] + 1
    rows = draw.whole(1, 3) * int(np.prod(block))
    draw.case.evaluated = rank != 2  # ONNX Runtime 1.31 is wrong if blocks have holes there
    data = draw.feed(draw.array((draw.whole(1, 2), rows, columns)))
    draw.node(data, draw.whole_numbers(lengths), draw.whole_numbers(block), **attributes)


def _suppression(draw: Draw) -> None:
    batch, classes, count = draw.whole(1, 2), draw.whole(1, 3), draw.whole(6, 12)
    boxes = np.stack([_regions(draw, count, 4.0) for _ in range(batch)])
    attributes = draw.some(center_point_box=[0, 1])
    if attributes.get("center_point_box"):
        boxes[..., 2:] = np.abs(boxes[..., 2:])
    elif draw.chance(0.4):  # corners in another order
        boxes = boxes[..., [2, 3, 0, 1]]
    scores = draw.random.permutation(batch * classes * count).reshape(batch, classes, count)
    most = draw.constant(np.asarray([draw.whole(1, 5)], np.int64))
    limits = [
        draw.constant(np.asarray([value], "float32")) if draw.chance(0.8) else ""
        for value in (draw.one_of([0.2, 0.5]), draw.one_of([0.1, 0.5]))
    ]
    scores = (scores / scores.size).astype("float32")
    draw.node(draw.feed(boxes), draw.feed(scores), most, *limits, **attributes)


def _unpool(draw: Draw) -> None:
    height, width, kernel = draw.whole(1, 4), draw.whole(1, 4), [2, 2]
    shape = (1, draw.whole(1, 2), height, width)
    strides = draw.one_of([[2, 2], [1, 2], [2, 1]])
    lengths = [(extent - 1) * by + 2 for extent, by in zip(shape[2:], strides, strict=True)]
    places = draw.random.permutation(shape[1] * lengths[0] * lengths[1])[: int(np.prod(shape))]
    indices = draw.feed(places.reshape(shape).astype(np.int64))
    stated = {"strides": strides} if strides != [1, 1] else {}
    draw.node(draw.feed(draw.array(shape)), indices, kernel_shape=kernel, **stated)


RULES: dict[str, Rule] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "ConvInteger": _conv_integer,
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
    "Resize": _resize,
    "Upsample": _by_scales,
    "AffineGrid": _affine_grid,
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
    "MaxRoiPool": _roi_pool,
    "Col2Im": _blocks_to_image,
    "NonMaxSuppression": _suppression,
    "MaxUnpool": _unpool,
}
