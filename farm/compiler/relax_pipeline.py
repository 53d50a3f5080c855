"""Run the graph passes between import and schedules, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler.cpu.attention.compute import attention_kernel
from farm.compiler.cpu.block_quantized.rewrite import BlockQuantizedProductRewriter
from farm.compiler.cpu.depth_first.followed_by_windows import shapes_followed_by_windows
from farm.compiler.cpu.depth_first.merge import merge_convolutions_with_windows
from farm.compiler.cpu.dot_products import DotProductRewriter
from farm.compiler.cpu.kernel_config import ConfigSelector, PackedWeight
from farm.compiler.cpu.legalize import legalization_map
from farm.compiler.cpu.rows.recurrent_rows import RecurrentRowsRewriter
from farm.compiler.gpu import schedule
from farm.compiler.graph import layer_names
from farm.compiler.graph.attention import attention_pass
from farm.compiler.graph.boolean_logic import BooleanLogicRewriter
from farm.compiler.graph.broadcast_matrices import BroadcastMatrixRewriter
from farm.compiler.graph.clamp_indices import IndexClamper
from farm.compiler.graph.concats.nested_concats import NestedConcatRewriter
from farm.compiler.graph.concats.wide_concats import WideConcatRewriter
from farm.compiler.graph.constant_divisors import ConstantDivisorRewriter
from farm.compiler.graph.constant_evaluation import ConstantEvaluator
from farm.compiler.graph.constant_folding import ConstantFolder
from farm.compiler.graph.convolutions.conv1d_conv3d_to_conv2d import Conv1dConv3dRewriter
from farm.compiler.graph.convolutions.conv_of_concat import ConvOfConcatRewriter
from farm.compiler.graph.convolutions.fold_padding import PaddingFolder
from farm.compiler.graph.convolutions.planar_images import PlanarImageRewriter
from farm.compiler.graph.convolutions.transposed_conv import transposed_conv_pass
from farm.compiler.graph.convolutions.trim_padding_taps import PaddingTapTrimmer
from farm.compiler.graph.cumulative_kernels import CumulativeKernelRewriter
from farm.compiler.graph.decomposed_activations import DecomposedActivationRewriter
from farm.compiler.graph.empty_tensors import EmptyTensorRewriter
from farm.compiler.graph.fusion_barriers import FusionBarrierMarker
from farm.compiler.graph.group_norm import GroupNormRewriter
from farm.compiler.graph.loop_input_products import LoopInputProductRewriter
from farm.compiler.graph.operator_fusion import fuse_operators
from farm.compiler.graph.precision import fp16_arithmetic, fp16_weights
from farm.compiler.graph.precision.fp32_arithmetic import narrow_floats_as_float32
from farm.compiler.graph.quantization.qdq_to_int8 import Int8Rewriter
from farm.compiler.graph.quantization.round_clamp import round_clamp_pass
from farm.compiler.graph.scattered_rows import ScatteredRowRewriter, ScatterKernelRewriter
from farm.compiler.graph.sink_transposes import NCHW, NHWC, TransposeSinker
from farm.compiler.graph.slice_scatters import SliceScatterRewriter
from farm.compiler.ir.blocks import block_names
from farm.compiler.ir.constants import array_address, constant_value, tensor_as_array
from farm.compiler.ir.relax_rewriter import (
    main_weight_parameters,
    op_name,
    rewrite_module,
    rewriter_pass,
)
from farm.compiler.parameter_files import array_bytes

Array = np.ndarray[Any, Any]
_INLINE_BYTES = 64  # a constant this small stays in the code
NO_WEIGHTS: Mapping[int, PackedWeight] = MappingProxyType({})
_HWIO = [2, 3, 1, 0]  # of OIHW
_POWERS = (2, 3, 4)  # by products
_COMPARED_WITH_INFINITY = {"relax.isfinite": relax.op.less, "relax.isinf": relax.op.equal}
_KERNEL_LAYOUTS = {"relax.nn.conv2d": "OIHW", "relax.nn.conv2d_transpose": "IOHW"}  # of NCHW
# named for all convolutions: of those that are not, TVM's pass takes what the one before left,
# which is wrong or has no code
_LAYOUTS = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv1d": ["NCW", "OIW"],
    "relax.nn.conv3d": ["NCDHW", "OIDHW"],
    "relax.nn.conv2d_transpose": ["NHWC", "IOHW"],
    "relax.nn.conv1d_transpose": ["NCW", "IOW"],
    "relax.nn.conv3d_transpose": ["NCDHW", "IODHW"],
}


class LargeWeightRead(Exception):
    """A constant whose values were not computed is gone: a pass may have read it."""


def bind_weights(module: tvm.IRModule, weights: Sequence[Array]) -> tvm.IRModule:
    """Bind the weights to the parameters of `main` after its inputs, as constants."""
    main = module["main"]
    parameters = main_weight_parameters(
        main
    )  # bound as variables: an input may have the name of a weight
    tensors = {
        parameter: tvm.runtime.tensor(value)
        for parameter, value in zip(parameters, weights, strict=True)
    }
    return relax.transform.BindParams("main", tensors)(module)


def bind_weights_for_cpu(module: tvm.IRModule, weights: Sequence[Array]) -> tvm.IRModule:
    """Bind the weights, and compute in float32 what is computed in float16 or bfloat16."""
    return narrow_floats_as_float32(bind_weights(module, weights))


def bind_batch_to_one(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with an open batch bound to one."""
    batch = relax.analysis.defined_symbolic_vars(module["main"])
    return (
        relax.transform.BindSymbolicVars(
            {one: tvm.tirx.const(1, "int64") for one in batch}, "main"
        )(module)
        if batch
        else module
    )


def simplify_legalize_and_fuse(
    module: tvm.IRModule, selector: ConfigSelector | None
) -> tvm.IRModule:
    """Return the imported operators as fused loop nests, see `legalize_and_fuse`.

    The target must be the current one.
    """
    halved = fp16_weights.has_fp16_weights(module)
    module = run_passes_before_legalization(module)
    if selector is None and halved and tvm.target.Target.current().kind.name == schedule.CUDA:
        module = fp16_arithmetic.to_mixed_precision(module)
    return legalize_and_fuse(module, selector)


def run_passes_before_legalization(module: tvm.IRModule) -> tvm.IRModule:
    """Return the operators that become loop nests.

    Constants are folded, layouts chosen, and common subexpressions eliminated.
    """
    transform = relax.transform
    passes = [
        Int8Rewriter(),
        _ChannelsLast(),
        transform.Normalize(),
        rewriter_pass("farm.SinkTransposes", TransposeSinker),
        ConstantFolder(),
        transform.CanonicalizeBindings(),
        rewriter_pass("farm.LoopInputProducts", LoopInputProductRewriter),
        transform.EliminateCommonSubexpr(),
        transform.DeadCodeElimination(),
        rewriter_pass("farm.EvaluateConstants", ConstantEvaluator),  # sums before they are kernels
        rewriter_pass("farm.CumulativeKernels", CumulativeKernelRewriter),
        relax.backend.DispatchSortScan(),
    ]
    return tvm.transform.Sequential(passes)(fold_norms_and_constants(module))


def fold_norms_and_constants(module: tvm.IRModule) -> tvm.IRModule:
    """Fold batch norms and constants, in the layout of the import."""
    transform = relax.transform
    passes = [
        rewriter_pass("farm.EmptyTensors", EmptyTensorRewriter),
        # Before folding, which would copy the matrices
        rewriter_pass("farm.BroadcastMatrices", BroadcastMatrixRewriter),
        # Before folding, which would evaluate TVM's operators; after it, shapes are known
        rewriter_pass("farm.GroupNorms", GroupNormRewriter),
        ConstantFolder(),
        rewriter_pass("farm.DecomposedGroupNorms", GroupNormRewriter),
        rewriter_pass("farm.Paddings", PaddingFolder),
        rewriter_pass("farm.Planes", Conv1dConv3dRewriter),
        transform.DeadCodeElimination(),
        transform.FoldBatchnormToConv2D(),
        rewriter_pass("farm.ScaleAndShift", _Normalizer),
        transform.DecomposeOpsForInference(),
        rewriter_pass("farm.Simplify", _Simplifier),
        rewriter_pass("farm.DecomposedActivations", DecomposedActivationRewriter),
        rewriter_pass("farm.ConstantDivisors", ConstantDivisorRewriter),
        rewriter_pass("farm.LogicOfBooleans", BooleanLogicRewriter),
        rewriter_pass("farm.EvaluateIntegers", partial(ConstantEvaluator, only_integers=True)),
        transform.CanonicalizeBindings(),
        rewriter_pass("farm.ScatteredRows", ScatteredRowRewriter),
        rewriter_pass("farm.BoundedIndices", IndexClamper),
        ConstantFolder(),
        rewriter_pass("farm.UsedTaps", PaddingTapTrimmer),
        rewriter_pass("farm.SumsOfParts", ConvOfConcatRewriter),
        rewriter_pass("farm.NestedConcats", NestedConcatRewriter),
        rewriter_pass("farm.WideConcats", WideConcatRewriter),
        transform.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(module)


def legalize_and_fuse(module: tvm.IRModule, selector: ConfigSelector | None) -> tvm.IRModule:
    """Return operators as fused loop nests: farm's CPU kernels, or GPU kernels without a selector.

    If the model has float16 weights (`selector.fp16_weights`), kernels that gain by it read them as
    float16.
    """
    transform = relax.transform
    legalize = [
        *([round_clamp_pass(selector.cpu), transform.DeadCodeElimination()] if selector else []),
        transposed_conv_pass(selector.cpu.lanes if selector else schedule.LANES),
        rewriter_pass("farm.SliceScatters", SliceScatterRewriter),
        *(
            [
                rewriter_pass("farm.PlanarImages", PlanarImageRewriter),
                transform.DeadCodeElimination(),
                attention_pass(partial(attention_kernel, selector.cpu)),
                rewriter_pass("farm.BlockQuantizedProducts", BlockQuantizedProductRewriter),
                rewriter_pass("farm.ScatterKernels", ScatterKernelRewriter),
                rewriter_pass(
                    "farm.RecurrentRows", partial(RecurrentRowsRewriter, cpu=selector.cpu)
                ),
                rewriter_pass("farm.DotProducts", partial(DotProductRewriter, cpu=selector.cpu)),
                transform.DeadCodeElimination(),
                _windows_pass(selector),
            ]
            if selector
            else []
        ),
        rewriter_pass("farm.EvaluateConstants", ConstantEvaluator),
        transform.LegalizeOps(
            legalization_map(selector) if selector else schedule.legalization_map()
        ),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        *([FusionBarrierMarker()] if selector else []),
    ]
    module = tvm.transform.Sequential(legalize)(module)
    module = layer_names.attach_layer_names(module, fuse_operators(module))
    module = tvm.transform.Sequential([transform.FuseTIR(), transform.DeadCodeElimination()])(
        module
    )
    if selector is None:
        return module
    module = merge_convolutions_with_windows(module, selector)
    if selector.fp16_weights:
        return fp16_weights.make_kernels_read_fp16_constants(
            module, selector.cpu, selector.log_narrowed
        )
    return module


def _windows_pass(selector: ConfigSelector) -> tvm.transform.Pass:
    """Return a pass that tells the selector which convolutions windows follow."""

    def transform(module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        selector.before_windows.update(shapes_followed_by_windows(module))
        return module

    return tvm.transform.module_pass(transform, opt_level=0, name="farm.Windows")


def lift_constants_into_tuple(
    module: tvm.IRModule, large_weights: Mapping[int, PackedWeight] = NO_WEIGHTS
) -> tuple[tvm.IRModule, list[Array]]:
    """Move the constants of `main` into one tuple that is its last parameter.

    Code and parameters then have separate digests, and a device caches and loads them separately.
    """
    module, values = lift_constants_into_parameters(module, large_weights)
    return (relax.transform.BundleModelParams("parameters")(module) if values else module), values


def lift_constants_into_parameters(
    module: tvm.IRModule, large_weights: Mapping[int, PackedWeight] = NO_WEIGHTS
) -> tuple[tvm.IRModule, list[Array]]:
    """Move each distinct constant of `main` to a parameter after the inputs.

    Of `large_weights`, by the address of their numbers, the values are not read. Raises
    LargeWeightRead if another pass may have read them.
    """
    lifter = _Lifter(module, large_weights)
    main = lifter.visit_expr(module["main"])
    if lifter.large.keys() != large_weights.keys():
        raise LargeWeightRead
    inputs = len(main.params)
    variables = list(lifter.variables.values())
    if variables:
        main = relax.Function(
            [*main.params, *variables], main.body, main.ret_ty, main.is_pure, main.attrs
        )
    module.update_func(module.get_global_var("main"), main.with_attr("num_input", inputs))
    return module, list(lifter.values.values())


@mutator
class _Lifter(PyExprMutator):  # type: ignore[misc]
    """Replaces each distinct constant tensor by a variable.

    `large` are the large weights that it found, by the address of their numbers.
    """

    def __init__(self, module: tvm.IRModule, large_weights: Mapping[int, PackedWeight]) -> None:
        super().__init__(module)
        self._large_weights = large_weights
        self.large: dict[int, PackedWeight] = {}
        self.variables: dict[object, relax.Var] = {}
        self.values: dict[object, Array] = {}

    def visit_generic_const_(self, expression: GenericConst) -> relax.Expr:
        if not isinstance(expression.value, tvm.runtime.Tensor):  # an element type
            return expression
        value = tensor_as_array(expression.value)
        if not value.nbytes:  # TVM writes a constant without elements, and cannot read it
            shape = relax.ShapeExpr(list(value.shape))
            return self.builder_.emit(relax.op.builtin.alloc_tensor(shape, str(value.dtype), 0))
        if value.nbytes <= _INLINE_BYTES:
            return expression
        key: object
        if source := self._large_weights.get(address := array_address(value)):
            self.large[address] = source
            key = (source.transform, _digest(source.weight))
        else:
            key = _digest(value)
        if key not in self.variables:
            self.variables[key] = relax.Var(f"parameter_{len(self.variables)}", expression.ty)
            self.values[key] = value
        return self.variables[key]


def _digest(value: Array) -> tuple[object, ...]:
    return str(value.dtype), value.shape, hashlib.sha256(array_bytes(value)).digest()


@mutator
class _Normalizer(PyExprMutator):  # type: ignore[misc]
    """Rewrites a batch norm that follows no convolution as a multiply and an add per channel.

    TVM would divide every element.
    """

    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if op_name(call) != "relax.nn.batch_norm":
            return call
        data, *given = call.args
        gamma, beta, mean, variance = (constant_value(argument) for argument in given)
        if (
            gamma is None
            or beta is None
            or mean is None
            or variance is None
            or gamma.dtype != np.float32
        ):
            return call
        factor = (gamma if call.attrs.scale else 1) / np.sqrt(
            variance.astype(np.float64) + call.attrs.epsilon
        )
        summand = (beta if call.attrs.center else 0) - mean * factor
        shape = [
            -1 if axis == int(call.attrs.axis) % int(data.ty.ndim) else 1
            for axis in range(int(data.ty.ndim))
        ]
        factor, summand = (
            relax.const(value.astype(np.float32).reshape(shape)) for value in (factor, summand)
        )
        scaled = self.builder_.emit(relax.op.multiply(data, factor))
        return relax.Tuple([self.builder_.emit(relax.op.add(scaled, summand)), *given[2:]])


@mutator
class _Simplifier(PyExprMutator):  # type: ignore[misc]
    """Rewrites operators that TVM's passes handle badly in terms of operators they know.

    - clip -> minimum(maximum()): ConvertLayout would put two transposes around each clip
    - dropout -> its input, with a mask of ones
    - a tensor filled with infinity or NaN, at which LegalizeOps fails -> a scalar, broadcast
    - the loops that the ONNX importer makes of Clip's bounds -> maximum and minimum
    - a small integer power -> products, as the C library computes one power at a time
    - isfinite, isinf -> a comparison of the absolute value with infinity: TVM's have three copies
      of the operand, and each of all that is fused into it

    TVM's maximum and minimum of NaN and a number return the second operand: with the bound first,
    NaN stays NaN, as in torch and ONNX.
    """

    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if name == "relax.call_tir":
            return self._bounded(call)
        if name == "relax.nn.dropout":
            return relax.Tuple([call.args[0], self.builder_.emit(relax.op.ones_like(call.args[0]))])
        if name in ("relax.full", "relax.full_like") and isinstance(
            shape := call.ty.shape, relax.ShapeExpr
        ):
            value = constant_value(call.args[1])
            if value is not None and not np.isfinite(value):
                return relax.op.broadcast_to(relax.const(value, str(call.ty.dtype)), shape)
        if name == "relax.power" and str(call.ty.dtype).startswith("float"):
            return self._multiplied(call)
        if name == "relax.clip" and str(call.ty.dtype).startswith("float"):
            data, *bounds = call.args
            low, high = (relax.const(bound.value, str(call.ty.dtype)) for bound in bounds)
            return relax.op.minimum(high, self.builder_.emit(relax.op.maximum(low, data)))
        if name in _COMPARED_WITH_INFINITY:
            magnitude = self.builder_.emit(relax.op.abs(call.args[0]))
            infinity = relax.const(np.inf, str(call.args[0].ty.dtype))
            return _COMPARED_WITH_INFINITY[name](magnitude, infinity)
        return call

    def _multiplied(self, call: Call) -> relax.Expr:
        data, exponent = call.args[0], constant_value(call.args[1])
        if exponent is None or exponent.ndim or exponent not in _POWERS:
            return call
        result = data
        for _ in range(int(exponent) - 1):
            result = self.builder_.emit(relax.op.multiply(result, data))
        return result

    def _bounded(self, call: Call) -> relax.Expr:
        operators = {"T_maximum": relax.op.maximum, "T_minimum": relax.op.minimum}
        (block, *more), arguments = (
            block_names(self.builder_.get()[call.args[0]]) or [""],
            list(call.args[1].fields),
        )
        if (
            more
            or block not in operators
            or len(arguments) != 2
            or not str(call.ty.dtype).startswith("float")
        ):
            return call
        data, bound = arguments
        return operators[block](bound, data) if len(bound.ty.shape) == 0 else call


@tvm.transform.module_pass(opt_level=0, name="farm.ChannelsLast")
class _ChannelsLast:
    """Converts convolutions to NHWC.

    TVM's pass moves the transposes out of the way; if it fails, each convolution gets two
    transposes.
    """

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        if not _convolves(
            module
        ):  # on some models without, TVM's pass ends the process: it divides by a number of axes
            return module
        try:
            return relax.transform.ConvertLayout(_LAYOUTS)(module)
        except Exception:  # stack, nonzero and others: each has another check that fails
            return rewrite_module(module, _Transposer)


def _convolves(module: tvm.IRModule) -> bool:
    found: set[str] = set()
    relax.analysis.post_order_visit(module["main"], lambda node: found.add(op_name(node)))
    return not found.isdisjoint(_LAYOUTS)


@mutator
class _Transposer(PyExprMutator):  # type: ignore[misc]
    """Computes each convolution of images over NHWC, between two transposes."""

    def visit_call_(self, call: Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        given, name = call.attrs, op_name(call)
        kernel = _KERNEL_LAYOUTS.get(name)
        if kernel is None or (given.data_layout, given.kernel_layout) != ("NCHW", kernel):
            return call
        data = self.builder_.emit(relax.op.permute_dims(call.args[0], NHWC))
        if name == "relax.nn.conv2d":
            result = relax.op.nn.conv2d(
                data,
                self.builder_.emit(relax.op.permute_dims(call.args[1], _HWIO)),
                given.strides,
                given.padding,
                given.dilation,
                given.groups,
                data_layout="NHWC",
                kernel_layout="HWIO",
                out_dtype=given.out_dtype,
            )
        else:
            result = relax.op.nn.conv2d_transpose(
                data,
                call.args[1],
                given.strides,
                given.padding,
                given.output_padding,
                given.dilation,
                given.groups,
                data_layout="NHWC",
                kernel_layout=kernel,
                out_dtype=given.out_dtype,
            )
        return relax.op.permute_dims(self.builder_.emit(result), NCHW)
