"""Rules of operators that move elements: views, gathers, scatters, paddings."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from random_operators.drawing import Draw, Rule
from random_operators.random_values import FLOATS, INTEGERS, Shape

_TYPES = (*FLOATS, *FLOATS, *INTEGERS, "bool")
_END = np.iinfo(np.int64)


def _data(draw: Draw, low: int = 0, high: int = 5) -> tuple[str, Shape]:
    shape = draw.shape(low, high)
    return draw.feed(draw.array(shape, draw.dtype(_TYPES))), shape


def _concat(draw: Draw) -> None:
    dtype, shape = draw.dtype(_TYPES), draw.shape(1, 5)
    axis = draw.axis(len(shape))
    parts = []
    for place in range(draw.whole(1, 4)):
        of = list(shape)
        of[axis] = draw.whole(1, 5)
        value = draw.array(of, dtype)
        parts.append(draw.feed(value) if place == 0 else draw.given(value))
    parts = [parts[int(place)] for place in draw.random.permutation(len(parts))]
    draw.node(*parts, axis=axis)


def _split(draw: Draw) -> None:
    data, shape = _data(draw, 1)
    axis = draw.axis(len(shape))
    extent = shape[axis]
    attributes: dict[str, Any] = {} if axis == 0 and draw.chance(0.5) else {"axis": axis}
    count = draw.whole(1, min(4, extent))
    if draw.chance(0.6):
        cuts = sorted(int(cut) for cut in draw.random.permutation(extent - 1)[: count - 1] + 1)
        sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, extent], strict=True)]
        if draw.opset < 13:
            draw.node(data, outputs=count, split=sizes, **attributes)
        else:
            draw.node(data, draw.whole_numbers(sizes), outputs=count, **attributes)
        return
    if draw.opset >= 18:
        while -(-extent // count) * (count - 1) >= extent:  # the last part would be empty
            count -= 1
        draw.node(data, outputs=count, num_outputs=count, **attributes)
    else:
        while extent % count:
            count -= 1
        draw.node(data, outputs=count, **attributes)


def _slice(draw: Draw) -> None:
    data, shape = _data(draw, 1)
    rank = len(shape)
    axes = draw.axes(rank) if draw.opset >= 10 else [axis % rank for axis in draw.axes(rank)]
    if draw.chance(0.3):
        axes = list(range(draw.whole(1, rank)))
    begins, ends, steps = [], [], []
    for axis in axes:
        extent = shape[axis]
        begin, end = sorted(draw.whole(0, extent) for _ in "be")
        if begin == end:
            begin, end = 0, extent
        step = draw.one_of([1, 1, 2, 3])
        if draw.opset >= 10 and draw.chance(0.4):
            step = -step
            stop = begin - 1
            begin, end = end - 1, stop if stop >= 0 else draw.one_of([-extent - 1, _END.min])
            begin = draw.one_of([begin, begin - extent, begin if begin < extent - 1 else 10**6])
        else:
            begin = draw.one_of([begin, begin - extent, begin if begin else -extent - 3])
            end = draw.one_of([end, end - extent if end < extent else _END.max])
        begins.append(begin), ends.append(end), steps.append(step)
    plain = axes == list(range(len(axes)))
    if draw.opset < 10:
        stated = {} if plain and draw.chance(0.5) else {"axes": axes}
        draw.node(data, starts=begins, ends=ends, **stated)
        return
    kind = np.int32 if draw.chance(0.2) and max(map(abs, ends)) < 2**31 else np.int64
    extra = ["" if plain and draw.chance(0.5) else draw.constant(np.asarray(axes, kind))]
    stepped = any(step != 1 for step in steps)
    extra.append(draw.constant(np.asarray(steps, kind)) if stepped or draw.chance(0.5) else "")
    bounds = [draw.constant(np.asarray(one, kind)) for one in (begins, ends)]
    draw.node(data, *bounds, *extra)


def _pad(draw: Draw) -> None:
    dtype = draw.dtype(_TYPES) if draw.opset >= 11 else draw.dtype(FLOATS)
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if draw.opset >= 19 else [])]
    attributes = draw.some(mode=modes)
    mode = attributes.get("mode", "constant")
    shape = draw.shape(1, 5 if mode == "constant" else 4, least=1 if mode == "constant" else 3)
    rank = len(shape)
    axes = draw.axes(rank) if draw.opset >= 18 and draw.chance(0.5) else list(range(rank))
    before, behind = ([0 if draw.chance(0.4) else draw.whole(0, 2) for _ in axes] for _ in "be")
    behind[0] += before == behind == [0] * len(axes)
    if mode == "constant" and draw.chance(0.3):
        place = draw.whole(0, len(axes) - 1)
        if shape[axes[place]] > 1:
            before[place] = -1
    data = draw.feed(draw.array(shape, dtype))
    value = draw.one_of([1.5, -2.0]) if "float" in dtype else 1
    if draw.opset < 11:
        stated = {"value": value} if mode == "constant" and draw.chance(0.7) else {}
        draw.node(data, pads=[*before, *behind], **attributes, **stated)
        return
    stated = draw.chance(0.7 if mode == "constant" else 0.2)
    filled = draw.constant(np.asarray(value, dtype)) if stated else ""
    named = "" if axes == list(range(rank)) else draw.whole_numbers(axes)
    draw.node(data, draw.whole_numbers([*before, *behind]), filled, named, **attributes)


def _reshape(draw: Draw) -> None:
    data, shape = _data(draw)
    rest, wanted = int(np.prod(shape)), []
    for axis in range(draw.whole(0, 4)):
        if axis < len(shape) and wanted == list(shape[:axis]) and draw.chance(0.4):
            factor = shape[axis]
        else:
            factor = draw.one_of([one for one in range(1, min(rest, 32) + 1) if rest % one == 0])
        wanted.append(factor)
        rest //= factor
    if rest > 1 or draw.chance(0.5):
        wanted.append(rest)
    stated = list(wanted)
    attributes = draw.some(allowzero=[0, 0, 1]) if draw.opset >= 14 else {}
    if stated and draw.chance(0.5):
        stated[draw.whole(0, len(stated) - 1)] = -1
    if not attributes.get("allowzero"):
        for axis, extent in enumerate(wanted):
            if axis < len(shape) and shape[axis] == extent and stated[axis] != -1:
                stated[axis] = draw.one_of([0, extent])
    draw.node(data, draw.whole_numbers(stated), **attributes)


def _flatten(draw: Draw) -> None:
    data, shape = _data(draw, 1)
    low = -len(shape) if draw.opset >= 11 else 0
    choices = list(range(low, len(shape) + 1))
    draw.node(data, **draw.some(axis=choices))


def _squeeze(draw: Draw) -> None:
    shape = list(draw.shape(1, 5))
    for axis in draw.axes(len(shape)):
        shape[axis] = 1
    data = draw.feed(draw.array(shape, draw.dtype(_TYPES)))
    ones = [axis for axis, extent in enumerate(shape) if extent == 1]
    chosen = [ones[int(at)] for at in draw.random.permutation(len(ones))[: draw.whole(1, 5)]]
    if draw.chance(0.2):
        draw.node(data)
    elif draw.opset < 13:
        low = len(shape) if draw.opset >= 11 and draw.chance(0.5) else 0
        draw.node(data, axes=[axis - low for axis in chosen])
    else:
        low = draw.one_of([0, len(shape)])
        draw.node(data, draw.whole_numbers([axis - low for axis in chosen]))


def _unsqueeze(draw: Draw) -> None:
    data, shape = _data(draw, 0, 3)
    rank = len(shape) + draw.whole(1, 2)
    chosen = draw.random.permutation(rank)[: rank - len(shape)]
    low = draw.one_of([0, rank]) if draw.opset >= 11 else 0
    axes = [int(axis) - low for axis in chosen]
    if draw.opset < 13:
        draw.node(data, axes=sorted(axes) if draw.opset < 11 else axes)
    else:
        draw.node(data, draw.whole_numbers(axes))


def _transpose(draw: Draw) -> None:
    data, shape = _data(draw)
    order = [int(axis) for axis in draw.random.permutation(len(shape))]
    draw.node(data, **({"perm": order} if order and draw.chance(0.8) else {}))


def _blocks(draw: Draw) -> None:
    block = draw.whole(1, 3)
    batch, depth, height, width = (draw.whole(1, 3) for _ in "ndhw")
    shape = (
        (batch, depth * block**2, height, width)
        if draw.case.operator == "DepthToSpace"
        else (batch, depth, height * block, width * block)
    )
    attributes = draw.some(mode=["DCR", "CRD"])
    dtype = draw.dtype(FLOATS)
    draw.node(draw.feed(draw.array(shape, dtype)), blocksize=block, **attributes)


def _indices(draw: Draw, extent: int, shape: Shape, low_opset: int = 11) -> Any:
    """Return indices into an axis, from its end too where the opset defines it."""
    low = -extent if draw.opset >= low_opset else 0
    return draw.random.integers(low, extent, shape).astype(draw.one_of(["int64", "int32"]))


def _gather(draw: Draw) -> None:
    data, shape = _data(draw, 1, 4)
    axis = draw.axis(len(shape))
    indices = _indices(draw, shape[axis], draw.shape(0, 2))
    stated = {} if axis == 0 and draw.chance(0.5) else {"axis": axis}
    draw.node(data, draw.given(indices), **stated)


def _gather_elements(draw: Draw) -> None:
    data, shape = _data(draw, 1, 4)
    axis = draw.axis(len(shape))
    of = [draw.whole(1, extent) for extent in shape]
    of[axis] = draw.whole(1, 5)
    stated = {} if axis == 0 and draw.chance(0.5) else {"axis": axis}
    draw.node(data, draw.given(_indices(draw, shape[axis], tuple(of))), **stated)


def _gather_nd(draw: Draw) -> None:
    data, shape = _data(draw, 1, 4)
    batch = draw.whole(0, len(shape) - 1) if draw.opset >= 12 else 0
    depth = draw.whole(1, len(shape) - batch)
    lines = (*shape[:batch], *draw.shape(0 if batch else 1, 2))
    indices = np.stack(
        [draw.random.integers(-shape[batch + at], shape[batch + at], lines) for at in range(depth)],
        -1,
    )
    stated = {"batch_dims": batch} if batch or draw.chance(0.3) else {}
    draw.node(data, draw.given(indices.astype(np.int64)), **stated)


def _reduction(draw: Draw) -> dict[str, Any]:
    choices = [*(["none", "add", "mul"] if draw.opset >= 16 else [])]
    choices += ["max", "min"] if draw.opset >= 18 else []
    return draw.some(reduction=choices) if choices else {}


def _scatter_elements(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 4), draw.dtype((*FLOATS, *INTEGERS))
    axis, reduction = draw.axis(len(shape)), _reduction(draw)
    if draw.case.operator == "Scatter":
        axis %= len(shape)
    of = [draw.whole(1, extent) for extent in shape]
    alone = reduction.get("reduction", "none") == "none"
    if not alone:
        of[axis] = draw.whole(1, 2 * shape[axis])
    indices = np.empty(of, np.int64)
    for line in np.ndindex(*(extent for at, extent in enumerate(of) if at != axis % len(of))):
        where = [*line]
        where.insert(axis % len(of), slice(None))  # type: ignore[arg-type]
        indices[tuple(where)] = (
            draw.random.permutation(shape[axis])[: of[axis]]
            if alone
            else draw.random.integers(0, shape[axis], of[axis])
        )
    if draw.opset >= 11 and draw.chance(0.5):
        indices -= shape[axis] * (draw.random.random(of) < 0.5)
    stated = {} if axis == 0 and draw.chance(0.5) else {"axis": axis}
    arrays = draw.feed(draw.array(shape, dtype)), draw.given(indices)
    draw.node(*arrays, draw.given(draw.array(of, dtype)), **stated, **reduction)


def _scatter_nd(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 4), draw.dtype((*FLOATS, *INTEGERS))
    depth, reduction = draw.whole(1, len(shape)), _reduction(draw)
    places = int(np.prod(shape[:depth]))
    count = draw.whole(1, min(places, 6))
    alone = reduction.get("reduction", "none") == "none"
    flat = (
        draw.random.permutation(places)[:count] if alone else draw.random.integers(0, places, count)
    )
    indices = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype(np.int64)
    if draw.chance(0.5):
        indices -= np.asarray(shape[:depth]) * (draw.random.random(indices.shape) < 0.5)
    updates = draw.array((count, *shape[depth:]), dtype)
    draw.node(
        draw.feed(draw.array(shape, dtype)), draw.given(indices), draw.given(updates), **reduction
    )


def _compress(draw: Draw) -> None:
    data, shape = _data(draw, 1, 4)
    axis = draw.axis(len(shape)) if draw.opset >= 11 else draw.whole(0, len(shape) - 1)
    along = {"axis": axis} if draw.chance(0.7) else {}
    extent = shape[axis] if along else int(np.prod(shape))
    kept = draw.array((draw.whole(1, extent),), "bool")
    kept[0] = True
    draw.node(data, draw.constant(kept), **along)


def _tile(draw: Draw) -> None:
    data, shape = _data(draw, 1, 4)
    draw.node(data, draw.whole_numbers([draw.whole(1, 3) for _ in shape]))


def _expand(draw: Draw) -> None:
    whole = draw.shape(0, 5)
    shape = tuple(1 if draw.chance(0.5) else extent for extent in whole)
    shape = shape[draw.whole(0, len(shape)) :] if draw.chance(0.5) else shape
    wanted = [
        1 if extent != 1 and at >= len(whole) - len(shape) and draw.chance(0.3) else extent
        for at, extent in enumerate(whole)
    ]
    wanted = [
        whole[at] if at < len(whole) - len(shape) else extent for at, extent in enumerate(wanted)
    ]
    data = draw.feed(draw.array(shape, draw.dtype(_TYPES)))
    draw.node(data, draw.whole_numbers(wanted))


def _one_hot(draw: Draw) -> None:
    shape, depth = draw.shape(0, 3), draw.whole(1, 6)
    low = -depth if draw.opset >= 11 else 0
    kind = draw.one_of(["int64", "int64", "int32"])
    indices = draw.random.integers(low, depth, shape).astype(kind)
    dtype = draw.one_of(["float32", "int64"]) if kind == "int64" else "float32"
    values = draw.constant(np.asarray([2, 5], dtype))
    count = np.asarray(draw.one_of([depth, [depth]]), kind)
    axes = [*range(-len(shape) - 1, len(shape) + 1)]
    draw.node(draw.feed(indices), draw.constant(count), values, **draw.some(axis=axes))


def _eye_like(draw: Draw) -> None:
    value = draw.array((draw.whole(1, 6), draw.whole(1, 6)), draw.dtype((*FLOATS, "int32")))
    attributes = draw.some(k=[-2, -1, 1, 2], dtype=[1, 6, 7, 10, 11])
    draw.node(draw.feed(value), **attributes)


def _shape_of(draw: Draw) -> None:
    data, shape = _data(draw, 1)
    rank = len(shape)
    attributes = draw.some(start=[*range(-rank, rank)], end=[*range(-rank, rank + 1)])
    _after_constant(draw, data, attributes)


def _size_of(draw: Draw) -> None:
    _after_constant(draw, _data(draw)[0], {})


def _after_constant(draw: Draw, data: str, attributes: dict[str, Any]) -> None:
    """Make the node, and add its result to an input, as a model without computation is none."""
    draw.node(data, **attributes)
    other = draw.feed(np.asarray(draw.whole(1, 9), np.int64))
    draw.case.nodes.append(helper.make_node("Add", ["y0", other], ["sum"]))
    draw.case.outputs = ["sum"]


def _constant_of_shape(draw: Draw) -> None:
    dtype = draw.one_of(["float32", "int64", "int32", "bool", "float16", "uint8"])
    value = draw.array((1,), dtype)
    stated = {"value": numpy_helper.from_array(value)} if draw.chance(0.7) else {}
    draw.node(draw.whole_numbers(list(draw.shape(0, 4))), **stated)
    _identity_with_input(draw, dtype if stated else "float32")


def _identity_with_input(draw: Draw, dtype: str) -> None:
    """Choose the result or an input by a condition that is fed."""
    condition, other = draw.feed(np.asarray(True)), draw.feed(draw.array((), dtype))
    draw.case.nodes.append(helper.make_node("Where", [condition, "y0", other], ["kept"]))
    draw.case.outputs = ["kept"]


def _range(draw: Draw) -> None:
    dtype = draw.dtype(("float32", "float64", "int32", "int64", "int16"))
    step = draw.one_of([1, 2, 3, -1, -2])
    step = step / 2 if "float" in dtype else step
    begin = draw.whole(-5, 5)
    end = begin + step * draw.whole(1, 9) - (step / 4 if "float" in dtype else 0)
    draw.node(*(draw.constant(np.asarray(one, dtype)) for one in (begin, end, step)))
    _identity_with_input(draw, dtype)


def _trilu(draw: Draw) -> None:
    data, _ = _data(draw, 2, 4)
    by = draw.constant(np.asarray(draw.whole(-3, 3), np.int64)) if draw.chance(0.7) else ""
    draw.node(data, by, **draw.some(upper=[0, 1]))


def _reverse_sequence(draw: Draw) -> None:
    data, shape = _data(draw, 2, 4)
    attributes: dict[str, Any] = draw.one_of(
        [{}, {"batch_axis": 1, "time_axis": 0}, {"batch_axis": 0, "time_axis": 1}]
    )
    batch, time = attributes.get("batch_axis", 1), attributes.get("time_axis", 0)
    lengths = draw.random.integers(1, shape[time] + 1, shape[batch])
    draw.node(data, draw.given(lengths.astype(np.int64)), **attributes)


def _non_zero(draw: Draw) -> None:
    value = draw.array(draw.shape(1, 4), draw.dtype(("float32", "bool", "int64", "int32", "uint8")))
    value.reshape(-1)[:: draw.whole(2, 3)] = 0
    draw.node(draw.feed(value))


def _sequence(draw: Draw) -> None:
    """Split to a sequence, and take or join its parts."""
    data, shape = _data(draw, 1, 4)
    axis = draw.axis(len(shape))
    extent, inputs = shape[axis], [data]
    attributes: dict[str, Any] = {"axis": axis}
    if draw.chance(0.5):
        size = draw.whole(1, extent)
        inputs.append(draw.constant(np.asarray(size, np.int64)))
        parts = -(-extent // size)
    else:
        attributes |= draw.some(keepdims=[0, 1])
        parts = extent
    case = draw.case
    case.nodes.append(helper.make_node("SplitToSequence", inputs, ["parts"], **attributes))
    at = draw.constant(np.asarray(draw.whole(-parts, parts - 1), np.int64))
    case.nodes.append(helper.make_node("SequenceAt", ["parts", at], ["y0"]))
    case.outputs = ["y0"]


def _joined_sequence(draw: Draw) -> None:
    shape, dtype = draw.shape(1, 3), draw.dtype(("float32",))
    parts = [draw.feed(draw.array(shape, dtype)) for _ in range(draw.whole(1, 3))]
    draw.case.nodes.append(helper.make_node("SequenceConstruct", parts, ["parts"]))
    stack = draw.some(new_axis=[0, 1])
    rank = len(shape) + stack.get("new_axis", 0)
    draw.node("parts", axis=draw.axis(rank), **stack)


RULES: dict[str, Rule] = {
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Compress": _compress,
    "Tile": _tile,
    "Expand": _expand,
    "OneHot": _one_hot,
    "EyeLike": _eye_like,
    "Shape": _shape_of,
    "Size": _size_of,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Trilu": _trilu,
    "ReverseSequence": _reverse_sequence,
    "NonZero": _non_zero,
    "SplitToSequence": _sequence,
    "ConcatFromSequence": _joined_sequence,
}
