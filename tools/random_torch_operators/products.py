"""Rules of convolutions, pools, samples, products, recurrent layers and attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from random_torch_operators.drawing import Draw, Rule

_FLOATS = ("float32", "float32", "float32", "float64", "float16")
_REAL = ("float32", "float32", "float64")


def _each(draw: Draw, count: int, low: int, high: int) -> Any:
    """Return a number for each axis, or one for all."""
    values = tuple(draw.whole(low, high) for _ in range(count))
    return values[0] if draw.chance(0.3) else values


def _of(value: Any, axis: int) -> int:
    return int(value[axis] if isinstance(value, tuple) else value)


def _conv(draw: Draw) -> None:
    rank, dtype = draw.whole(1, 3), draw.one_of(_FLOATS)
    groups = draw.one_of([1, 1, 2, 3])
    channels, filters = groups * draw.whole(1, 3), groups * draw.whole(1, 3)
    kernel = tuple(draw.whole(1, 3) for _ in range(rank))
    stride, dilation = _each(draw, rank, 1, 3), _each(draw, rank, 1, 2)
    padding: Any = _each(draw, rank, 0, 2)
    size = tuple(draw.whole(5, 8) for _ in range(rank))
    if draw.chance(0.2):
        padding = repr(draw.one_of(["same", "valid"]))
        if padding == "'same'":
            stride = 1
    lead = () if draw.chance(0.15) else (draw.whole(1, 2),)
    data = draw.feed(draw.array((*lead, channels, *size), dtype, scale=1.0))
    weight = draw.given(draw.array((filters, channels // groups, *kernel), dtype, scale=1.0))
    bias = draw.given(draw.array((filters,), dtype)) if draw.chance(0.6) else "None"
    draw.call(
        f"F.conv{rank}d",
        data,
        weight,
        bias,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )


def _conv_transpose(draw: Draw) -> None:
    rank, dtype = draw.whole(1, 3), draw.one_of(_FLOATS)
    groups = draw.one_of([1, 1, 2, 3])
    channels, filters = groups * draw.whole(1, 3), draw.whole(1, 3)
    kernel = tuple(draw.whole(1, 3) for _ in range(rank))
    stride, dilation = _each(draw, rank, 1, 3), _each(draw, rank, 1, 2)
    padding = tuple(draw.whole(0, min(2, kernel[axis] - 1)) for axis in range(rank))
    more = tuple(
        draw.whole(0, max(_of(stride, axis), _of(dilation, axis)) - 1) for axis in range(rank)
    )
    size = tuple(draw.whole(2, 6) for _ in range(rank))
    lead = () if draw.chance(0.15) else (draw.whole(1, 2),)
    data = draw.feed(draw.array((*lead, channels, *size), dtype, scale=1.0))
    weight = draw.given(draw.array((channels, filters, *kernel), dtype, scale=1.0))
    bias = draw.given(draw.array((filters * groups,), dtype)) if draw.chance(0.6) else "None"
    draw.call(
        f"F.conv_transpose{rank}d",
        data,
        weight,
        bias,
        stride=stride,
        padding=padding,
        output_padding=more,
        groups=groups,
        dilation=dilation,
    )


def _pool(draw: Draw) -> None:
    rank, dtype = draw.whole(1, 3), draw.one_of(_FLOATS)
    kind = draw.one_of(["max", "max", "avg", "avg", "lp"])
    rank = min(rank, 2) if kind == "lp" else rank
    kernel = tuple(draw.whole(1, 4) for _ in range(rank))
    padding = tuple(draw.whole(0, one // 2) for one in kernel)
    size = tuple(draw.whole(4, 9) for _ in range(rank))
    lead = (draw.whole(1, 3),) if draw.chance(0.15) else (draw.whole(1, 2), draw.whole(1, 3))
    data = draw.feed(draw.array((*lead, *size), dtype))
    named = draw.some(stride=[_each(draw, rank, 1, 3)], ceil_mode=[True, True, False])
    if kind == "lp":
        draw.call(f"F.lp_pool{rank}d", data, draw.one_of([1.0, 2.0, 3.0]), kernel, **named)
        return
    named |= draw.some(padding=[padding])
    if kind == "avg":
        named |= draw.some(count_include_pad=[True, False])
        if rank > 1:
            named |= {"divisor_override": draw.whole(1, 5)} if draw.chance(0.2) else {}
    else:
        dilation = tuple(draw.whole(1, 2) if one < 4 else 1 for one in kernel)
        named |= draw.some(dilation=[dilation])
        if draw.chance(0.2):
            named["return_indices"] = True
    draw.call(f"F.{kind}_pool{rank}d", data, kernel, **named)


def _adaptive_pool(draw: Draw) -> None:
    rank, dtype = draw.whole(1, 3), draw.one_of(_FLOATS)
    size = tuple(draw.whole(1, 8) for _ in range(rank))
    lead = (draw.whole(1, 3),) if draw.chance(0.15) else (draw.whole(1, 2), draw.whole(1, 3))
    wanted: Any = tuple(draw.one_of([draw.whole(1, 9), None, 1]) for _ in size)
    if rank == 1:
        wanted = wanted[0] or 3
    elif draw.chance(0.2):
        wanted = draw.whole(1, 5)
    data = draw.feed(draw.array((*lead, *size), dtype))
    draw.call(f"F.adaptive_{draw.one_of(['avg', 'max'])}_pool{rank}d", data, wanted)


def _interpolate(draw: Draw) -> None:
    rank = draw.whole(1, 3)
    modes = {1: ["linear"], 2: ["bilinear", "bilinear", "bicubic", "area"], 3: ["trilinear"]}[rank]
    mode = draw.one_of([*modes, "nearest", "nearest-exact"])
    size = tuple(draw.whole(1, 7) for _ in range(rank))
    data = draw.feed(draw.array((draw.whole(1, 2), draw.whole(1, 3), *size), draw.one_of(_REAL)))
    named: dict[str, Any] = {"mode": repr(mode)}
    if draw.chance(0.5):
        named["size"] = tuple(draw.whole(1, 12) for _ in size)
    else:
        factors = tuple(draw.one_of([2, 1.5, 0.5, 3, 1.3, 2.7, 1.0]) for _ in size)
        factors = tuple(
            max(one, 1.0 / extent + 0.01) for one, extent in zip(factors, size, strict=True)
        )
        named["scale_factor"] = factors
        if draw.chance(0.3):
            named["recompute_scale_factor"] = True
    if "linear" in mode or mode == "bicubic":
        named |= draw.some(align_corners=[True, False])
        if mode in ("bilinear", "bicubic") and draw.chance(0.25):
            named["antialias"] = True
    draw.call("F.interpolate", data, **named)


def _grid_sample(draw: Draw) -> None:
    rank = draw.one_of([2, 2, 2, 3])
    lead, dtype = draw.whole(1, 2), draw.one_of(_REAL)
    size, wanted = (tuple(draw.whole(1, 6) for _ in range(rank)) for _ in "ab")
    data = draw.feed(draw.array((lead, draw.whole(1, 3), *size), dtype))
    named = draw.some(
        mode=["'bilinear'", "'nearest'"],
        padding_mode=["'zeros'", "'border'", "'reflection'"],
        align_corners=[True, False],
    )
    if draw.chance(0.2):
        theta = draw.feed(draw.array((lead, rank, rank + 1), dtype, scale=1.0))
        channels = (lead, 1, *wanted)
        draw.compute(f"F.affine_grid({theta}, {channels}, align_corners={draw.chance(0.5)})")
        return
    grid = draw.feed(draw.between(-1.4, 1.4, (lead, *wanted, rank), dtype))
    draw.call("F.grid_sample", data, grid, **named)


_EQUATIONS = (
    *("ij,jk->ik", "bij,bjk->bik", "ii->i", "ii", "i,j->ij", "ij->ji", "bhqd,bhkd->bhqk", "ij,j"),
    *("...ij,...jk->...ik", "ijk->j", "ij,ij->", "bn,anm,bm->ba", "i,i,i->i", "iij->ij", "ij->"),
)


def _einsum(draw: Draw) -> None:
    equation = str(draw.one_of(_EQUATIONS))
    extents = {letter: draw.whole(1, 6) for letter in equation if letter.isalpha()}
    more = [draw.whole(1, 3) for _ in range(draw.whole(0, 2))]
    dtype, names = draw.one_of((*_REAL, "int64")), []
    for labels in equation.partition("->")[0].split(","):
        lead = more if labels.startswith("...") else []
        shape = [*lead, *(extents[one] for one in labels if one.isalpha())]
        names.append(draw.feed(draw.array(shape, dtype, scale=1.0)))
    draw.call("torch.einsum", repr(equation), *names)


def _matmul(draw: Draw) -> None:
    dtype = draw.one_of((*_FLOATS, "int64", "int32"))
    rows, inner, columns, batch = (draw.whole(1, 6) for _ in range(4))
    how = draw.one_of(
        [
            "matmul",
            "matmul",
            "linear",
            "addmm",
            "baddbmm",
            "addmv",
            "addr",
            "outer",
            "dot",
            "mv",
            "bilinear",
            "kron",
            "tensordot",
            "cross",
            "addbmm",
            "linalg.vecdot",
            "chain_matmul",
        ]
    )

    def data(*shape: int) -> str:
        return draw.feed(draw.array(shape, dtype, scale=1.0))

    scaled = draw.some(alpha=[2, -3], beta=[0, 2])
    if how == "matmul":
        lead = [draw.whole(1, 3) for _ in range(draw.whole(0, 2))]
        left = (*lead[draw.whole(0, len(lead)) :], rows, inner)
        right = (*[1 if draw.chance(0.3) else one for one in lead], inner, columns)
        left, right = left[-1:] if draw.chance(0.15) else left, right
        if draw.chance(0.15):
            right = (inner,)
        draw.call("torch.matmul", data(*left), draw.given(draw.array(right, dtype, scale=1.0)))
    elif how == "linear":
        lead = draw.shape(0, 2)
        weight = draw.given(draw.array((columns, inner), dtype))
        more = [draw.given(draw.array((columns,), dtype))] if draw.chance(0.6) else []
        draw.call("F.linear", data(*lead, inner), weight, *more)
    elif how == "addmm":
        bias = draw.one_of([(rows, columns), (columns,), (rows, 1)])
        draw.call("torch.addmm", data(*bias), data(rows, inner), data(inner, columns), **scaled)
    elif how in ("baddbmm", "addbmm"):
        bias = (
            draw.one_of([(batch, rows, columns), (1, columns)])
            if how == "baddbmm"
            else (rows, columns)
        )
        draw.call(
            f"torch.{how}",
            data(*bias),
            data(batch, rows, inner),
            data(batch, inner, columns),
            **scaled,
        )
    elif how == "addmv":
        draw.call("torch.addmv", data(rows), data(rows, inner), data(inner), **scaled)
    elif how == "addr":
        draw.call("torch.addr", data(rows, columns), data(rows), data(columns), **scaled)
    elif how == "outer":
        draw.call("torch.outer", data(rows), data(columns))
    elif how == "dot":
        draw.call("torch.dot", data(rows), data(rows))
    elif how == "mv":
        draw.call("torch.mv", data(rows, inner), data(inner))
    elif how == "bilinear":
        dtype = "float32"
        draw.call("F.bilinear", data(rows, inner), data(rows, columns), data(batch, inner, columns))
    elif how == "kron":
        draw.call("torch.kron", data(rows, 2), data(3, columns))
    elif how == "tensordot":
        draw.call(
            "torch.tensordot", data(rows, inner, 2), data(2, inner, columns), "([1, 2], [1, 0])"
        )
    elif how == "cross":
        draw.call("torch.linalg.cross", data(rows, 3), data(rows, 3))
    elif how == "chain_matmul":
        draw.call(
            "torch.linalg.multi_dot", f"[{data(rows, inner)}, {data(inner, 3)}, {data(3, columns)}]"
        )
    else:
        draw.call("torch.linalg.vecdot", data(rows, inner, 2), data(rows, inner, 2), dim=1)


def _recurrent(draw: Draw) -> None:
    kind = draw.one_of(["LSTM", "LSTM", "GRU", "RNN"])
    size, hidden, batch, steps = (draw.whole(1, 5) for _ in range(4))
    layers, both, first = draw.one_of([1, 1, 2]), draw.chance(0.5), draw.chance(0.5)
    named: dict[str, Any] = {
        "num_layers": layers,
        "bidirectional": both,
        "batch_first": first,
        "bias": draw.chance(0.8),
    }
    if kind == "LSTM" and hidden > 1 and draw.chance(0.2):
        named["proj_size"] = draw.whole(1, hidden - 1)
    if kind == "RNN":
        named["nonlinearity"] = draw.one_of(["tanh", "relu"])
    module = draw.module(getattr(torch.nn, kind)(size, hidden, **named))
    alone = draw.chance(0.15)
    shape = (steps, size) if alone else (batch, steps, size) if first else (steps, batch, size)
    data = draw.feed(draw.array(shape, scale=1.0))
    rows = layers * (2 if both else 1)
    more = () if alone else (batch,)
    if draw.chance(0.4):
        states = [draw.feed(draw.array((rows, *more, named.get("proj_size", hidden)), scale=1.0))]
        if kind == "LSTM":
            states.append(draw.feed(draw.array((rows, *more, hidden), scale=1.0)))
        given = f"({', '.join(states)})" if kind == "LSTM" else states[0]
        draw.compute(f"{module}({data}, {given})")
    else:
        draw.compute(f"{module}({data})")


def _attention(draw: Draw) -> None:
    dtype = draw.one_of(_REAL)
    queries, keys, width, values = (draw.whole(1, 6) for _ in range(4))
    lead = draw.one_of([(2, 3), (2, 3), (1, 2), (3,), (2, 1, 2)])
    named: dict[str, Any] = draw.some(scale=[0.3, 1.0])
    heads = lead
    if len(lead) == 2 and draw.chance(0.15):
        heads, named["enable_gqa"] = (lead[0], 1), True
    values = width if draw.chance(0.7) else values
    query = draw.feed(draw.array((*lead, queries, width), dtype))
    key = draw.feed(draw.array((*heads, keys, width), dtype))
    value = draw.feed(draw.array((*heads, keys, values), dtype))
    if draw.chance(0.3):
        named["is_causal"] = True
    elif draw.chance(0.6):
        shape = draw.one_of(
            [
                (queries, keys),
                (*lead, queries, keys),
                (1, keys),
                (lead[0], *(1 for _ in lead[1:]), 1, keys),
            ]
        )
        if draw.chance(0.5):
            mask = draw.array(shape, "bool")
            mask[..., 0] = True if draw.chance(0.8) else mask[..., 0]
            named["attn_mask"] = draw.given(mask)
        else:
            named["attn_mask"] = draw.given(draw.array(shape, dtype))
    draw.call("F.scaled_dot_product_attention", query, key, value, **named)


def _multihead(draw: Draw) -> None:
    heads, width, batch, queries, keys = (draw.whole(1, 3) for _ in range(5))
    first = draw.chance(0.5)
    module = draw.module(
        torch.nn.MultiheadAttention(
            heads * width,
            heads,
            batch_first=first,
            bias=draw.chance(0.7),
            add_zero_attn=draw.chance(0.2),
            add_bias_kv=draw.chance(0.2),
        )
    )

    def data(length: int) -> str:
        shape = (batch, length, heads * width) if first else (length, batch, heads * width)
        return draw.feed(draw.array(shape, scale=1.0))

    query = data(queries)
    alone = draw.chance(0.4)
    key = query if alone else data(keys)
    named = draw.some(need_weights=[True, False], average_attn_weights=[True, False])
    if draw.chance(0.3):
        named["attn_mask"] = draw.given(draw.array((queries, queries if alone else keys)))
    more = ", ".join(f"{name}={value}" for name, value in named.items())
    made = f"{module}({query}, {key}, {key}, {more})"
    draw.compute(made if named.get("need_weights", True) else f"{made}[0]")


def _layer(draw: Draw) -> None:
    """Modules that are no single function."""
    data = draw.feed(draw.array((2, 4, 6), scale=1.0))
    nn = torch.nn
    module = draw.one_of(
        [
            lambda: nn.TransformerEncoderLayer(
                6, 2, 8, batch_first=draw.chance(0.5), norm_first=draw.chance(0.5)
            ),
            lambda: nn.PReLU(draw.one_of([1, 4])),
            lambda: nn.GLU(draw.one_of([1, 2, -1])),
            lambda: nn.Softmax2d(),
            lambda: nn.ZeroPad1d((1, 2)),
            lambda: nn.CircularPad1d((1, 2)),
            lambda: nn.Conv1d(
                4, 4, 3, padding=1, padding_mode=draw.one_of(["reflect", "circular", "replicate"])
            ),
            lambda: nn.LayerNorm((4, 6), bias=False),
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)),
            lambda: nn.Upsample(
                scale_factor=draw.one_of([2, 1.5]), mode=draw.one_of(["nearest", "linear"])
            ),
            lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 5]).head,
            lambda: nn.RReLU(),
            lambda: nn.Flatten(0, 1),
        ]
    )()
    draw.compute(f"{draw.module(module)}({data})")


def _linear_algebra(draw: Draw) -> None:
    lead, size = draw.shape(0, 2), draw.whole(1, 5)
    dtype = draw.one_of(("float32", "float32", "float64"))
    square = draw.array((*lead, size, size), dtype) / 4
    square = draw.feed(np.asarray(square + 3 * np.eye(size)[draw.random.permutation(size)], dtype))
    right = draw.array((*lead, size, draw.whole(1, 3)), dtype)
    positive = f"({square} @ {square}.mT + torch.eye({size}, dtype=torch.{dtype}))"
    draw.compute(
        str(
            draw.one_of(
                [
                    f"torch.linalg.inv({square})",
                    f"torch.linalg.det({square})",
                    f"torch.linalg.slogdet({square})",
                    f"torch.linalg.solve({square}, {draw.given(right)})",
                    f"torch.linalg.cholesky({positive})",
                    f"torch.logdet({positive})",
                ]
            )
        )
    )


def _sums_of_products(draw: Draw) -> None:
    inner, rows, columns, count = (draw.whole(1, 6) for _ in range(4))
    dtype = draw.one_of(("float32", "float32", "float64"))
    named = draw.some(beta=[0.5, 2], alpha=[0.5, 3])
    if draw.chance(0.5):
        added = draw.given(draw.array((rows, columns), dtype))
        left = draw.feed(draw.array((count, rows, inner), dtype))
        right = draw.given(draw.array((count, inner, columns), dtype))
        draw.call("torch.addbmm", added, left, right, **named)
        return
    added = draw.given(draw.array((rows,), dtype))
    left = draw.feed(draw.array((rows, inner), dtype))
    draw.call("torch.addmv", added, left, draw.given(draw.array((inner,), dtype)), **named)


RULES: dict[str, Rule] = {
    "linear algebra": _linear_algebra,
    "sums of products": _sums_of_products,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "pool": _pool,
    "adaptive_pool": _adaptive_pool,
    "interpolate": _interpolate,
    "grid_sample": _grid_sample,
    "einsum": _einsum,
    "matmul": _matmul,
    "recurrent": _recurrent,
    "attention": _attention,
    "multihead attention": _multihead,
    "layer": _layer,
}
