"""Convert operators of torch programs that TVM 0.27's importer has no converter for.

The definitions are those of torch's documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tvm import relax

from farm.importers.extents import are_equal
from farm.importers.grid_sampling import repeat_single_elements

# TVM's reductions of scatter_elements, by torch's names in scatter_reduce.
_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
# TVM's names of torch's numbers, in the order of at::native's enumerations.
_SAMPLINGS, _OUTSIDE = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
_ROUNDING = 1e-6  # of a scale
_CUBIC_SHARPNESS = -0.75  # of torch's cubic filter without antialiasing
Converter = Callable[[Any, Any], Any]  # (node, importer) -> Relax expression of the node


def undecomposed() -> tuple[Any, ...]:
    """Return the operators of torch's table of decompositions that are converted as they are.

    The decompositions of upsampling read each element by indices that they compute. Those of
    products merge and split the axes of a batch around them, which keeps the operators that follow
    out of the product's kernel, and repeat a matrix for each product of data that is transposed.
    """
    return (
        torch.ops.aten.upsample_bilinear2d.default,
        torch.ops.aten.upsample_bicubic2d.default,
        torch.ops.aten.upsample_bicubic2d.vec,
        torch.ops.aten.upsample_nearest2d.default,
        torch.ops.aten.linear.default,
        torch.ops.aten.matmul.default,
    )


def converters() -> dict[str, Converter]:
    """Return the converters for `custom_convert_map` of `from_exported_program`."""
    return {
        "amax.default": lambda node, importer: _extreme(relax.op.max, node, importer),
        "amin.default": lambda node, importer: _extreme(relax.op.min, node, importer),
        "min.dim": _min_dim,
        "prod.dim_int": _prod_dim,
        "prod.default": _prod_dim,
        "any.default": _any,
        "cat.default": _cat,
        "elu.default": _elu,
        "div.Tensor": _true_div,
        "div.Scalar_mode": _div,
        "div.Tensor_mode": _div,
        "grid_sampler_2d.default": _grid_sampler,
        "scatter.src": _scatter,
        "scatter.reduce": _scatter,
        "scatter_add.default": _scatter_add,
        "scatter_reduce.two": _scatter_reduce,
        "cumsum.default": _cumulated("cumsum"),
        "cumprod.default": _cumulated("cumprod"),
        "sort.default": _sort,
        "sort.stable": _sort,
        "topk.default": _top_k,
        "unfold.default": _unfold,
        "clamp.default": _clamp,
        **{f"upsample_{method}2d.default": _upsample(method) for method in ("bilinear", "bicubic")},
        **{f"upsample_{method}2d.vec": _upsample_vec(method) for method in ("bilinear", "bicubic")},
        "slice_scatter.default": _slice_scatter,
        "split_with_sizes.default": _split,
        "upsample_nearest2d.default": _upsample_nearest,
        "upsample_nearest2d.vec": _upsample_nearest,
        "adaptive_max_pool2d.default": _adaptive_max_pool,
        "adaptive_max_pool3d.default": _adaptive_max_pool,
        "_embedding_bag_forward_only.default": _embedding_bag,
        **{f"reflection_pad{count}d.default": _pad("reflect") for count in (1, 2, 3)},
        **{f"replication_pad{count}d.default": _pad("replicate") for count in (1, 2, 3)},
    }


def node_argument(node: torch.fx.Node, position: int, name: str, default: Any) -> Any:
    """Return a node's argument by position or name, or the default."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _extreme(operator: Callable[..., relax.Expr], node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert amax or amin, of truth values as numbers."""
    axes, emit = list(node_argument(node, 1, "dim", ())) or None, importer.block_builder.emit
    value, keep = importer.env[node.args[0]], bool(node_argument(node, 2, "keepdim", False))
    if str(value.ty.dtype) != "bool":
        return emit(operator(value, axes, keep))
    made = emit(operator(emit(relax.op.astype(value, "int8")), axes, keep))
    return emit(relax.op.astype(made, "bool"))


def _min_dim(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert min along an axis, which returns values and indices."""
    data, axis, keep = (
        importer.env[node.args[0]],
        node.args[1],
        bool(node_argument(node, 2, "keepdim", False)),
    )
    values = importer.block_builder.emit(relax.op.min(data, axis, keep))
    return relax.Tuple([values, importer.block_builder.emit(relax.op.argmin(data, axis, keep))])


def _prod_dim(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert prod along an axis, or of all elements."""
    data = importer.env[node.args[0]]
    wanted = str(node.meta["val"].dtype).removeprefix("torch.")
    if str(data.ty.dtype) != wanted:  # torch multiplies integers as int64
        data = importer.block_builder.emit(relax.op.astype(data, wanted))
    axis = node.args[1] if len(node.args) > 1 else None
    if int(data.ty.ndim) == 0:
        return data
    return importer.block_builder.emit(
        relax.op.prod(data, axis, bool(node_argument(node, 2, "keepdim", False)))
    )


def _any(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert any over all elements."""
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    holds = (
        data
        if str(data.ty.dtype) == "bool"
        else emit(relax.op.not_equal(data, relax.const(0, str(data.ty.dtype))))
    )
    return emit(relax.op.astype(emit(relax.op.max(emit(relax.op.astype(holds, "int8")))), "bool"))


def _cat(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert cat, which ignores tensors of shape (0,), whatever the rank of the others.

    An empty cache of keys and values is such a tensor.
    """
    parts = [importer.env[part] for part in node.args[0]]
    full = [part for part in parts if not _is_empty_row(part)] or parts[:1]
    emit, dtype = importer.block_builder.emit, str(node.meta["val"].dtype).removeprefix("torch.")
    full = [
        part if str(part.ty.dtype) == dtype else emit(relax.op.astype(part, dtype)) for part in full
    ]
    return emit(relax.op.concat(full, axis=node_argument(node, 1, "dim", 0)))


def _is_empty_row(value: relax.Expr) -> bool:
    shape = value.ty.shape
    return int(value.ty.ndim) == 1 and isinstance(shape, relax.ShapeExpr) and int(shape[0]) == 0


def _elu(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert elu with all its factors, as selu has them; TVM's converter takes the first alone."""
    value, emit = importer.env[node.args[0]], importer.block_builder.emit
    alpha, scale, input_scale = (
        relax.const(
            float(node.args[place] if len(node.args) > place else node.kwargs.get(name, 1)),
            value.ty.dtype,
        )
        for place, name in ((1, "alpha"), (2, "scale"), (3, "input_scale"))
    )
    zero, one = (relax.const(number, value.ty.dtype) for number in (0.0, 1.0))
    power = emit(
        relax.op.exp(emit(relax.op.multiply(emit(relax.op.minimum(value, zero)), input_scale)))
    )
    low = emit(relax.op.multiply(emit(relax.op.subtract(power, one)), alpha))
    chosen = emit(relax.op.where(emit(relax.op.greater(value, zero)), value, low))
    return emit(relax.op.multiply(chosen, scale))


def _true_div(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a division; that of integers gives floats, which TVM's converter does not."""
    whole = [one.meta["val"].dtype for one in node.all_input_nodes]
    if any(dtype.is_floating_point for dtype in whole):
        return importer.create_convert_map()["div.Tensor"](node)
    return _div(node, importer)


def _div(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a division by a tensor or number, with a rounding mode.

    The result is floating point unless both operands are integers and the quotient is rounded.
    """
    mode, emit = node.kwargs.get("rounding_mode"), importer.block_builder.emit
    wanted = str(node.meta["val"].dtype).removeprefix("torch.")

    def typed(argument: Any) -> relax.Expr:
        if not isinstance(argument, torch.fx.Node):
            return relax.const(argument, wanted)
        value = importer.env[argument]
        return value if str(value.ty.dtype) == wanted else emit(relax.op.astype(value, wanted))

    data, number = (typed(argument) for argument in node.args[:2])
    if mode == "floor":
        return emit(relax.op.floor_divide(data, number))
    if "float" not in wanted:
        return _truncated(data, number, emit)
    quotient = emit(relax.op.divide(data, number))
    return emit(relax.op.trunc(quotient)) if mode == "trunc" else quotient


def _truncated(data: relax.Expr, number: relax.Expr, emit: Callable[[Any], Any]) -> relax.Expr:
    """Return the quotient of integers, rounded towards zero.

    It is one more than that rounded down, if that is not exact and the signs differ.
    """
    dtype = data.ty.dtype
    zero = relax.const(0, dtype)
    down = emit(relax.op.floor_divide(data, number))
    inexact = emit(relax.op.not_equal(emit(relax.op.multiply(down, number)), data))
    differ = emit(
        relax.op.logical_xor(emit(relax.op.less(data, zero)), emit(relax.op.less(number, zero)))
    )
    return emit(
        relax.op.add(
            down, emit(relax.op.astype(emit(relax.op.logical_and(inexact, differ)), dtype))
        )
    )


def _scatter(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert scatter, with a reduction or without."""
    data, index, source = _scattered(node, importer)
    how = {"add": "add", "multiply": "mul"}[node.kwargs["reduce"]] if node.kwargs else "update"
    return importer.block_builder.emit(
        relax.op.scatter_elements(data, index, source, node.args[1], how)
    )


def _scatter_add(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert scatter_add."""
    data, index, source = _scattered(node, importer)
    return importer.block_builder.emit(
        relax.op.scatter_elements(data, index, source, node.args[1], "add")
    )


def _scatter_reduce(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert scatter_reduce.

    Without include_self, the addressed elements are first set to the reduction's neutral element. A
    mean is a sum divided by a count.
    """
    (data, index, source), axis, emit = (
        _scattered(node, importer),
        node.args[1],
        importer.block_builder.emit,
    )
    wanted, kind = str(node.args[4]), str(data.ty.dtype)
    if wanted == "mean" and "float" not in kind:
        raise NotImplementedError("the mean of integers by scatter_reduce")

    def scatter(into: relax.Expr, values: relax.Expr, how: str) -> relax.Expr:
        return emit(relax.op.scatter_elements(into, index, values, axis, how))

    def filled(like: relax.Expr, number: float) -> relax.Expr:
        return emit(relax.op.full_like(like, relax.const(number, kind)))

    counts_itself = bool(node_argument(node, 5, "include_self", True))
    if not counts_itself:
        data = scatter(data, filled(source, _changes_nothing(wanted, kind)), "update")
    reduced = scatter(data, source, _REDUCTIONS[wanted])
    if wanted != "mean":
        return reduced
    ones = filled(data, 1)
    count = scatter(
        ones if counts_itself else scatter(ones, filled(source, 0), "update"),
        filled(source, 1),
        "add",
    )
    return emit(relax.op.divide(reduced, count))


def _changes_nothing(reduction: str, kind: str) -> float:
    """Return the neutral element of a reduction of this element type."""
    if reduction not in ("amax", "amin"):
        return 1 if reduction == "prod" else 0
    if "float" in kind:
        return -math.inf if reduction == "amax" else math.inf
    limits = torch.iinfo(getattr(torch, kind))
    return int(limits.min if reduction == "amax" else limits.max)


def _cumulated(name: str) -> Converter:
    """Return a converter of sums or products of the elements before: of int64 for integers."""

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        value, emit = importer.env[node.args[0]], importer.block_builder.emit
        dtype = str(node.meta["val"].dtype).removeprefix("torch.")
        if str(value.ty.dtype) != dtype:
            value = emit(relax.op.astype(value, dtype))
        if not len(value.ty.shape):
            return value
        return emit(getattr(relax.op, name)(value, node.args[1]))

    return convert


def _sort(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert sort, of truth values as numbers; TVM's is always stable."""
    value, emit = importer.env[node.args[0]], importer.block_builder.emit
    first = 1 if node.target.__name__ == "sort.default" else 2  # behind `stable`
    axis, down = (
        node_argument(node, first + place, name, default)
        for place, (name, default) in enumerate((("dim", -1), ("descending", False)))
    )
    if str(value.ty.dtype) != "bool":
        return _by_theirs("sort.default", (node.args[0], axis, down), node, importer)
    numbers = emit(relax.op.astype(value, "int8"))
    order = emit(relax.op.argsort(numbers, axis, down, "int64"))
    return relax.Tuple([emit(relax.op.gather_elements(value, order, axis)), order])


def _top_k(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert topk; sorted ones will do where the order does not matter."""
    data, count = node.args[:2]
    axis, largest = node_argument(node, 2, "dim", -1), node_argument(node, 3, "largest", True)
    return _by_theirs("topk.default", (data, count, axis, largest), node, importer)


def _scattered(node: torch.fx.Node, importer: Any) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Return data, indices, and the part of the source that the indices cover."""
    data, index, source = (importer.env[node.args[position]] for position in (0, 2, 3))
    extents = list(index.ty.shape)
    longer = [at for at, own in enumerate(source.ty.shape) if not are_equal(own, extents[at])]
    if longer:
        ends = [int(extents[at]) for at in longer]
        source = importer.block_builder.emit(
            relax.op.strided_slice(source, longer, [0] * len(longer), ends)
        )
    return data, index, source


def _unfold(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert unfold: the axis becomes that of the windows, whose elements form a new last axis."""
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    axis, size, step = node.args[1] % len(data.ty.shape), node.args[2], node.args[3]
    starts = np.arange((int(data.ty.shape[axis]) - size) // step + 1) * step
    windows = emit(
        relax.op.take(data, relax.const(starts[:, None] + np.arange(size), "int64"), axis)
    )
    rank = len(data.ty.shape) + 1
    return emit(
        relax.op.permute_dims(windows, [*(at for at in range(rank) if at != axis + 1), axis + 1])
    )


def _upsample(method: str) -> Converter:
    """Return the converter of upsampling to a size, the form that scripts have.

    TVM converts the other form, which has a size or factors.
    """

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        data, size, *others = node.args
        align_corners, scales = others[0], [*others[1:], *node.kwargs.values()]
        extents = data.meta["val"].shape[2:]
        for scale, extent, length in zip(scales, extents, size, strict=False):
            # torch takes the ratio of the extents where no positive scale is given
            if scale is not None and scale > 0 and extent * scale != length:
                raise NotImplementedError(f"upsampling {extent} elements by {scale} to {length}")
        return _interpolated(method, data, list(size), align_corners, node, importer)

    return convert


def _upsample_vec(method: str) -> Converter:
    """Return the converter of upsampling to a size or by factors."""

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        data, _, align_corners, *others = node.args
        lengths = list(node.meta["val"].shape[2:])
        scales = others[0] if others else node.kwargs.get("scale_factors")
        differs = any(
            abs(scale * extent - length) > _ROUNDING * length
            for scale, extent, length in zip(
                scales or (), data.meta["val"].shape[2:], lengths, strict=False
            )
        )
        if differs and not align_corners:
            return _by_neighbours(method, data, lengths, scales, importer)
        if not align_corners or 1 not in lengths:
            return importer.create_convert_map()[f"upsample_{method}2d.vec"](node)
        return _interpolated(method, data, lengths, align_corners, node, importer)

    return convert


def _by_neighbours(
    method: str, data: torch.fx.Node, lengths: list[int], scales: Any, importer: Any
) -> relax.Expr:
    """Return an image that is resized by these scales, an axis after the other.

    TVM takes the ratio of the extents, which differs where a scale gives no whole length. Outside
    of the image is its nearest element.
    """
    value, emit = importer.env[data], importer.block_builder.emit
    dtype = str(value.ty.dtype)
    for axis, (length, scale) in enumerate(zip(lengths, scales, strict=True), 2):
        extent = int(data.meta["val"].shape[axis])
        at = (np.arange(length) + 0.5) / scale - 0.5
        if method == "bilinear":
            at = np.maximum(at, 0)
        below = np.floor(at).astype(np.int64)
        parts = [
            emit(
                relax.op.multiply(
                    emit(
                        relax.op.take(
                            value,
                            relax.const(np.clip(below + offset, 0, extent - 1), "int64"),
                            axis,
                        )
                    ),
                    relax.const(weights.reshape(-1, *([1] * (3 - axis))).astype(dtype), dtype),
                )
            )
            for offset, weights in _weights_of_neighbours(method, at - below)
        ]
        value = parts[0]
        for part in parts[1:]:
            value = emit(relax.op.add(value, part))
    return value


def _weights_of_neighbours(
    method: str, fraction: npt.NDArray[np.float64]
) -> list[tuple[int, npt.NDArray[np.float64]]]:
    """Return the offsets and weights of the elements that are interpolated.

    `fraction` is the distance to the element below. The cubic filter is that of Keys (1981).
    """
    if method == "bilinear":
        return [(0, 1 - fraction), (1, fraction)]
    a = _CUBIC_SHARPNESS

    def near(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return ((x - 5) * x + 8) * x * a - 4 * a

    return [
        (-1, far(1 + fraction)),
        (0, near(fraction)),
        (1, near(1 - fraction)),
        (2, far(2 - fraction)),
    ]


def _interpolated(
    method: str,
    data: torch.fx.Node,
    lengths: list[int],
    align_corners: bool,
    node: torch.fx.Node,
    importer: Any,
) -> relax.Expr:
    """Return an image that is resized to these lengths by interpolation.

    With align_corners, torch takes the first element for a length of 1, for which TVM divides by
    zero: it is the first of two here.
    """
    if not align_corners:
        return _resized(method, (data, lengths, align_corners, None), node, importer)
    two = [2 if length == 1 else length for length in lengths]
    value = _resized(method, (data, two, align_corners, None), node, importer)
    axes = [axis for axis, length in enumerate(lengths, 2) if length == 1]
    if not axes:
        return value
    begin, end = [0] * len(axes), [1] * len(axes)
    return importer.block_builder.emit(relax.op.strided_slice(value, axes, begin, end))


def _split(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a split into parts of known sizes."""
    if any(isinstance(size, torch.fx.Node) for size in node.args[1]):
        raise NotImplementedError("parts whose sizes depend on the values of inputs")
    return importer.create_convert_map()["split_with_sizes.default"](node)


def _slice_scatter(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert slice_scatter, which changes nothing if what is written has no elements.

    There is no code for a kernel without elements. TVM's operator writes other numbers if there are
    steps between the elements: here, each element is taken from the data or from what is written.
    """
    data, source = node.args[:2]
    if any(isinstance(one, int) and one == 0 for one in source.meta["val"].shape):
        return importer.env[data]
    begin, end = node_argument(node, 3, "start", None), node_argument(node, 4, "end", None)
    axis, step = node_argument(node, 2, "dim", 0), node_argument(node, 5, "step", 1)
    if step == 1:
        return importer.create_convert_map()["slice_scatter.default"](node)
    extent, emit = int(data.meta["val"].shape[axis]), importer.block_builder.emit
    places = np.arange(extent)
    written = places[begin:end:step]
    places[written] = extent + np.arange(len(written))
    both = emit(relax.op.concat([importer.env[data], importer.env[source]], axis))
    return emit(relax.op.take(both, relax.const(places, "int64"), axis))


def _resized(method: str, arguments: Any, node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Return what TVM's converter of upsampling makes of these arguments."""
    return _by_theirs(f"upsample_{method}2d.vec", arguments, node, importer)


def _by_theirs(name: str, arguments: Any, node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Return what TVM's converter of an operator makes of these arguments."""
    real = SimpleNamespace(
        args=arguments,
        kwargs={},
        meta=node.meta,
        all_input_nodes=node.all_input_nodes,
        name=node.name,
        target=node.target,
    )
    return importer.create_convert_map()[name](real)


def _clamp(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert clamp; TVM's converter gives integers that have one bound an infinite one."""
    value, emit = importer.env[node.args[0]], importer.block_builder.emit
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    if str(value.ty.dtype) != dtype:  # integers between floats
        value = emit(relax.op.astype(value, dtype))
    elif "float" in dtype:
        return importer.create_convert_map()["clamp.default"](node)
    bounds = (node_argument(node, 1, "min", None), node_argument(node, 2, "max", None))
    for bound, operator in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
        if bound is not None:
            value = emit(operator(value, relax.const(bound, dtype)))
    return value


def _upsample_nearest(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert upsampling by the nearest element below: element i is that at floor(i / scale).

    TVM's converter takes the nearest on either side where the scale is not whole.
    """
    data, _, *given = node.args
    scales = given[0] if given and isinstance(given[0], (list, tuple)) else given
    extents = data.meta["val"].shape[2:]
    lengths = node.meta["val"].shape[2:]
    if all(length % extent == 0 for extent, length in zip(extents, lengths, strict=True)):
        return _resized("nearest", (data, list(lengths)), node, importer)
    value, emit = importer.env[data], importer.block_builder.emit
    for axis, (extent, length) in enumerate(zip(extents, lengths, strict=True), 2):
        scale = scales[axis - 2] if len(scales) == len(extents) else None
        step = np.float32(1 / scale if scale is not None and scale > 0 else extent / length)
        places = np.floor(np.arange(length, dtype=np.float32) * step).astype(np.int64)
        value = emit(
            relax.op.take(value, relax.const(np.minimum(places, extent - 1), "int64"), axis)
        )
    return value


def _adaptive_max_pool(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert adaptive_max_pool: the maxima of windows, as many as the result has elements.

    Window i of n over an axis of the extent l begins at floor(i l / n) and ends before
    ceil((i + 1) l / n). An axis is reduced after the other; a window that is shorter than others
    has its last element again.
    """
    if any(user.args[1] != 0 for user in node.users if user.target.__name__ == "getitem"):
        raise NotImplementedError("the indices of adaptive_max_pool")
    value, emit = importer.env[node.args[0]], importer.block_builder.emit
    counts = node.args[1]
    first = int(value.ty.ndim) - len(counts)
    for axis, count in enumerate(counts, first):
        extent = int(value.ty.shape[axis])
        if count == extent:
            continue
        at = np.arange(count)
        begins, ends = at * extent // count, -((at + 1) * extent // -count)
        places = np.minimum(begins[:, None] + np.arange((ends - begins).max()), ends[:, None] - 1)
        windows = emit(relax.op.take(value, relax.const(places, "int64"), axis))
        value = emit(relax.op.max(windows, [axis + 1]))
    return relax.Tuple([value])


def _embedding_bag(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert EmbeddingBag: sums, means or maxima of rows of a table.

    Each bag begins at its offset and ends where the next begins. Bags without rows are zeros.
    """
    (table, tokens, offsets), emit = (
        (importer.env[node.args[position]] for position in range(3)),
        importer.block_builder.emit,
    )
    mode, weights, last, padding = (
        node_argument(node, *of)
        for of in ((4, "mode", 0), (6, "", None), (7, "", False), (8, "", -1))
    )
    if (padding is not None and padding >= 0) or mode not in (0, 1, 2):
        raise NotImplementedError("torch.nn.EmbeddingBag with a padding_idx")
    kind, count = str(table.ty.dtype), int(offsets.ty.shape[0]) - bool(last)
    rows = emit(relax.op.take(table, tokens, 0))
    if weights is not None:
        rows = emit(relax.op.multiply(rows, emit(relax.op.expand_dims(importer.env[weights], [1]))))
    begun = emit(
        relax.op.less_equal(
            offsets, relax.const(np.arange(int(tokens.ty.shape[0]))[:, None], str(offsets.ty.dtype))
        )
    )
    bags = emit(
        relax.op.subtract(
            emit(relax.op.sum(emit(relax.op.astype(begun, "int64")), [1], True)),
            relax.const(1, "int64"),
        )
    )

    def gathered(values: relax.Expr, columns: int, how: str, start: float = 0) -> relax.Expr:
        into = emit(relax.op.full([count, columns], relax.const(start, kind), kind))
        return emit(relax.op.scatter_nd(into, bags, values, how))

    columns = int(table.ty.shape[1])
    if mode == 0:
        return relax.Tuple([gathered(rows, columns, "add")])
    sizes = gathered(emit(relax.op.ones([int(tokens.ty.shape[0]), 1], kind)), 1, "add")
    if mode == 1:
        sizes = emit(relax.op.maximum(sizes, relax.const(1, kind)))
        return relax.Tuple([emit(relax.op.divide(gathered(rows, columns, "add"), sizes))])
    most = gathered(rows, columns, "max", _changes_nothing("amax", kind))
    return relax.Tuple(
        [
            emit(
                relax.op.where(
                    emit(relax.op.greater(sizes, relax.const(0, kind))), most, relax.const(0, kind)
                )
            )
        ]
    )


def _grid_sampler(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a sampling of images [N, C, H, W] at the places of a grid [N, H, W, 2].

    TVM's kernel has the two coordinates in the second axis, which its own converter does not heed.
    """
    image, grid, method, padding, align_corners = importer.retrieve_args(node)
    emit = importer.block_builder.emit
    if align_corners and _OUTSIDE[padding] == "reflection":
        image = repeat_single_elements(importer.block_builder, image)
    places = emit(relax.op.permute_dims(grid, [0, 3, 1, 2]))
    return emit(
        relax.op.image.grid_sample(
            image, places, _SAMPLINGS[method], "NCHW", _OUTSIDE[padding], bool(align_corners)
        )
    )


def _pad(mode: str) -> Converter:
    """Return a converter of padding in this mode.

    torch lists the widths from the last axis to the first, both ends of each.
    """

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        data, widths = importer.env[node.args[0]], list(node.args[1])
        pairs = [widths[at : at + 2] for at in range(0, len(widths), 2)]
        pairs += [[0, 0]] * (len(data.ty.shape) - len(pairs))
        return importer.block_builder.emit(
            relax.op.nn.pad(data, [width for pair in reversed(pairs) for width in pair], mode)
        )

    return convert
