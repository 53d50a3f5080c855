"""Which loops compute an operator on a CPU: farm's own for convolutions and products of float32, TVM's own definitions for the rest.

Constant weights are packed here, once. The batch may be open. What does not fit (other open axes, other types, groups that fill no
vectors) is left to TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax

from farm.compiler import functions, halves, integer_kernels, loops, phases, rows, windows, winograd, winograd_costs
from farm.compiler.candidates import product_candidates, run_length, sums_by_groups
from farm.compiler.choices import Chooser, Workload
from farm.compiler.extents import Extent, at_one, is_open, same
from farm.compiler.folding import constant
from farm.compiler.requantize import BYTES
from farm.compiler.tiles import divisor, in_groups, up_to_multiple

Array = np.ndarray[Any, Any]
Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
Own = Callable[[relax.BlockBuilder, relax.Call, Chooser], relax.Expr | None]
_IMAGE = 3  # axes after the batch: height, width, channels


def legalization(chooser: Chooser) -> dict[str, Legalizer]:
    """The map that `relax.transform.LegalizeOps` takes."""
    return {name: _legalizer(name, own, chooser) for name, own in _OWN.items()}


def _legalizer(name: str, own: Own, chooser: Chooser) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        ours = own(builder, call, chooser)
        return tvm.ir.Op.get(name).get_attr("FLegalize")(builder, call) if ours is None else ours

    return legalize


def shape_at_one(expression: relax.Expr, known: int, dtype: str = "float32") -> tuple[int, ...] | None:
    """The extents of a tensor at a batch of one, None where one of the last `known` axes is open or the type is another."""
    shape = getattr(expression.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or str(expression.ty.dtype) != dtype:
        return None
    if known and any(map(is_open, shape.values[-known:])):
        return None
    return tuple(map(at_one, shape.values))


def _convolution(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
    if str(call.ty.dtype) == "int32":
        return _integer_convolution(builder, call, chooser)
    attributes, weight, data = call.attrs, constant(call.args[1]), shape_at_one(call.args[0], _IMAGE)
    if weight is None or data is None or attributes.out_layout not in ("", "NHWC"):
        return None
    if (attributes.data_layout, attributes.kernel_layout, weight.dtype) != ("NHWC", "HWIO", np.float32):
        return None
    shared = _geometry(attributes, data)
    kernel_h, kernel_w, _, channels = weight.shape
    if attributes.groups == channels == data[3] > 1:
        workload = Workload(loops.DEPTHWISE, weight=weight.shape, **shared)
        choice = chooser.best(workload, windows.window_candidates(workload, chooser.core))
        packed = weight.reshape(kernel_h, kernel_w, channels)[:, :, windows.computed(channels, choice.tile.lanes)]
        body = partial(windows.depthwise, workload, choice, windows.rows_of(workload, choice, chooser.core))
        return builder.call_te(body, call.args[0], relax.const(packed), primfunc_name_hint=loops.DEPTHWISE)
    workload = Workload(loops.CONVOLUTION, weight=weight.shape, half=_is_half(weight, chooser), **shared)
    candidates = [*product_candidates(workload, chooser.core), *winograd_costs.candidates(workload, chooser.core)]
    if not candidates:
        return None
    choice = chooser.best(workload, candidates)
    if choice.method in winograd_costs.SIZES:
        plan = winograd_costs.best_plan(workload, choice, chooser.core)
        body = partial(winograd.convolution, workload, choice, plan.size, plan.band, in_groups(chooser.core, plan.depth))
        packed = winograd.pack(plan.size, weight, plan.depth, choice.tile.block)
        return builder.call_te(body, call.args[0], relax.const(packed), primfunc_name_hint=winograd.WINOGRAD)
    if run := run_length(workload, chooser.core):
        weight = _filled(weight.reshape(kernel_h, 1, -1, channels), run, axis=2)
    blocks = _blocks(weight, choice.tile.block)  # [KH, KW, CI, blocks, block]
    packed = np.ascontiguousarray(blocks.transpose(3, 0, 1, 2, 4))
    body = partial(loops.convolution, workload, choice, sums_by_groups(workload, chooser.core))
    return builder.call_te(body, call.args[0], relax.const(packed), primfunc_name_hint=loops.CONVOLUTION)


def _integer_convolution(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
    attributes, weight, data = call.attrs, constant(call.args[1]), shape_at_one(call.args[0], _IMAGE, str(call.args[0].ty.dtype))
    if weight is None or data is None or (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO"):
        return None
    workload = Workload(loops.CONVOLUTION, weight=weight.shape, **_geometry(attributes, data))
    return integer_kernels.convolution(builder, call, chooser, weight, workload)


def _max_pool(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
    workload = _pool(call, loops.POOL)
    if workload is None:
        return None
    body = partial(windows.max_pool, workload, chooser.best(workload, windows.window_candidates(workload, chooser.core)))
    return builder.call_te(body, call.args[0], primfunc_name_hint=loops.POOL)


def _average_pool(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
    workload = _pool(call, windows.AVERAGE)
    if workload is None:
        return None
    counted = _geometry(call.attrs, workload.data)["padding"] if call.attrs.count_include_pad else (0, 0, 0, 0)
    body = partial(windows.average_pool, workload, chooser.best(workload, windows.window_candidates(workload, chooser.core)))
    share = relax.const(windows.shares(workload, counted))
    return builder.call_te(body, call.args[0], share, primfunc_name_hint=windows.AVERAGE)


def _pool(call: relax.Call, operator: str) -> Workload | None:
    """A pool over NHWC of known shapes, with as much more padding at the end as its windows need where their number is rounded up."""
    dtype = str(call.ty.dtype)
    if dtype not in (("float32", *BYTES) if operator == loops.POOL else ("float32",)):
        return None
    attributes, data, shape = call.attrs, shape_at_one(call.args[0], _IMAGE, dtype), shape_at_one(call, _IMAGE, dtype)
    if data is None or shape is None or attributes.layout != "NHWC" or attributes.out_layout not in ("", "NHWC"):
        return None
    workload = Workload(operator, weight=tuple(int(extent) for extent in attributes.pool_size), **_geometry(attributes, data))
    (top, left, bottom, right), strides = workload.padding, workload.strides
    more = [max(0, shape[1 + axis] - workload.output(axis)) * strides[axis] for axis in (0, 1)]
    return replace(workload, padding=(top, left, bottom + more[0], right + more[1]))


def _geometry(attributes: Any, data: tuple[int, ...]) -> dict[str, Any]:
    """What the workload of a convolution or a pool has beside its operator and weight."""
    plain = {name: tuple(int(value) for value in getattr(attributes, name)) for name in ("strides", "padding", "dilation")}
    return {"data": data, "groups": int(getattr(attributes, "groups", 1)), **plain}


def _product(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
    if str(call.ty.dtype) == "int32":
        return _integer_dense(builder, call, chooser)
    weight = constant(call.args[1])
    dense = weight is not None and weight.ndim == 2
    left, right = shape_at_one(call.args[0], 1 if dense else 2), shape_at_one(call.args[1], 2)
    if left is None or right is None or min(len(left), len(right)) < 2 or 0 in (*left, *right):
        return None
    if not dense and not _broadcast(*(argument.ty.shape.values[:-2] for argument in call.args)):
        return None
    workload = Workload(loops.DENSE if dense else loops.PRODUCT, left, right, half=weight is not None and _is_half(weight, chooser))
    choice = chooser.best(workload, product_candidates(workload, chooser.core))
    if weight is None or not dense:
        return builder.call_te(partial(loops.product, workload, choice), call.args[0], call.args[1], primfunc_name_hint=loops.PRODUCT)
    packed = np.ascontiguousarray(_blocks(weight, choice.tile.block).transpose(1, 0, 2))
    body = partial(loops.dense, workload, choice, sums_by_groups(workload, chooser.core))
    return builder.call_te(body, call.args[0], relax.const(packed), primfunc_name_hint=loops.DENSE)


def _is_half(weight: Array, chooser: Chooser) -> bool:
    return chooser.halves and halves.may_be_read(weight, chooser.core)


def _broadcast(left: Sequence[Extent], right: Sequence[Extent]) -> bool:
    """Whether the outer extents of two factors are the same, or one where they are not."""
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(
        same([one], [other]) or any(not is_open(each) and each == 1 for each in (one, other)) for one, other in pairs
    )


def _integer_dense(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
    weight, data = constant(call.args[1]), shape_at_one(call.args[0], 1, str(call.args[0].ty.dtype))
    if weight is None or data is None or weight.ndim != 2 or len(data) < 2 or 0 in (*data, *weight.shape):
        return None
    return integer_kernels.dense(builder, call, chooser, weight, Workload(loops.DENSE, data, weight.shape))


def _softmax(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
    shape = shape_at_one(call, 1)
    if shape is None or len(shape) < 2 or int(call.attrs.axis) not in (-1, len(shape) - 1) or 0 in shape:
        return None
    lanes = chooser.core.lanes if shape[-1] >= chooser.core.lanes else divisor(shape[-1], chooser.core.lanes)
    return builder.call_te(partial(rows.softmax, lanes), call.args[0], primfunc_name_hint=rows.SOFTMAX)


def _layer_norm(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
    shape, attributes = shape_at_one(call, 1), call.attrs
    if shape is None or len(shape) < 2 or 0 in shape or [int(axis) % len(shape) for axis in attributes.axes] != [len(shape) - 1]:
        return None
    if not (attributes.center and attributes.scale) or any(shape_at_one(argument, 1) is None for argument in call.args):
        return None
    body = partial(rows.layer_norm, divisor(shape[-1], chooser.core.lanes), float(attributes.epsilon))
    return builder.call_te(body, *call.args, primfunc_name_hint=rows.LAYER_NORM)


def _elementwise(function: Callable[[Any], Any]) -> Own:
    def own(builder: relax.BlockBuilder, call: relax.Call, _: Chooser) -> relax.Expr | None:
        if str(call.ty.dtype) != "float32":
            return None
        return builder.call_te(functions.elementwise(function), call.args[0], primfunc_name_hint=f"farm_{function.__name__}")

    return own


def _bounded(intrinsic: str) -> Own:
    """relu, and the larger or smaller of a tensor and a number."""

    def own(builder: relax.BlockBuilder, call: relax.Call, chooser: Chooser) -> relax.Expr | None:
        if not chooser.core.has_extrema or str(call.ty.dtype) != "float32":
            return None
        values = [constant(argument) for argument in call.args]
        data = [argument for argument, value in zip(call.args, values, strict=True) if value is None]
        bounds = [value for value in values if value is not None] if len(values) > 1 else [np.zeros(1)]  # relu has no second
        if len(data) != 1 or len(bounds) != 1 or bounds[0].size != 1 or shape_at_one(data[0], 0) != shape_at_one(call, 0):
            return None
        return builder.call_te(functions.bounded(intrinsic, float(bounds[0].item())), data[0], primfunc_name_hint=intrinsic)

    return own


def _blocks(weight: Array, block: int) -> Array:
    """The last axis as blocks, the last of them filled up with zeros."""
    filled = _filled(weight, up_to_multiple(weight.shape[-1], block))
    return filled.reshape(*weight.shape[:-1], -1, block)


def _filled(weight: Array, extent: int, axis: int = -1) -> Array:
    more = [(0, 0)] * weight.ndim
    more[axis] = (0, extent - weight.shape[axis])
    return np.pad(weight, more)


_OWN: dict[str, Own] = {
    "relax.nn.conv2d": _convolution,
    "relax.nn.conv2d_transpose": lambda builder, call, _: phases.channels_first(builder, call),
    "relax.nn.max_pool2d": _max_pool,
    "relax.nn.avg_pool2d": _average_pool,
    "relax.matmul": _product,
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.relu": _bounded("maximum"),
    "relax.maximum": _bounded("maximum"),
    "relax.minimum": _bounded("minimum"),
    "relax.exp": _elementwise(functions.exp),
    "relax.sigmoid": _elementwise(functions.sigmoid),
    "relax.tanh": _elementwise(functions.tanh),
    "relax.erf": _elementwise(functions.erf),
    "relax.nn.silu": _elementwise(functions.silu),
    "relax.nn.gelu": _elementwise(functions.gelu),
}
