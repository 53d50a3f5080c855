"""Rules of operators that move elements."""

from __future__ import annotations

import numpy as np

from random_tflite_operators.drawing import WIDE, Draw, Rule

_MOVED = (*WIDE, "int8", "uint8", "bool")
_BYTES = ("int8", "uint8", "int16")


def _gather(draw: Draw) -> None:
    dtype, shape = draw.one_of((*WIDE, "int8", "uint8", "bool")), draw.shape(1, 4)
    axis = draw.whole(0, len(shape) - 1)
    batch = draw.whole(0, axis) if draw.chance(0.5) else 0
    where = (*shape[:batch], *draw.shape(0 if not batch else 1, 2))
    values = draw.random.integers(0, shape[axis], where).astype(draw.one_of(("int32", "int64")))
    stated = axis - len(shape) if draw.chance(0.4) else axis
    data = draw.data(shape, dtype)
    index = draw.constant(values) if draw.chance(0.6) else draw.feed(values)
    draw.moved(data, index, options="GatherOptions", axis=stated, batchDims=batch)


def _gather_nd(draw: Draw) -> None:
    dtype, shape = draw.one_of(_MOVED), draw.shape(1, 4)
    depth = draw.whole(1, len(shape))
    where = (*draw.shape(0, 2), depth)
    values = np.stack([draw.random.integers(0, shape[at], where[:-1]) for at in range(depth)], -1)
    values = values.astype(draw.one_of(("int32", "int64")))
    draw.moved(draw.data(shape, dtype), draw.given(values), options="GatherNdOptions")


def _scatter_nd(draw: Draw) -> None:
    dtype, shape = draw.one_of((*WIDE, "int8", "uint8")), draw.shape(1, 4)
    depth = draw.whole(1, len(shape))
    count = draw.shape(1, 2)
    values = np.stack([draw.random.integers(0, shape[at], count) for at in range(depth)], -1)
    updates = draw.array((*count, *shape[depth:]), dtype)
    given = [draw.given(values.astype(np.int32)), draw.feed(updates), draw.whole_numbers(*shape)]
    draw.op(given, [draw.made_plain(dtype)], "ScatterNdOptions")


def _strided_slice(draw: Draw) -> None:
    dtype, shape = draw.one_of(_MOVED), draw.shape(1, 4, least=1)
    begin, end, stride = [], [], []
    masks = dict.fromkeys(
        ("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask"), 0
    )
    axis, place, has_ellipsis = 0, 0, False
    rank = len(shape)
    while axis < rank and place < 6:
        bit = 1 << place
        if not has_ellipsis and draw.chance(0.12):
            skipped = draw.whole(1, rank - axis)
            masks["ellipsisMask"] |= bit
            begin.append(0), end.append(0), stride.append(1)
            has_ellipsis, axis, place = True, axis + skipped, place + 1
            # what follows counts from the end: so many axes are left
            continue
        if draw.chance(0.12):
            masks["newAxisMask"] |= bit
            begin.append(0), end.append(1), stride.append(1)
            place += 1
            continue
        extent = shape[axis]
        if draw.chance(0.2):
            at = draw.whole(-extent, extent - 1)
            masks["shrinkAxisMask"] |= bit
            begin.append(at), end.append(at + 1), stride.append(1)
        else:
            first, last = sorted((draw.whole(0, extent - 1), draw.whole(0, extent - 1)))
            step = draw.one_of((1, 1, 2, 3))
            if draw.chance(0.35):
                ends = last, first - 1 if first else -extent - 1
                step = -step
            else:
                ends = first, last + 1
            ends = tuple(
                one - extent if 0 <= one < extent and draw.chance(0.3) else one for one in ends
            )
            if draw.chance(0.2):
                ends = (ends[0], ends[1] + (5 if step > 0 else -extent - 5))
            begin.append(ends[0]), end.append(ends[1]), stride.append(step)
            masks["beginMask"] |= bit * draw.chance(0.2)
            masks["endMask"] |= bit * draw.chance(0.2)
        axis, place = axis + 1, place + 1
        if not has_ellipsis and axis < rank and draw.chance(0.15):
            break
    given = [draw.data(shape, dtype), *(draw.whole_numbers(*one) for one in (begin, end, stride))]
    draw.moved(*given, options="StridedSliceOptions", **masks)


def _slice(draw: Draw) -> None:
    dtype, shape = draw.one_of((*_MOVED, "int16")), draw.shape(1, 5)
    begin = [draw.whole(0, extent - 1) for extent in shape]
    size = [
        -1 if draw.chance(0.3) else draw.whole(1, extent - at)
        for extent, at in zip(shape, begin, strict=True)
    ]
    kind = draw.one_of((np.int32, np.int64))
    given = [draw.constant(np.asarray(one, kind)) for one in (begin, size)]
    draw.moved(draw.data(shape, dtype), *given, options="SliceOptions")


def _pad(draw: Draw) -> None:
    name = draw.case.operator
    dtype = draw.one_of(("float32", "float32", "int32", "int64", "int8", "uint8", "int16"))
    if name == "PADV2" and dtype == "int16":
        dtype = "int8"
    shape = draw.shape(1, 4)
    mode = draw.whole(0, 1)
    most = [3] * len(shape)
    if name == "MIRROR_PAD":
        most = [min(3, extent - (mode == 0)) for extent in shape]
    widths = np.array([[draw.whole(0, one), draw.whole(0, one)] for one in most])
    widths = draw.constant(widths.astype(draw.one_of((np.int32, np.int64))))
    data = draw.data(shape, dtype)
    if name == "PAD":
        draw.moved(data, widths, options="PadOptions")
    elif name == "MIRROR_PAD":
        draw.moved(data, widths, options="MirrorPadOptions", mode=mode)
    else:
        shape = draw.one_of(((), (1,)))
        fill = draw.constant(draw.values(shape, dtype), **draw.quantized_like(dtype, data))
        draw.moved(data, widths, fill, options="PadV2Options")


def _blocks(draw: Draw) -> None:
    name, block = draw.case.operator, draw.whole(2, 3)
    dtype = draw.one_of((*WIDE, "int8", "uint8"))
    batch, height, width, depth = (draw.whole(1, 3) for _ in range(4))
    shape = (batch, height, width, depth * block**2)
    if name == "SPACE_TO_DEPTH":
        shape = (batch, height * block, width * block, depth)
    options = "".join(word.title() for word in name.split("_")) + "Options"
    draw.moved(draw.data(shape, dtype), options=options, blockSize=block)


def _batches(draw: Draw) -> None:
    to_space = draw.case.operator.startswith("BATCH")
    dtype = draw.one_of((*WIDE, "int8", "uint8"))
    spatial = draw.whole(1, 2)
    blocks = [draw.whole(1, 3) for _ in range(spatial)]
    sides = [draw.whole(1, 4) for _ in range(spatial)]
    ends = [[draw.whole(0, 2), draw.whole(0, 2)] for _ in range(spatial)]
    batch, depth = draw.whole(1, 2), draw.whole(1, 3)
    if to_space:
        batch *= int(np.prod(blocks))
        sides = [
            -(-(side + sum(end)) // block)
            for side, end, block in zip(sides, ends, blocks, strict=True)
        ]
    else:
        ends = [
            [first, last + -(side + first + last) % block]
            for side, (first, last), block in zip(sides, ends, blocks, strict=True)
        ]
    data = draw.data((batch, *sides, depth), dtype)
    name = "BatchToSpaceNDOptions" if to_space else "SpaceToBatchNDOptions"
    draw.moved(data, draw.whole_numbers(*blocks), draw.whole_numbers(*ends), options=name)


def _split(draw: Draw) -> None:
    dtype = draw.one_of((*WIDE, "int8", "uint8", "int16"))
    shape = list(draw.shape(1, 4))
    axis, count = draw.axis(len(shape)), draw.whole(1, 4)
    where = draw.scalar(axis)
    if draw.case.operator == "SPLIT":
        shape[axis] = count * draw.whole(1, 3)
        data = draw.data(shape, dtype)
        given, options = [where, data], "SplitOptions"
    else:
        sizes = [draw.whole(1, 3) for _ in range(count)]
        shape[axis] = sum(sizes)
        if draw.chance(0.4):
            sizes[draw.whole(0, count - 1)] = -1
        data = draw.data(shape, dtype)
        given, options = [data, draw.whole_numbers(*sizes), where], "SplitVOptions"
    draw.op(given, [draw.made(dtype, data) for _ in range(count)], options, numSplits=count)


def _unpack(draw: Draw) -> None:
    dtype, shape = draw.one_of((*WIDE, "int8", "uint8", "bool")), draw.shape(1, 4)
    axis = draw.axis(len(shape))
    if shape[axis] > 6:
        shape = tuple(min(extent, 6) for extent in shape)
    data = draw.data(shape, dtype)
    made = [draw.made(dtype, data) for _ in range(shape[axis])]
    draw.op([data], made, "UnpackOptions", num=shape[axis], axis=axis)


def _pack(draw: Draw) -> None:
    dtype, shape, count = draw.one_of((*WIDE, "int8", "uint8")), draw.shape(0, 3), draw.whole(1, 4)
    data = draw.data(shape, dtype)
    more = [draw.data(shape, dtype, data) for _ in range(count - 1)]
    axis = draw.axis(len(shape) + 1)
    draw.moved(data, *more, options="PackOptions", axis=axis, valuesCount=count)


def _concatenation(draw: Draw) -> None:
    dtype, shape = draw.one_of((*WIDE, "int8", "uint8", "int16", "bool")), list(draw.shape(1, 4))
    axis = draw.axis(len(shape))
    same = dtype != "uint8" or draw.chance(0.5)  # others have one scale in LiteRT
    data = draw.data(shape, dtype)
    given = [data]
    for _ in range(draw.whole(0, 3)):
        shape[axis] = draw.whole(1, 4)
        given.append(draw.data(tuple(shape), dtype, data if same else None))
    result = draw.made(dtype, data if same else None)
    fused = draw.one_of((0, 0, 1, 3)) if dtype == "float32" and draw.chance(0.0) else 0
    draw.op(given, [result], "ConcatenationOptions", axis=axis, fusedActivationFunction=fused)


def _transpose(draw: Draw) -> None:
    shape = draw.shape(1, 6)
    order = draw.random.permutation(len(shape))
    if draw.chance(0.3):
        order = [one - len(shape) if draw.chance(0.3) else one for one in order]
    data = draw.data(shape, draw.one_of((*_MOVED, "int16")))
    draw.moved(data, draw.whole_numbers(*order), options="TransposeOptions")


def _tile(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    times = np.asarray([draw.whole(1, 3) for _ in shape], draw.one_of((np.int32, np.int64)))
    data = draw.data(shape, draw.one_of(_MOVED))
    draw.moved(data, draw.constant(times), options="TileOptions")


def _broadcast_to(draw: Draw) -> None:
    whole = draw.shape(1, 5)
    part = whole[draw.whole(0, len(whole)) :]
    shape = tuple(1 if draw.chance(0.5) else extent for extent in part)
    size = draw.constant(np.asarray(whole, draw.one_of((np.int32, np.int64))))
    draw.moved(draw.data(shape, draw.one_of(_MOVED)), size, options="BroadcastToOptions", version=2)


def _reverse(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    axes = [draw.axis(len(shape))]
    if draw.chance(0.4):
        first = draw.whole(0, len(shape) - 1)
        axes = list(range(first, draw.whole(first, len(shape) - 1) + 1))
    data = draw.data(shape, draw.one_of((*_MOVED, "int16")))
    draw.moved(data, draw.whole_numbers(*axes), options="ReverseV2Options")


def _reverse_sequence(draw: Draw) -> None:
    shape = draw.shape(2, 4)
    along, batch = (int(one) for one in draw.random.permutation(len(shape))[:2])
    lengths = draw.random.integers(1, shape[along] + 1, shape[batch])
    lengths = draw.given(lengths.astype(draw.one_of((np.int32, np.int64))))
    data = draw.data(shape, draw.one_of((*WIDE, "uint8", "int16")))
    draw.moved(data, lengths, options="ReverseSequenceOptions", seqDim=along, batchDim=batch)


def _one_hot(draw: Draw) -> None:
    shape, depth = draw.shape(0, 3), draw.whole(1, 6)
    dtype = draw.one_of(("float32", "int32", "int64", "bool", "int8"))
    values = draw.random.integers(-1, depth + 2, shape).astype(draw.one_of((np.int32, np.int64)))
    on, off = (True, False) if dtype == "bool" else draw.one_of(((1, 0), (5, 2), (-3, 4)))
    given = [draw.feed(values), draw.scalar(depth), draw.scalar(on, dtype), draw.scalar(off, dtype)]
    axis = draw.one_of((-1, *range(len(shape) + 1)))
    draw.op(given, [draw.made_plain(dtype)], "OneHotOptions", axis=axis)


def _embedding(draw: Draw) -> None:
    table = draw.shape(2, 3)
    values = draw.random.integers(0, table[0], draw.shape(1, 1)).astype(np.int32)
    dtype = draw.one_of(("float32", "float32", "int8"))
    data = draw.constant(draw.values(table, dtype), **draw.quantization(dtype))
    if draw.chance(0.5) and dtype == "int8":
        draw.case.tensors[data].zero = 0
        draw.op([draw.feed(values), data], [draw.made("float32")])
        return
    draw.op([draw.feed(values), data], [draw.made(dtype, data)])


def _range(draw: Draw) -> None:
    dtype = draw.one_of(("float32", "int32", "int64"))
    start, delta = draw.one_of((0, 3, -2)), draw.one_of((1, 2, -1, -3))
    limit = start + delta * draw.whole(1, 5) + draw.one_of((0, 0, 1 if delta > 0 else -1))
    if dtype == "float32":
        delta = delta / 2
    draw.op(
        [draw.scalar(one, dtype) for one in (start, limit, delta)],
        [draw.made(dtype)],
        "RangeOptions",
    )


def _reshape(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    left, target = int(np.prod(shape)), []
    while len(target) < 4 and left > 1:
        factor = draw.one_of([one for one in range(1, left + 1) if left % one == 0])
        target.append(factor)
        left //= factor
    target.append(left)
    if draw.chance(0.5):
        target[draw.whole(0, len(target) - 1)] = -1
    data = draw.data(shape, draw.one_of((*_MOVED, "int16")))
    how = {"options": "ReshapeOptions", "newShape": target}
    if draw.chance(0.2):
        draw.moved(data, **how)
    else:
        draw.moved(data, draw.whole_numbers(*target), **how)


def _squeeze(draw: Draw) -> None:
    shape = tuple(1 if draw.chance(0.5) else extent for extent in draw.shape(1, 5))
    ones = [
        at - (len(shape) if draw.chance(0.4) else 0) for at, one in enumerate(shape) if one == 1
    ]
    chosen = [one for one in ones if draw.chance(0.6)]
    draw.moved(draw.data(shape, draw.one_of(_MOVED)), options="SqueezeOptions", squeezeDims=chosen)


def _expand_dims(draw: Draw) -> None:
    shape = draw.shape(0, 4)
    axis = np.asarray(draw.axis(len(shape) + 1), draw.one_of((np.int32, np.int64)))
    if draw.chance(0.4):
        axis = axis.reshape(1)
    draw.moved(
        draw.data(shape, draw.one_of(_MOVED)), draw.constant(axis), options="ExpandDimsOptions"
    )


def _fill(draw: Draw) -> None:
    dtype = draw.one_of((*WIDE, "bool"))
    size = draw.constant(np.asarray(draw.shape(0, 3), draw.one_of((np.int32, np.int64))))
    value = draw.feed(draw.array((), dtype))
    draw.op([size, value], [draw.made_plain(dtype)], "FillOptions")


def _matrix_diag(draw: Draw) -> None:
    dtype = draw.one_of((*WIDE, "int8", "uint8", "int16"))
    if draw.case.operator == "MATRIX_DIAG":
        draw.moved(draw.data(draw.shape(1, 3), dtype), options="MatrixDiagOptions")
        return
    shape = draw.shape(2, 4)
    data = draw.data(shape, dtype)
    diagonal = draw.data((*shape[:-2], min(shape[-2:])), dtype, data)
    draw.moved(data, diagonal, options="MatrixSetDiagOptions")


def _segments(draw: Draw) -> None:
    name = draw.case.operator
    shape = draw.shape(1, 3)
    dtype = draw.one_of(("float32", "float32", "int32"))
    value = draw.array(shape, dtype)
    if name == "SEGMENT_SUM":
        ids = np.cumsum(draw.random.integers(0, 2, shape[0]))
        ids = (ids - ids[0]).astype(np.int32)
        draw.op([draw.feed(value), draw.constant(ids)], [draw.made(dtype)], "SegmentSumOptions")
        return
    count = draw.whole(1, 5)
    ids = draw.random.integers(-1 if draw.chance(0.3) else 0, count, shape[0]).astype(np.int32)
    options = {"SUM": "Sum", "MAX": "Max", "MIN": "Min", "PROD": "Prod"}[name.rsplit("_")[-1]]
    given = [draw.feed(value), draw.given(ids), draw.scalar(count)]
    draw.op(given, [draw.made(dtype)], f"UnsortedSegment{options}Options")


def _sparse_to_dense(draw: Draw) -> None:
    dtype, shape = draw.one_of(("float32", "int32", "int64", "int8")), draw.shape(1, 3)
    total = int(np.prod(shape))
    count = draw.whole(1, min(4, total))
    flat = np.sort(draw.random.permutation(total)[:count])
    where = np.stack(np.unravel_index(flat, shape), -1).astype(np.int32)
    values = draw.array(draw.one_of(((), (count,))), dtype)
    given = [
        draw.constant(where),
        draw.whole_numbers(*shape),
        draw.feed(values),
        draw.scalar(draw.whole(-2, 3), dtype),
    ]
    draw.op(given, [draw.made_plain(dtype)], "SparseToDenseOptions", validateIndices=False)


def _dilate(draw: Draw) -> None:
    dtype, shape = draw.one_of((*WIDE, "int8")), draw.shape(1, 4)
    steps = draw.whole_numbers(*(draw.whole(1, 3) for _ in shape))
    fill = draw.scalar(draw.whole(-2, 3), dtype)
    draw.op(
        [draw.feed(draw.array(shape, dtype)), steps, fill],
        [draw.made_plain(dtype)],
        "DilateOptions",
    )


RULES: dict[str, Rule] = {
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "SCATTER_ND": _scatter_nd,
    "STRIDED_SLICE": _strided_slice,
    "SLICE": _slice,
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _pad),
    **dict.fromkeys(("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"), _blocks),
    **dict.fromkeys(("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"), _batches),
    **dict.fromkeys(("SPLIT", "SPLIT_V"), _split),
    "UNPACK": _unpack,
    "PACK": _pack,
    "CONCATENATION": _concatenation,
    "TRANSPOSE": _transpose,
    "TILE": _tile,
    "BROADCAST_TO": _broadcast_to,
    "REVERSE_V2": _reverse,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "ONE_HOT": _one_hot,
    "EMBEDDING_LOOKUP": _embedding,
    "RANGE": _range,
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": _expand_dims,
    "FILL": _fill,
    **dict.fromkeys(("MATRIX_DIAG", "MATRIX_SET_DIAG"), _matrix_diag),
    "SEGMENT_SUM": _segments,
    **dict.fromkeys(
        [f"UNSORTED_SEGMENT_{one}" for one in ("SUM", "MAX", "MIN", "PROD")], _segments
    ),
    "SPARSE_TO_DENSE": _sparse_to_dense,
    "DILATE": _dilate,
}
