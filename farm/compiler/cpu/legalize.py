"""Choose the loops of each operator on a CPU.

Convolutions and products of float32 get farm's own loops, all other operators TVM's. Constant
weights are packed here, once. The batch may be open. Operators that do not fit (other open axes,
other types, groups that fill no vectors) are left to TVM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from farm.compiler.cpu import conv_dense_compute
from farm.compiler.cpu.cost_model import (
    gemm_candidates,
    is_faster_with_tiles_along_height,
    joined_rows_candidates,
    padded_kernel_row_length,
    uses_grouped_loads,
)
from farm.compiler.cpu.depth_first.followed_by_windows import ConvolutionShapes
from farm.compiler.cpu.general_schedule import SIDE_BY_SIDE
from farm.compiler.cpu.int8 import legalize as int8_legalize
from farm.compiler.cpu.kernel_config import (
    JOINED_ROWS,
    Candidates,
    ConfigSelector,
    PackedWeight,
    Workload,
)
from farm.compiler.cpu.register_tiles import (
    largest_divisor,
    should_group_reduction_step_loads,
)
from farm.compiler.cpu.rows import row_reductions, softmax_layer_norm
from farm.compiler.cpu.windows import depthwise_pool
from farm.compiler.cpu.winograd import compute, cost_model
from farm.compiler.graph.convolutions import transposed_conv
from farm.compiler.graph.precision import fp16_weights
from farm.compiler.graph.quantization.quantized_arithmetic import BYTES
from farm.compiler.ir.constants import constant_address, constant_value
from farm.compiler.ir.dynamic_extents import (
    Extent,
    is_dynamic,
    shapes_are_equal,
    static_extents_as_ints,
    value_at_batch_one,
)
from farm.compiler.ir.relax_rewriter import op_name
from farm.compiler.target.cpu_model import CpuModel
from farm.compiler.weight_transforms import BlockTransform
from farm.compiler.winograd_weights import WinogradTransform
from farm.kernels import grid_sample, reduce_max_min, roi_align, vector_math

Array = np.ndarray[Any, Any]
Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
Own = Callable[[relax.BlockBuilder, relax.Call, ConfigSelector], relax.Expr | None]
_IMAGE = 3  # axes after the batch: height, width, channels
_FEW_ROWS = 2  # of a product whose right operand would be put into blocks for them
_ENOUGH_IN_FLIGHT = 4  # vectors of sums, each of which waits for itself only
_WEIGHT = 4  # axes: height, width, input channels, output channels


def legalization_map(selector: ConfigSelector) -> dict[str, Legalizer]:
    """Return the map that `relax.transform.LegalizeOps` takes."""
    return {name: _legalizer(name, own, selector) for name, own in _OWN.items()}


def _legalizer(name: str, own: Own, selector: ConfigSelector) -> Legalizer:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        ours = own(builder, call, selector)
        return tvm.ir.Op.get(name).get_attr("FLegalize")(builder, call) if ours is None else ours

    return legalize


def shape_at_batch_one(
    expression: relax.Expr, known: int, dtype: str = "float32"
) -> tuple[int, ...] | None:
    """Return the extents of a tensor at a batch of one.

    Returns None if one of the last `known` axes is open or the type is not `dtype`.
    """
    shape = getattr(expression.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or str(expression.ty.dtype) != dtype:
        return None
    if known and any(map(is_dynamic, shape.values[-known:])):
        return None
    return tuple(map(value_at_batch_one, shape.values))


def _convolution(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    if str(call.ty.dtype) == "int32":
        return _integer_convolution(builder, call, selector)
    attributes, weight, data = (
        call.attrs,
        constant_value(call.args[1]),
        shape_at_batch_one(call.args[0], _IMAGE),
    )
    if data is not None and weight is None:
        return _convolution_by_computed_weight(builder, call, selector, data)
    if weight is None or data is None or attributes.out_layout not in ("", "NHWC"):
        return None
    planar = attributes.data_layout == "NCHW" and attributes.out_layout == "NHWC"
    if (attributes.data_layout, attributes.kernel_layout, weight.dtype) != (
        "NCHW" if planar else "NHWC",
        "HWIO",
        np.float32,
    ):
        return None
    if planar:
        data = (data[0], data[2], data[3], data[1])
    shared = _geometry(attributes, data)
    kernel_h, kernel_w, _, channels = weight.shape
    if attributes.groups == channels == data[3] > 1:
        workload = Workload(conv_dense_compute.DEPTHWISE, weight=weight.shape, **shared)
        config = selector.best(
            workload, depthwise_pool.sliding_window_candidates(workload, selector.cpu)
        )
        packed = weight.reshape(kernel_h, kernel_w, channels)[
            :, :, depthwise_pool.vector_channel_order(channels, config.tile.lanes)
        ]
        body = partial(
            depthwise_pool.depthwise_conv2d_compute,
            workload,
            config,
            depthwise_pool.rows_per_tile(workload, config, selector.cpu),
        )
        return builder.call_te(
            body, call.args[0], relax.const(packed), primfunc_name_hint=conv_dense_compute.DEPTHWISE
        )
    workload = Workload(
        conv_dense_compute.CONVOLUTION,
        weight=weight.shape,
        half=_is_half(weight, selector),
        **shared,
    )
    keeps_rows = planar or ConvolutionShapes.of(call) in selector.before_windows
    candidates = [
        *gemm_candidates(workload, selector.cpu),
        *([] if keeps_rows else joined_rows_candidates(workload, selector.cpu)),
        *(
            candidate
            for candidate in cost_model.winograd_candidates(workload, selector.cpu)
            if selector.has_room(
                cost_model.weight_transform_for(workload, candidate[0], selector.cpu).growth(
                    weight.shape
                )
            )
        ),
    ]
    if not candidates:
        return None
    if turn := is_faster_with_tiles_along_height(workload, candidates, selector.cpu):
        workload, weight = workload.turned, weight.transpose(1, 0, 2, 3)
        candidates = gemm_candidates(workload, selector.cpu)
        kernel_h = weight.shape[0]
    config = selector.best(workload, candidates, reluctantly=(*cost_model.SIZES, JOINED_ROWS))
    image, grouped_loads = call.args[0], uses_grouped_loads(workload, selector.cpu)
    if planar and (turn or grouped_loads or config.method in cost_model.SIZES):
        image, planar = _channels_last(builder, image), False  # they read vectors of channels
    if config.method in cost_model.SIZES:
        plan = cost_model.plan_with_fastest_row_count(workload, config, selector.cpu)
        body = partial(
            compute.winograd_conv2d_compute,
            workload,
            config,
            plan.size,
            plan.band,
            should_group_reduction_step_loads(selector.cpu, plan.depth),
        )
        transform = cost_model.weight_transform_for(workload, config, selector.cpu)
        transformed = _transformed(weight, transform, selector)
        return builder.call_te(body, image, transformed, primfunc_name_hint=compute.WINOGRAD)
    if run := padded_kernel_row_length(workload, selector.cpu):
        weight = _filled(weight.reshape(kernel_h, 1, -1, channels), run, axis=2)
    if config.method == JOINED_ROWS:
        body = partial(conv_dense_compute.joined_rows_compute, workload, config)
    else:
        body = partial(
            conv_dense_compute.conv2d_compute,
            workload,
            config,
            grouped_loads=grouped_loads,
            turned=turn,
            planar=planar,
        )
    groups = workload.groups if workload.pads_groups(config.tile.block) else 1
    packed = _in_blocks(weight, config.tile.block, selector, groups)
    return builder.call_te(body, image, packed, primfunc_name_hint=conv_dense_compute.CONVOLUTION)


def _convolution_by_computed_weight(
    builder: relax.BlockBuilder,
    call: relax.Call,
    selector: ConfigSelector,
    data: tuple[int, ...],
) -> relax.Expr | None:
    """Legalize a convolution whose weight is computed, and put in blocks each time."""
    attributes, weight = call.attrs, shape_at_batch_one(call.args[1], _WEIGHT)
    if (
        weight is None
        or (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO")
        or attributes.out_layout not in ("", "NHWC")
        or attributes.groups != 1
    ):
        return None
    workload = Workload(
        conv_dense_compute.CONVOLUTION, weight=weight, **_geometry(attributes, data)
    )
    candidates = gemm_candidates(workload, selector.cpu)
    if not candidates or padded_kernel_row_length(workload, selector.cpu):
        return None
    config = selector.best(workload, candidates)
    body = partial(
        conv_dense_compute.conv2d_compute,
        workload,
        config,
        grouped_loads=uses_grouped_loads(workload, selector.cpu),
        turned=False,
        planar=False,
    )
    packed = builder.emit(
        builder.call_te(
            partial(_blocks_compute, config.tile.block),
            call.args[1],
            primfunc_name_hint="weight_in_blocks",
        )
    )
    return builder.call_te(
        body, call.args[0], packed, primfunc_name_hint=conv_dense_compute.CONVOLUTION
    )


def _blocks_compute(block: int, weight: te.Tensor) -> te.Tensor:
    """Define the blocks [CO / block, ..., block] of a weight [..., CO], filled with zeros."""
    *others, columns = weight.shape
    blocks = -(-int(columns) // block)

    def value(*at: te.Var) -> Any:
        which, *place, lane = at
        column = which * block + lane
        here = weight(*place, column)
        if int(columns) % block == 0:
            return here
        return tirx.if_then_else(column < columns, here, tirx.const(0, str(weight.dtype)))

    return te.compute((blocks, *others, block), value, name="weight_in_blocks")


def _channels_last(builder: relax.BlockBuilder, planes: relax.Expr) -> relax.Var:
    """Emit a transpose from NCHW to NHWC."""
    return builder.emit(
        builder.call_te(topi.transpose, planes, [0, 2, 3, 1], primfunc_name_hint="transpose")
    )


def _transformed(
    weight: Array, transform: WinogradTransform, selector: ConfigSelector
) -> relax.Constant:
    """Return a transformed weight, and log of what it is made when a build is loaded."""
    shape = transform.shape(weight.shape)
    made = relax.const(
        tvm.runtime.empty(shape, "float32")
        if selector.without_large_values
        else transform.apply(weight)
    )
    source = PackedWeight(made, shape, np.ascontiguousarray(weight), transform)
    selector.large_weights[constant_address(made)] = source
    return made


def _in_blocks(
    weight: Array, block: int, selector: ConfigSelector, groups: int = 1
) -> relax.Constant:
    """Return a weight in blocks of output channels, and log of what it is made.

    The channels of each of `groups` are padded to whole blocks.
    """
    transform = BlockTransform(block, groups=groups)
    made = relax.const(transform.apply(weight))
    source = PackedWeight(made, transform.shape(weight.shape), weight, transform)
    selector.weights_in_blocks[constant_address(made)] = source
    return made


def _integer_convolution(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    attributes, weight, data = (
        call.attrs,
        constant_value(call.args[1]),
        shape_at_batch_one(call.args[0], _IMAGE, str(call.args[0].ty.dtype)),
    )
    if (
        weight is None
        or data is None
        or (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO")
    ):
        return None
    workload = Workload(
        conv_dense_compute.CONVOLUTION, weight=weight.shape, **_geometry(attributes, data)
    )
    return int8_legalize.legalize_convolution(builder, call, selector, weight, workload)


def _max_pool(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    workload = _pool(call, conv_dense_compute.POOL)
    if workload is None:
        return None
    body = partial(
        depthwise_pool.max_pool2d_compute,
        workload,
        selector.best(workload, depthwise_pool.sliding_window_candidates(workload, selector.cpu)),
    )
    return builder.call_te(body, call.args[0], primfunc_name_hint=conv_dense_compute.POOL)


def _average_pool(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    workload = _pool(call, depthwise_pool.AVERAGE)
    if workload is None:
        return None
    counted = (
        _geometry(call.attrs, workload.data)["padding"]
        if call.attrs.count_include_pad
        else (0, 0, 0, 0)
    )
    body = partial(
        depthwise_pool.avg_pool2d_compute,
        workload,
        selector.best(workload, depthwise_pool.sliding_window_candidates(workload, selector.cpu)),
    )
    share = relax.const(depthwise_pool.avg_pool2d_inverse_counts(workload, counted))
    return builder.call_te(body, call.args[0], share, primfunc_name_hint=depthwise_pool.AVERAGE)


def _pool(call: relax.Call, operator: str) -> Workload | None:
    """Return the workload of a pool over NHWC of known shapes; None for other pools.

    If the number of windows is rounded up, the padding at the end grows by what the last ones need.
    """
    dtype = str(call.ty.dtype)
    if dtype not in (("float32", *BYTES) if operator == conv_dense_compute.POOL else ("float32",)):
        return None
    attributes, data, shape = (
        call.attrs,
        shape_at_batch_one(call.args[0], _IMAGE, dtype),
        shape_at_batch_one(call, _IMAGE, dtype),
    )
    if (
        data is None
        or shape is None
        or attributes.layout != "NHWC"
        or attributes.out_layout not in ("", "NHWC")
    ):
        return None
    workload = Workload(
        operator,
        weight=tuple(int(extent) for extent in attributes.pool_size),
        **_geometry(attributes, data),
    )
    (top, left, bottom, right), strides = workload.padding, workload.strides
    more = [max(0, shape[1 + axis] - workload.output(axis)) * strides[axis] for axis in (0, 1)]
    return replace(workload, padding=(top, left, bottom + more[0], right + more[1]))


def _geometry(attributes: Any, data: tuple[int, ...]) -> dict[str, Any]:
    """Return the workload's fields for a convolution or pool, except operator and weight."""
    plain = {
        name: tuple(int(value) for value in getattr(attributes, name))
        for name in ("strides", "padding", "dilation")
    }
    return {"data": data, "groups": int(getattr(attributes, "groups", 1)), **plain}


def _product(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    if str(call.ty.dtype) == "int32":
        return _integer_dense(builder, call, selector)
    weight = constant_value(call.args[1])
    dense = weight is not None and weight.ndim == 2
    left, right = (
        shape_at_batch_one(call.args[0], 1 if dense else 2),
        shape_at_batch_one(call.args[1], 2),
    )
    if left is None or right is None or min(len(left), len(right)) < 2 or 0 in (*left, *right):
        return None
    if not dense and not _broadcast(*(argument.ty.shape.values[:-2] for argument in call.args)):
        return None
    row_axis = _row_axis(call.args[0], left) if dense else len(left) - 2
    left = _with_rows_last(left, row_axis)
    workload = Workload(
        conv_dense_compute.DENSE if dense else conv_dense_compute.PRODUCT,
        left,
        right,
        half=weight is not None and _is_half(weight, selector),
    )
    candidates = gemm_candidates(workload, selector.cpu)
    if not dense and _is_faster_without_blocks(left, right, candidates, selector.cpu):
        return None
    config = selector.best(workload, candidates)
    if weight is None or not dense:
        return builder.call_te(
            partial(conv_dense_compute.matmul_compute, workload, config),
            call.args[0],
            call.args[1],
            primfunc_name_hint=conv_dense_compute.PRODUCT,
        )
    body = partial(
        conv_dense_compute.dense_compute,
        workload,
        config,
        uses_grouped_loads(workload, selector.cpu),
        row_axis,
    )
    packed = _in_blocks(weight, config.tile.block, selector)
    return builder.call_te(body, call.args[0], packed, primfunc_name_hint=conv_dense_compute.DENSE)


def _is_faster_without_blocks(
    left: Sequence[int], right: Sequence[int], candidates: Candidates, cpu: CpuModel
) -> bool:
    """Return whether TVM's loops over a product are faster than putting its operand into blocks.

    That is so if few rows share the right operand, no block divides its width, and enough vectors
    of sums are in flight.
    """
    width = right[-1]
    rows = max(left[-2], math.prod(left[:-1]) // math.prod(right[:-2]))  # with one right operand
    vectors_in_flight = largest_divisor(-(-width // cpu.lanes), SIDE_BY_SIDE)
    return (
        rows <= _FEW_ROWS
        and vectors_in_flight >= _ENOUGH_IN_FLIGHT
        and all(width % config.tile.block for config, _ in candidates)
    )


def _row_axis(data: relax.Expr, shape: Sequence[int]) -> int:
    """Return the axis of the rows of a product [..., M, K].

    It is that of M, or the one axis before it that has more than one element, if M is one.
    """
    last = len(shape) - 2
    longer = [axis for axis, extent in enumerate(shape[:-1]) if extent > 1]
    open_axes = any(is_dynamic(extent) for extent in data.ty.shape.values)
    return longer[0] if shape[last] == 1 and len(longer) == 1 and not open_axes else last


def _with_rows_last(shape: tuple[int, ...], row_axis: int) -> tuple[int, ...]:
    """Return the shape with an axis moved before the last."""
    *leading, depth = shape
    rows = leading.pop(row_axis)
    return (*leading, rows, depth)


def _is_half(weight: Array, selector: ConfigSelector) -> bool:
    return selector.fp16_weights and fp16_weights.may_read_as_fp16(weight, selector.cpu)


def _broadcast(left: Sequence[Extent], right: Sequence[Extent]) -> bool:
    """Return whether the outer extents of two factors are equal, or one if they are not."""
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(
        shapes_are_equal([one], [other])
        or any(not is_dynamic(each) and each == 1 for each in (one, other))
        for one, other in pairs
    )


def _integer_dense(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    weight, data = (
        constant_value(call.args[1]),
        shape_at_batch_one(call.args[0], 1, str(call.args[0].ty.dtype)),
    )
    if (
        weight is None
        or data is None
        or weight.ndim != 2
        or len(data) < 2
        or 0 in (*data, *weight.shape)
    ):
        return None
    return int8_legalize.legalize_dense(
        builder, call, selector, weight, Workload(conv_dense_compute.DENSE, data, weight.shape)
    )


def _softmax_by(compute: Callable[[int, te.Tensor], te.Tensor], name: str) -> Own:
    """Legalize softmax, or its logarithm, over the last axis."""

    def own(
        builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
    ) -> relax.Expr | None:
        shape = shape_at_batch_one(call, 1)
        if (
            shape is None
            or len(shape) < 2
            or int(call.attrs.axis) not in (-1, len(shape) - 1)
            or 0 in shape
        ):
            return None
        lanes = (
            selector.cpu.lanes
            if shape[-1] >= selector.cpu.lanes
            else largest_divisor(shape[-1], selector.cpu.lanes)
        )
        return builder.call_te(partial(compute, lanes), call.args[0], primfunc_name_hint=name)

    return own


def _layer_norm(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    shape, attributes = shape_at_batch_one(call, 1), call.attrs
    if (
        shape is None
        or len(shape) < 2
        or 0 in shape
        or [int(axis) % len(shape) for axis in attributes.axes] != [len(shape) - 1]
    ):
        return None
    if not (attributes.center and attributes.scale) or any(
        shape_at_batch_one(argument, 1) is None for argument in call.args
    ):
        return None
    body = partial(
        softmax_layer_norm.layer_norm_compute,
        largest_divisor(shape[-1], selector.cpu.lanes),
        float(attributes.epsilon),
    )
    return builder.call_te(body, *call.args, primfunc_name_hint=softmax_layer_norm.LAYER_NORM)


def _row_reduction(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    """Legalize a reduction of the last axes; of other axes, TVM's loops go along the last one."""
    data, shape, given = call.args[0], getattr(call.args[0].ty, "shape", None), call.attrs.axis
    if not isinstance(shape, relax.ShapeExpr) or str(call.ty.dtype) != "float32":
        return None
    extents = static_extents_as_ints(shape.values)
    axes = {int(axis) % len(extents) for axis in (range(len(extents)) if given is None else given)}
    outer, row = extents[: -len(axes)], extents[-len(axes) :]
    if not row or axes != {*range(len(outer), len(extents))} or any(map(is_dynamic, row)):
        return None
    width, lanes = math.prod(row), selector.cpu.lanes
    vectors = row_reductions.vectors_side_by_side(width, lanes)
    if vectors is None or 0 in extents:
        return None
    rows = data if outer and len(row) == 1 else relax.op.reshape(data, [*(outer or [1]), width])
    body = partial(
        row_reductions.row_reduction_compute,
        row_reductions.REDUCTIONS[op_name(call)],
        lanes,
        vectors,
        len(row) if outer and call.attrs.keepdims else 0,
    )
    made = builder.call_te(
        body, builder.emit(rows), primfunc_name_hint=row_reductions.ROW_REDUCTION
    )
    return made if outer else relax.op.reshape(builder.emit(made), call.ty.shape)


def _maximum_or_minimum(
    builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
) -> relax.Expr | None:
    of_rows = _row_reduction(builder, call, selector)
    return reduce_max_min.emit_float_minmax_reduction(builder, call) if of_rows is None else of_rows


def _vectorized(function: Callable[[Any], Any]) -> Own:
    """Legalize a function of one element by arithmetic that LLVM vectorizes."""

    def own(
        builder: relax.BlockBuilder, call: relax.Call, _selector: ConfigSelector
    ) -> relax.Expr | None:
        return _elementwise(builder, call, function, function.__name__)

    return own


def _with_quotient(function: Callable[[Any, vector_math.Quotient], Any]) -> Own:
    """Legalize a function that divides, in the way that is faster on the CPU."""

    def own(
        builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
    ) -> relax.Expr | None:
        quotient = (
            vector_math.divide
            if selector.cpu.has_fast_division
            else vector_math.multiply_by_reciprocal
        )
        return _elementwise(builder, call, lambda x: function(x, quotient), function.__name__)

    return own


def _softplus(
    builder: relax.BlockBuilder, call: relax.Call, _selector: ConfigSelector
) -> relax.Expr | None:
    beta, threshold = (float(call.attrs[name]) for name in ("beta", "threshold"))
    return _elementwise(
        builder, call, lambda x: vector_math.softplus(x, beta, threshold), "softplus"
    )


def _elementwise(
    builder: relax.BlockBuilder, call: relax.Call, function: Callable[[Any], Any], name: str
) -> relax.Expr | None:
    if str(call.ty.dtype) != "float32":
        return None
    return builder.call_te(
        vector_math.elementwise_tensor_function(function, name),
        call.args[0],
        primfunc_name_hint=f"farm_{name}",
    )


def _bounded(intrinsic: str) -> Own:
    """Legalize relu, and the maximum or minimum of a tensor and a number."""

    def own(
        builder: relax.BlockBuilder, call: relax.Call, selector: ConfigSelector
    ) -> relax.Expr | None:
        if not selector.cpu.has_nan_propagating_minmax or str(call.ty.dtype) != "float32":
            return None
        values = [constant_value(argument) for argument in call.args]
        data = [
            argument for argument, value in zip(call.args, values, strict=True) if value is None
        ]
        bounds = (
            [value for value in values if value is not None] if len(values) > 1 else [np.zeros(1)]
        )  # relu has no second
        if (
            len(data) != 1
            or len(bounds) != 1
            or bounds[0].size != 1
            or shape_at_batch_one(data[0], 0) != shape_at_batch_one(call, 0)
        ):
            return None
        return builder.call_te(
            vector_math.one_sided_clamp_compute(intrinsic, float(bounds[0].item())),
            data[0],
            primfunc_name_hint=intrinsic,
        )

    return own


def _filled(weight: Array, extent: int, axis: int = -1) -> Array:
    more = [(0, 0)] * weight.ndim
    more[axis] = (0, extent - weight.shape[axis])
    return np.pad(weight, more)


_OWN: dict[str, Own] = {
    "relax.nn.conv2d": _convolution,
    "relax.nn.conv2d_transpose": lambda builder, call, _: (
        transposed_conv.legalize_conv2d_transpose_with_topi(builder, call)
    ),
    "relax.nn.max_pool2d": _max_pool,
    "relax.nn.avg_pool2d": _average_pool,
    "relax.matmul": _product,
    "relax.nn.softmax": _softmax_by(softmax_layer_norm.softmax_compute, softmax_layer_norm.SOFTMAX),
    "relax.nn.log_softmax": _softmax_by(
        softmax_layer_norm.log_softmax_compute, softmax_layer_norm.LOG_SOFTMAX
    ),
    "relax.nn.layer_norm": _layer_norm,
    "relax.sum": _row_reduction,
    "relax.mean": _row_reduction,
    "relax.prod": _row_reduction,
    "relax.max": _maximum_or_minimum,
    "relax.min": _maximum_or_minimum,
    "relax.nn.relu": _bounded("maximum"),
    "relax.maximum": _bounded("maximum"),
    "relax.minimum": _bounded("minimum"),
    "relax.exp": _vectorized(vector_math.exp),
    "relax.sin": _vectorized(vector_math.sin),
    "relax.cos": _vectorized(vector_math.cos),
    "relax.log": _vectorized(vector_math.log),
    "relax.round": _vectorized(vector_math.round_to_even),
    "relax.atan": _vectorized(vector_math.atan),
    "relax.asin": _vectorized(vector_math.asin),
    "relax.acos": _vectorized(vector_math.acos),
    "relax.sigmoid": _with_quotient(vector_math.sigmoid),
    "relax.tanh": _with_quotient(vector_math.tanh),
    "relax.erf": _with_quotient(vector_math.erf),
    "relax.nn.silu": _with_quotient(vector_math.silu),
    "relax.nn.gelu": _with_quotient(vector_math.gelu),
    "relax.nn.softplus": _softplus,
    "relax.nn.gelu_tanh": _with_quotient(vector_math.gelu_tanh),
    "relax.image.grid_sample": lambda builder, call, selector: grid_sample.emit_grid_sample(
        builder, call, selector.cpu.lanes
    ),
    "relax.vision.roi_align": lambda builder, call, selector: roi_align.emit_roi_align(
        builder, call, selector.cpu.lanes
    ),
}
