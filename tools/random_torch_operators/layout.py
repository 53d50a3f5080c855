"""Rules of operators that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_torch_operators.drawing import Draw, Rule, broadcast_partner

_KINDS = ("float32", "float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool")


def _data(draw: Draw, low: int = 1, high: int = 4, least: int = 1) -> tuple[str, Any, str]:
    """Return an input, its shape and its type."""
    shape, dtype = draw.shape(low, high, least), draw.one_of(_KINDS)
    return draw.feed(draw.array(shape, dtype)), shape, dtype


def _views(draw: Draw) -> None:
    """Views with other strides, alone or one after the other."""
    name, shape, _ = _data(draw)
    rank = len(shape)
    one, other = draw.axis(rank), draw.axis(rank)
    extent = shape[one]
    size = draw.whole(1, extent)
    begin, step = draw.whole(-extent, extent - 1), draw.whole(1, 3)
    colons = ":, " * (one % rank)
    flat = int(np.prod(shape))
    expression = draw.one_of(
        [
            f"{name}.transpose({one}, {other})",
            f"{name}.permute({tuple(draw.axes(rank, rank))})",
            f"{name}.unfold({one}, {size}, {step})",
            f"{name}[{colons}{begin}::{step}]",
            f"{name}[{colons}{begin}]",
            f"{name}[..., None, :{-draw.whole(0, 2) or None}]",
            f"{name}.narrow({one}, {draw.whole(0, extent - size)}, {size})",
            f"{name}.select({one}, {begin})",
            f"{name}.movedim({one}, {other})",
            f"{name}.swapaxes({one}, {other})",
            f"{name}.as_strided(({max(flat // 2, 1)}, 2), (1, {min(1, flat - 1)}))",
            f"{name}.as_strided(({max((flat - 1) // 2, 1)},), (2,), {min(1, flat - 1)})",
            f"{name}.unsqueeze({draw.whole(-rank - 1, rank)})",
            f"{name}.squeeze({one})",
            f"{name}.squeeze({tuple(sorted({one % rank, other % rank}))})",
            f"{name}.squeeze()",
            f"{name}.flatten({min(one % rank, other % rank)}, {max(one % rank, other % rank)})",
            f"{name}.expand({(2, *shape)})",
            f"{name}.unsqueeze(0).expand({(3, *(-1 for _ in shape))})",
            f"{name}.reshape(-1, {shape[-1]})",
            f"{name}.view(-1)",
            f"{name}.transpose(0, -1).reshape(-1)",
            f"{name}.flip({tuple(draw.axes(rank))})",
            f"{name}.unflatten({one}, (-1, 1))",
            f"{name}.mT" if rank > 1 else f"{name}.clone()",
            f"{name}.ravel()[{draw.whole(0, flat - 1)}]",
        ]
    )
    if draw.chance(0.25):
        expression += draw.one_of(
            [
                ".flip(0)"
                if "select" not in expression
                and "squeeze()" not in expression
                and "ravel" not in expression
                and f"[{colons}{begin}]" not in expression
                and "squeeze" not in expression
                else ".contiguous()",
                ".clone()",
                ".contiguous()",
            ]
        )
    draw.compute(expression)


def _roll(draw: Draw) -> None:
    name, shape, _ = _data(draw)
    if draw.chance(0.3):
        draw.call("torch.roll", name, draw.whole(-20, 20))
        return
    axes = tuple(draw.axes(len(shape)))
    draw.call("torch.roll", name, tuple(draw.whole(-12, 12) for _ in axes), axes)


def _join(draw: Draw) -> None:
    name, shape, dtype = _data(draw)
    axis = draw.axis(len(shape))
    names = [name]
    how = draw.one_of(["cat", "stack", "hstack", "vstack", "dstack", "column_stack", "block_diag"])
    for _ in range(draw.whole(0, 2)):
        kind = dtype if draw.chance(0.7) else draw.one_of(_KINDS)
        other = list(shape)
        if how == "cat":
            other[axis] = draw.whole(1, 4)
        names.append(draw.given(draw.array(other, kind)))
    listed = f"[{', '.join(names)}]"
    if how in ("cat", "stack"):
        draw.call(f"torch.{how}", listed, axis)
    elif how == "block_diag":
        if len(shape) > 2:
            draw.call("torch.cat", listed)
        else:
            draw.call("torch.block_diag", *names)
    else:
        draw.call(f"torch.{how}", listed)


def _split(draw: Draw) -> None:
    name, shape, _ = _data(draw, least=2)
    axis = draw.axis(len(shape))
    extent = shape[axis]
    first = draw.whole(1, extent - 1)
    draw.compute(
        draw.one_of(
            [
                f"torch.split({name}, {draw.whole(1, extent)}, {axis})",
                f"torch.split({name}, [{first}, {extent - first}], dim={axis})",
                f"torch.chunk({name}, {draw.whole(1, extent)}, {axis})",
                f"torch.tensor_split({name}, {draw.whole(1, extent)}, {axis})",
                f"torch.tensor_split({name}, [{first}], {axis})",
                f"torch.unbind({name}, {axis})",
            ]
        )
    )


def _repeat(draw: Draw) -> None:
    name, shape, _ = _data(draw, 0)
    rank = len(shape)
    times = tuple(draw.whole(1, 3) for _ in range(rank + draw.whole(0, 1)))
    axis = draw.axis(rank) if rank else 0
    choices = [
        f"{name}.repeat({times})" if times else f"{name}.repeat(2)",
        f"torch.tile({name}, {tuple(draw.whole(1, 3) for _ in range(draw.whole(1, 3)))})",
        f"torch.repeat_interleave({name}, {draw.whole(1, 3)})",
    ]
    if rank:
        choices.append(f"torch.repeat_interleave({name}, {draw.whole(1, 3)}, dim={axis})")
    draw.compute(draw.one_of(choices))


def _indices(draw: Draw, extent: int, shape: Any, *, negative: bool = False) -> Any:
    return draw.random.integers(-extent if negative else 0, extent, shape)


def _gather(draw: Draw) -> None:
    name, shape, _ = _data(draw)
    axis = draw.axis(len(shape))
    of = tuple(draw.whole(1, extent) for extent in shape)
    how = draw.one_of(["gather", "take_along_dim", "index_select", "take"])
    if how == "gather":
        draw.call("torch.gather", name, axis, draw.given(_indices(draw, shape[axis], of)))
    elif how == "take_along_dim":
        along = tuple(shape[at] if at != axis % len(shape) else of[at] for at in range(len(shape)))
        index = draw.given(_indices(draw, shape[axis], along))
        draw.call("torch.take_along_dim", name, index, axis)
    elif how == "index_select":
        index = _indices(draw, shape[axis], (draw.whole(1, 5),))
        draw.call(
            "torch.index_select",
            name,
            axis,
            draw.given(index.astype(draw.one_of(["int64", "int32"]))),
        )
    else:
        index = draw.given(_indices(draw, int(np.prod(shape)), draw.shape(0, 2), negative=True))
        draw.call("torch.take", name, index)


def _scatter(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    dtype = draw.one_of(("float32", "float32", "float64", "int64", "int32"))
    name, axis = draw.feed(draw.array(shape, dtype)), draw.axis(len(shape))
    of = [draw.whole(1, extent) for extent in shape]
    different = np.argsort(
        draw.random.random((*of[: axis % len(shape)], shape[axis], *of[axis % len(shape) + 1 :])),
        axis % len(shape),
    )
    index = np.take(different, range(of[axis]), axis % len(shape))
    how = draw.one_of(
        ["scatter", "scatter value", "scatter_add", "scatter_reduce", "inplace", "reduce"]
    )
    if "scatter_" in how and draw.chance(0.7):
        index = _indices(draw, shape[axis], of)
    source = draw.given(draw.array([extent + draw.one_of([0, 0, 1]) for extent in of], dtype))
    places = draw.given(index)
    if how == "scatter value":
        draw.call("torch.scatter", name, axis, places, 3)
    elif how == "scatter_reduce":
        reduce = draw.one_of(
            ["sum", "prod", "amax", "amin", *(["mean"] if "float" in dtype else [])]
        )
        draw.call(
            "torch.scatter_reduce",
            name,
            axis,
            places,
            source,
            repr(reduce),
            **draw.some(include_self=[True, False]),
        )
    elif how == "inplace":
        draw.call(f"{name}.clone().scatter_", axis, places, source)
    elif how == "reduce":
        draw.call(
            "torch.scatter", name, axis, places, source, reduce=draw.one_of(["'add'", "'multiply'"])
        )
    else:
        draw.call(f"torch.{how}", name, axis, places, source)


def _index_along(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    dtype = draw.one_of(("float32", "float64", "int64", "int32"))
    name, axis = draw.feed(draw.array(shape, dtype)), draw.axis(len(shape))
    count = draw.whole(1, shape[axis])
    index = draw.random.permutation(shape[axis])[:count]
    how = draw.one_of(["index_add", "index_copy", "index_fill", "index_reduce"])
    if how == "index_add":
        index = _indices(draw, shape[axis], (count,))
    places = draw.given(index)
    source = list(shape)
    source[axis] = count
    values = draw.given(draw.array(source, dtype))
    if how == "index_fill":
        draw.call("torch.index_fill", name, axis, places, 3)
    elif how == "index_add":
        draw.call("torch.index_add", name, axis, places, values, **draw.some(alpha=[2, -1]))
    elif how == "index_reduce":
        draw.call(
            "torch.index_reduce",
            name,
            axis,
            places,
            values,
            draw.one_of(["'prod'", "'amax'", "'amin'"]),
        )
    else:
        draw.call("torch.index_copy", name, axis, places, values)


def _index_put(draw: Draw) -> None:
    shape = draw.shape(1, 3)
    dtype = draw.one_of(("float32", "float64", "int64", "bool", "float16"))
    name = draw.feed(draw.array(shape, dtype))
    rank = len(shape)
    axes = draw.whole(1, rank)
    begin = draw.whole(0, rank - axes) if draw.chance(0.4) else 0
    accumulate = dtype != "bool" and draw.chance(0.4)
    count = min(shape[begin : begin + axes])
    count = draw.whole(1, count)
    index = [
        (
            _indices(draw, extent, (count,))
            if accumulate
            else draw.random.permutation(extent)[:count]
        )
        - (extent if draw.chance(0.3) else 0)
        for extent in shape[begin : begin + axes]
    ]
    places = [draw.given(one) for one in index]
    rest = (
        (count, *shape[begin + axes :])
        if begin == 0
        else (*shape[:begin], count, *shape[begin + axes :])
    )
    values = draw.given(
        draw.array(broadcast_partner(draw, rest)[-len(rest) :] if draw.chance(0.4) else rest, dtype)
    )
    listed = ", ".join(["None"] * begin + places)
    if begin == 0 and draw.chance(0.7):
        draw.compute(f"torch.index_put({name}, ({listed},), {values}, accumulate={accumulate})")
    else:
        draw.compute(
            f"{name}.clone().index_put_(({listed},), {values}, accumulate={accumulate})"
            if begin == 0
            else f"torch.ops.aten.index_put({name}, [{listed}], {values}, {accumulate})"
        )


def _index(draw: Draw) -> None:
    name, shape, _ = _data(draw)
    rank, parts = len(shape), []
    of = draw.shape(0, 2)
    for extent in shape[: draw.whole(1, rank)]:
        kind = draw.whole(0, 4)
        if kind < 2:
            value = _indices(
                draw,
                extent,
                broadcast_partner(draw, of)[-len(of) or None :] if of else (),
                negative=True,
            )
            parts.append(draw.given(np.asarray(value)))
        elif kind == 2:
            parts.append(f"{draw.whole(0, extent - 1)}:")
        elif kind == 3:
            parts.append(":" + f":{draw.whole(1, 3)}")
        else:
            parts.append(str(draw.whole(-extent, extent - 1)))
    if draw.chance(0.2):
        parts.append("...")
    if draw.chance(0.15):
        parts.insert(draw.whole(0, len(parts)), "None")
    draw.compute(f"{name}[{', '.join(parts)}]")


def _assign(draw: Draw) -> None:
    """Write to a part of a copy."""
    name, shape, dtype = _data(draw, high=3)
    axis = draw.axis(len(shape))
    extent = shape[axis]
    begin, step = draw.whole(0, extent - 1), draw.whole(1, 3)
    count = len(range(begin, extent, step))
    source = list(shape)
    source[axis] = count
    selected = [one for at, one in enumerate(shape) if at != axis % len(shape)]
    how = draw.one_of(
        ["slice_scatter", "select_scatter", "diagonal_scatter", "copy_", "fill_", "add_"]
    )
    part = f"{name}.clone()"
    if how == "select_scatter":
        draw.call(
            "torch.select_scatter",
            name,
            draw.given(draw.array(selected, dtype)),
            axis,
            draw.whole(-extent, extent - 1),
        )
    elif how == "diagonal_scatter" and len(shape) > 1:
        offset = draw.whole(-1, 1)
        of = np.diagonal(np.zeros(shape), offset).shape
        if 0 in of:
            offset, of = 0, np.diagonal(np.zeros(shape)).shape
        draw.call("torch.diagonal_scatter", name, draw.given(draw.array(of, dtype)), offset)
    elif how in ("copy_", "add_", "fill_") and dtype != "bool":
        value = "2" if how == "fill_" else draw.given(draw.array(source, dtype))
        colons = ":, " * (axis % len(shape))
        view = f"torch.narrow(y, {axis}, {begin}, {extent - begin})[{colons}::{step}]"
        draw.compute(f"(lambda y: ({view}.{how}({value}), y * 1)[1])({part})")
    else:
        draw.call(
            "torch.slice_scatter",
            name,
            draw.given(draw.array(source, dtype)),
            dim=axis,
            start=begin,
            step=step,
        )


def _diagonal(draw: Draw) -> None:
    name, shape, dtype = _data(draw, 1, 4)
    rank = len(shape)
    offset = draw.whole(-2, 2)
    if rank < 2:
        draw.compute(
            draw.one_of(
                [
                    f"torch.diag({name}, {offset})",
                    f"torch.diag_embed({name}, {offset})",
                    f"torch.diagflat({name}, {offset})",
                ]
            )
        )
        return
    one, other = draw.axes(rank, rank)[:2]
    if np.diagonal(np.zeros(shape), offset, one, other).size == 0:
        offset = 0
    square = dtype if dtype not in ("bool", "float16") else "int64"
    expressions = [
        f"torch.diagonal({name}, {offset}, {one}, {other})",
        f"torch.tril({name}, {offset})",
        f"torch.triu({name}, {offset})",
        f"torch.diag_embed({name}, {offset}, {draw.one_of([0, -2])}, -1)",
        f"torch.rot90({name}, {draw.whole(-3, 3)}, ({one}, {other}))",
    ]
    if rank == 2 and square == dtype:
        expressions += [f"torch.trace({name})", f"torch.diag({name}, 0)"]
    draw.compute(draw.one_of(expressions))


def _pad(draw: Draw) -> None:
    mode = draw.one_of(["constant", "constant", "reflect", "replicate", "circular"])
    dtype = draw.one_of(
        (
            "float32",
            "float32",
            "float64",
            "float16",
            *(("int64", "bool", "uint8") if mode == "constant" else ()),
        )
    )
    if mode == "constant":
        shape = draw.shape(1, 4, least=2)
        axes = draw.whole(1, len(shape))
        widths = [
            draw.whole(-1 if axis % 2 else 0, 3) if draw.chance(0.8) else -1
            for axis in range(2 * axes)
        ]
        widths = [
            max(width, 0) if shape[-1 - at // 2] < 3 else width for at, width in enumerate(widths)
        ]
        value = (
            {
                "value": draw.one_of(
                    [1, 0, 2.5 if "float" in dtype else 3, *(["-inf"] if "float" in dtype else [])]
                )
            }
            if draw.chance(0.6)
            else {}
        )
    else:
        axes = draw.whole(1, 3)
        shape = (
            *(draw.whole(1, 3) for _ in range(draw.whole(1, 2))),
            *(draw.whole(3, 6) for _ in range(axes)),
        )
        widths = [draw.whole(0, 2) for _ in range(2 * axes)]
        if draw.chance(0.15):
            widths[draw.whole(0, len(widths) - 1)] = -1
        value = {}
    name = draw.feed(draw.array(shape, dtype))
    draw.call("F.pad", draw.view(name), widths, mode=repr(mode), **value)


def _shuffle(draw: Draw) -> None:
    name = draw.one_of(["pixel_shuffle", "pixel_unshuffle", "channel_shuffle"])
    factor, lead = draw.whole(1, 3), (2,) if draw.chance(0.7) else (1,)
    rows, columns, channels = draw.whole(1, 4), draw.whole(1, 4), draw.whole(1, 3)
    shape = {
        "pixel_shuffle": (channels * factor**2, rows, columns),
        "pixel_unshuffle": (channels, rows * factor, columns * factor),
        "channel_shuffle": (channels * factor, rows, columns),
    }[name]
    data = draw.feed(draw.array((*lead, *shape), draw.one_of(_KINDS[:4])))
    draw.call(f"torch.{name}", data, factor)


def _folds(draw: Draw) -> None:
    kernel, dilation, stride, padding = (
        tuple(draw.whole(low, high) for _ in "hw") for low, high in ((1, 3), (1, 2), (1, 3), (0, 2))
    )
    size = tuple(draw.whole(5, 8) for _ in "hw")
    channels, batch = draw.whole(1, 3), draw.whole(1, 2)
    named = {"dilation": dilation, "stride": stride, "padding": padding}
    dtype = draw.one_of(("float32", "float32", "float64"))
    if draw.chance(0.5):
        draw.call(
            "F.unfold", draw.feed(draw.array((batch, channels, *size), dtype)), kernel, **named
        )
        return
    counts = [
        (size[at] + 2 * padding[at] - dilation[at] * (kernel[at] - 1) - 1) // stride[at] + 1
        for at in (0, 1)
    ]
    shape = (batch, channels * kernel[0] * kernel[1], counts[0] * counts[1])
    draw.call("F.fold", draw.feed(draw.array(shape, dtype)), size, kernel, **named)


def _made(draw: Draw) -> None:
    """Tensors that are made, added to an input."""
    name = draw.tensor(0, 1, draw.one_of(["float32", "int64"]))
    name = f"{name}.sum()"
    low, high, step = draw.whole(-5, 2), draw.whole(4, 9), draw.one_of([1, 2, 0.75, 3])
    kind = draw.one_of(
        ["", ", dtype=torch.float64", ", dtype=torch.int32", ", dtype=torch.float32"]
    )
    made = draw.one_of(
        [
            f"torch.arange({low}, {high}, {step}{kind})",
            f"torch.arange({high}, {low}, -1)",
            f"torch.linspace({low}, {high}, {draw.whole(1, 9)})",
            f"torch.eye({draw.whole(1, 5)}, {draw.whole(1, 5)}{kind})",
            f"torch.full(({draw.whole(1, 5)}, 2), {step}{kind})",
            f"torch.ones(3, 2{kind})",
            f"torch.zeros(3{kind})",
            f"torch.tril_indices(4, {draw.whole(1, 5)}, {draw.whole(-1, 1)})",
            f"torch.meshgrid(torch.arange({high}), torch.arange(3), indexing='ij')[0]",
            f"torch.logspace(0, 2, {draw.whole(1, 5)})",
            f"torch.hann_window({draw.whole(2, 9)}, periodic={draw.chance(0.5)})",
        ]
    )
    draw.compute(f"{made} + {name}")


def _embedding(draw: Draw) -> None:
    rows, width = draw.whole(1, 8), draw.whole(1, 5)
    table = draw.given(draw.array((rows, width), draw.one_of(_KINDS[:4])))
    tokens = draw.feed(
        _indices(draw, rows, draw.shape(0, 3)).astype(draw.one_of(["int64", "int32"]))
        if True
        else 0
    )
    draw.call("F.embedding", tokens, table, **draw.some(padding_idx=[0, -1]))


def _one_hot(draw: Draw) -> None:
    data = draw.feed(_indices(draw, 5, draw.shape(0, 3)))
    draw.call("F.one_hot", data, draw.one_of([5, 7]))


def _masked_scatter(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    dtype = draw.one_of(_KINDS)
    lead = draw.whole(0, len(shape) - 1) if draw.chance(0.3) else 0
    mask = draw.random.random(shape[lead:]) < draw.one_of([0.2, 0.5, 0.9])
    source = draw.given(draw.array((int(np.prod(shape)) + draw.whole(0, 3),), dtype))
    data = draw.view(draw.feed(draw.array(shape, dtype)))
    draw.call(f"{data}.masked_scatter", draw.given(mask), source)


def _searchsorted(draw: Draw) -> None:
    dtype, lead = draw.one_of(["float32", "float64", "int64", "int32"]), draw.shape(0, 2)
    boundaries = np.sort(draw.array((*lead, draw.whole(1, 9)), dtype), -1)
    one = draw.chance(0.5)
    shape = draw.shape(0, 3) if one else (*lead, draw.whole(1, 5))
    named = draw.some(right=[True, False], out_int32=[True, False])
    if one:
        boundaries = boundaries.reshape(-1, boundaries.shape[-1])[0]
        if draw.chance(0.2):
            draw.compute(
                f"torch.searchsorted({draw.feed(boundaries)}, {draw.whole(-3, 3)}, right=True)"
            )
            return
    data = draw.feed(draw.array(shape, dtype))
    draw.call("torch.searchsorted", draw.given(boundaries), data, **named)


def _diagonal_scatter(draw: Draw) -> None:
    shape = draw.shape(2, 4)
    one, other = draw.random.permutation(len(shape))[:2]
    height, width = shape[one], shape[other]
    offset = draw.whole(1 - height, width - 1)
    value = draw.array(shape)
    source = draw.array(np.diagonal(value, offset, one, other).shape)
    data = draw.feed(value)
    if draw.chance(0.3):
        draw.compute(f"({data} * 1).fill_diagonal_(3.0)" if len(shape) == 2 else f"{data} + 1")
        return
    draw.call("torch.diagonal_scatter", data, draw.given(source), offset, int(one), int(other))


def _as_strided(draw: Draw) -> None:
    value = draw.array(draw.shape(1, 3))
    size = [draw.whole(1, 4) for _ in range(draw.whole(1, 3))]
    stride = [draw.whole(0, 4) for _ in size]
    reached = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    if reached >= value.size:
        size, stride, reached = [value.size], [1], value.size - 1
    offset = draw.whole(0, value.size - 1 - reached)
    draw.call(f"({draw.feed(value)} * 1).as_strided", size, stride, offset)


RULES: dict[str, Rule] = {
    "as_strided": _as_strided,
    "masked_scatter": _masked_scatter,
    "searchsorted": _searchsorted,
    "diagonal_scatter": _diagonal_scatter,
    "views": _views,
    "roll": _roll,
    "cat": _join,
    "split": _split,
    "repeat": _repeat,
    "gather": _gather,
    "scatter": _scatter,
    "index_add": _index_along,
    "index_put": _index_put,
    "index": _index,
    "assign": _assign,
    "diagonal": _diagonal,
    "pad": _pad,
    "pixel_shuffle": _shuffle,
    "fold": _folds,
    "arange": _made,
    "embedding": _embedding,
    "one_hot": _one_hot,
}
