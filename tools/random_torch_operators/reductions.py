"""Rules of operators that combine the elements of axes: reductions, searches, normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_torch_operators.drawing import Draw, Rule

_WIDE = ("float32", "float32", "float64", "float16", "int32", "int64", "uint8", "bool")
_FLOATS = ("float32", "float32", "float64", "float16")
_REAL = ("float32", "float32", "float64")


def _dims(draw: Draw, rank: int) -> Any:
    """Return an axis, or several in any order."""
    if rank == 0:
        return draw.one_of([0, -1])
    return draw.axis(rank) if draw.chance(0.5) else tuple(draw.axes(rank))


def _reduce(draw: Draw) -> None:
    name, shape = draw.case.operator, draw.shape(0, 4)
    kinds: Any = {"mean": _FLOATS, "logsumexp": _REAL, "nansum": _REAL, "nanmean": _REAL}.get(
        name, _WIDE
    )
    dtype = draw.one_of(kinds)
    value = draw.array(shape, dtype, scale=1.0)
    if name == "prod" and dtype != "bool":
        value = value if "float" in dtype else (np.abs(value) % 3).astype(dtype)
    if name.startswith("nan") and value.size:
        value.reshape(-1)[draw.whole(0, value.size - 1)] = np.nan
    data, named = draw.view(draw.feed(value)), draw.some(keepdim=[True, False])
    if name in ("sum", "mean", "prod", "nansum") and draw.chance(0.3):
        named["dtype"] = draw.one_of(["torch.float64", "torch.float32"])
    if name == "count_nonzero":
        named = {}
    if name not in ("logsumexp",) and draw.chance(0.2):
        named.pop("keepdim", None)
        draw.call(f"torch.{name}", data, **named)
        return
    axes = draw.axis(len(shape)) if name == "prod" and shape else _dims(draw, len(shape))
    if name == "prod" and not shape:
        axes = 0
    draw.call(f"torch.{name}", data, axes, **named)


def _extreme(draw: Draw) -> None:
    """max, min, median, argmax, argmin, aminmax, cummax, cummin, kthvalue, topk, sort, argsort."""
    name, shape = draw.case.operator, draw.shape(0 if draw.chance(0.1) else 1, 4)
    dtype = draw.one_of(("float32", "float32", "float64", "float16", "int32", "int64", "uint8"))
    rank = len(shape)
    axis = draw.axis(rank) if rank else 0
    extent = shape[axis] if rank else 1
    # Different along the axis, or with equal ones where the first of them is taken.
    places = np.argsort(draw.random.random(shape), axis) if rank else np.zeros(())
    value = (places - (0 if dtype == "uint8" else extent // 3)).astype(dtype)
    if name in ("argmax", "argmin") and draw.chance(0.5):
        value = (np.round(draw.array(shape)) % 3).astype(dtype)
    if name in ("argmax", "argmin", "max", "min", "sort") and dtype != "uint8":
        if "float" in dtype and rank and draw.chance(0.15):
            value.reshape(-1)[draw.whole(0, value.size - 1)] = np.nan
        elif draw.chance(0.1) and "int" in dtype and rank:
            value.reshape(-1)[0] = np.iinfo(dtype).min
    data, keep = draw.view(draw.feed(value)), draw.some(keepdim=[True, False])
    if name in ("max", "min", "argmax", "argmin", "median") and draw.chance(0.2):
        if name.startswith("arg"):
            draw.call(f"torch.{name}", data)
        else:
            draw.call(f"torch.{name}", data)
    elif name in ("cummax", "cummin"):
        draw.call(f"torch.{name}", data, axis)
    elif name == "kthvalue":
        draw.call("torch.kthvalue", data, draw.whole(1, extent), axis, **keep)
    elif name == "topk":
        how = draw.some(largest=[True, False], sorted=[True, False])
        if not how.get("sorted", True):
            draw.case.unordered = axis
        draw.call("torch.topk", data, draw.whole(1, extent), axis, **how)
    elif name in ("sort", "argsort"):
        draw.call(f"torch.{name}", data, dim=axis, **draw.some(descending=[True], stable=[True]))
    elif name == "aminmax":
        draw.call("torch.aminmax", data, dim=axis, **keep)
    else:
        draw.call(f"torch.{name}", data, axis, **keep)


def _spread(draw: Draw) -> None:
    name, shape = draw.case.operator, draw.shape(1, 4, least=2)
    data = draw.view(draw.feed(draw.array(shape, draw.one_of(_FLOATS))))
    how = draw.some(keepdim=[True, False])
    if draw.chance(0.5):
        how |= draw.some(correction=[0, 1])
    elif draw.chance(0.5):
        how["unbiased"] = draw.one_of([True, False])
    if draw.chance(0.15) and "unbiased" not in how:
        how.pop("keepdim", None)
        draw.call(f"torch.{name}", data, **how)
        return
    draw.call(f"torch.{name}", data, dim=_dims(draw, len(shape)), **how)


def _cumulated(draw: Draw) -> None:
    name, shape = draw.case.operator, draw.shape(0 if draw.chance(0.1) else 1, 4)
    dtype = draw.one_of(_WIDE if name in ("cumsum", "cumprod") else _REAL)
    value = draw.array(shape, dtype)
    if name == "cumprod" and "float" in dtype:
        value = draw.between(-1.3, 1.3, shape, dtype)
    axis = draw.axis(len(shape)) if shape else 0
    named = {}
    if name != "logcumsumexp" and draw.chance(0.3):
        named["dtype"] = draw.one_of(["torch.float64", "torch.float32", "torch.int64"])
    draw.call(f"torch.{name}", draw.view(draw.feed(value)), axis, **named)


def _norm(draw: Draw) -> None:
    shape = draw.shape(1, 4)
    data = draw.feed(draw.array(shape, draw.one_of(_REAL)))
    order = draw.one_of([1, 2, 3, "inf", "-inf", 0, 0.5, -1])
    name = draw.one_of(
        ["torch.norm", "torch.linalg.vector_norm", "F.normalize", "torch.linalg.norm"]
    )
    keep = draw.some(keepdim=[True, False])
    if name == "F.normalize":
        order = draw.one_of([1, 2, 3, "inf"])
        draw.call(name, data, p=order, dim=draw.axis(len(shape)), **draw.some(eps=[0.1, 2.0]))
    elif name == "torch.norm":
        draw.call(name, data, p=order, dim=_dims(draw, len(shape)), **keep)
    elif name == "torch.linalg.norm":
        if len(shape) == 2 and draw.chance(0.5):
            order = draw.one_of(["'fro'", 1, -1, "inf", "-inf"])
            draw.call(name, data, order, **keep)
        else:
            draw.call(name, data, order, dim=draw.axis(len(shape)), **keep)
    else:
        draw.call(name, data, order, dim=_dims(draw, len(shape)), **keep)


def _softmax(draw: Draw) -> None:
    shape, name = (
        draw.shape(0 if draw.chance(0.1) else 1, 4),
        draw.one_of(["softmax", "log_softmax", "softmin"]),
    )
    dtype = draw.one_of((*_FLOATS, "int32"))
    named = (
        {"dtype": draw.one_of(["torch.float32", "torch.float64"])}
        if draw.chance(0.2) or dtype == "int32"
        else {}
    )
    value = draw.array(shape, dtype)
    if "float" in dtype and value.ndim and value.size > 2 and draw.chance(0.2):
        value.reshape(-1)[0] = -np.inf
    axis = draw.axis(len(shape)) if shape else 0
    draw.call(f"F.{name}", draw.view(draw.feed(value)), dim=axis, **named)


def _normalization(draw: Draw) -> None:
    name = draw.one_of(
        [
            "layer_norm",
            "rms_norm",
            "group_norm",
            "batch_norm",
            "instance_norm",
            "local_response_norm",
        ]
    )
    dtype = draw.one_of(_REAL)
    eps = draw.some(eps=[0.1, 0.5])

    def each(shape: Any) -> str:
        return draw.given(draw.array(shape, dtype)) if draw.chance(0.6) else "None"

    if name in ("layer_norm", "rms_norm"):
        shape = draw.shape(1, 4)
        of = shape[draw.whole(0, len(shape) - 1) :]
        data = draw.feed(draw.array(shape, dtype))
        weight = each(of)
        more = {"bias": each(of)} if name == "layer_norm" else {}
        draw.call(f"F.{name}", data, of, weight=weight, **more, **eps)
        return
    groups, per = draw.whole(1, 3), draw.whole(1, 3)
    channels = groups * per
    spatial = tuple(draw.whole(2, 5) for _ in range(draw.whole(1, 3)))
    data = draw.feed(draw.array((draw.whole(1, 3), channels, *spatial), dtype))
    if name == "group_norm":
        draw.call(
            "F.group_norm", data, groups, weight=each((channels,)), bias=each((channels,)), **eps
        )
    elif name == "batch_norm":
        mean = draw.constant(draw.array((channels,), dtype))
        variance = draw.constant(draw.between(0.3, 2, (channels,), dtype))
        draw.call(
            "F.batch_norm",
            data,
            mean,
            variance,
            weight=each((channels,)),
            bias=each((channels,)),
            **eps,
        )
    elif name == "instance_norm":
        draw.call("F.instance_norm", data, weight=each((channels,)), bias=each((channels,)), **eps)
    else:
        draw.call(
            "F.local_response_norm",
            data,
            draw.whole(1, 4),
            **draw.some(alpha=[0.1], beta=[0.5], k=[2.0]),
        )


def _truth(draw: Draw) -> None:
    name, shape = draw.case.operator, draw.shape(0, 4)
    dtype = draw.one_of(("bool", "bool", "float32", "int64", "uint8"))
    value = draw.array(shape, dtype)
    value = (value if dtype == "bool" else np.round(value) % 2).astype(dtype)
    data = draw.feed(value)
    if draw.chance(0.3) or not shape:
        draw.call(f"torch.{name}", data)
    else:
        draw.call(
            f"torch.{name}", data, _dims(draw, len(shape)), **draw.some(keepdim=[True, False])
        )


def _distance(draw: Draw) -> None:
    dtype = draw.one_of(_REAL)
    name = draw.one_of(["cosine_similarity", "pairwise_distance", "cdist", "dist"])
    if name == "cdist":
        lead = () if draw.chance(0.5) else (2,)
        width = draw.whole(1, 5)
        one, other = (draw.feed(draw.array((*lead, draw.whole(1, 5), width), dtype)) for _ in "ab")
        draw.call("torch.cdist", one, other, **draw.some(p=[1.0, 2.0, 3.0, "inf"]))
        return
    shape = draw.shape(1, 3)
    one, other = (draw.feed(draw.array(shape, dtype)) for _ in "ab")
    if name == "dist":
        draw.call("torch.dist", one, other, **draw.some(p=[1, 2, 3]))
    elif name == "cosine_similarity":
        draw.call(
            "F.cosine_similarity", one, other, dim=draw.axis(len(shape)), **draw.some(eps=[1.0])
        )
    else:
        draw.call(
            "F.pairwise_distance", one, other, **draw.some(p=[1, 2, 3], eps=[0.1], keepdim=[True])
        )


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ["sum", "mean", "prod", "amax", "amin", "logsumexp", "nansum", "nanmean", "count_nonzero"],
        _reduce,
    ),
    **dict.fromkeys(
        [
            "max",
            "min",
            "median",
            "argmax",
            "argmin",
            "aminmax",
            "cummax",
            "cummin",
            "kthvalue",
            "topk",
            "sort",
            "argsort",
        ],
        _extreme,
    ),
    **dict.fromkeys(["std", "var", "std_mean", "var_mean"], _spread),
    **dict.fromkeys(["cumsum", "cumprod", "logcumsumexp"], _cumulated),
    **dict.fromkeys(["any", "all"], _truth),
    "norm": _norm,
    "softmax": _softmax,
    "normalization": _normalization,
    "distance": _distance,
}
