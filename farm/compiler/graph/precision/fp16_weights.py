"""Store weights as float16 in the parameters of a build and compute in float32.

This is enabled if the module contains float16 constants followed by a cast to float32, as written
by `farm quantize` or by the exporter. Layout changes and blocking of such a constant keep its
numbers, so float16 still holds them exactly, and no output changes.

A memory-bound kernel reads float16 and converts where it multiplies. All other kernels read
float32: their parameters are widened once, when a build is loaded, see
farm.compiler.load_time_transforms. The file is half as large in both cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import Schedule

from farm.compiler.graph.layer_names import update_kernel_names_in_layer_map
from farm.compiler.ir.annotations import TILE
from farm.compiler.ir.blocks import blocks_in_loops, estimate_kernel_operations, is_loop_nest
from farm.compiler.ir.constants import constant_value, tensor_as_array
from farm.compiler.ir.relax_rewriter import op_name
from farm.compiler.target.cpu_model import CpuModel

Array = np.ndarray[Any, Any]
OnNarrowed = Callable[[GenericConst, GenericConst], None]
KEEPS_FP16 = "halves"  # attribute of a `main` whose parameters are to be kept so
HALF, SINGLE = "float16", "float32"
WIDENING = "half_to_float"
LEAST_BYTES = 4096  # of a constant as float32: less is not worth a conversion
_FIRST = 4096  # values that mostly tell that others need more digits
_GAIN = 0.95  # of the cycles: less is not worth another kernel
_MAGNITUDE, _SIGN, _LEAST_NORMAL = 0x7FFF, 0x8000, 0x400  # of the 16 bits
_MORE_DIGITS, _HIGHER_EXPONENT, _SUBNORMAL_UNIT = 13, (127 - 15) << 23, 2.0**-24


def has_fp16_weights(module: tvm.IRModule) -> bool:
    """Return whether a module with bound weights casts float16 constants to float32."""
    found: list[Call] = []

    def look(node: Any) -> None:
        if (
            isinstance(node, Call)
            and op_name(node) == "relax.astype"
            and str(node.ty.dtype) == SINGLE
        ):
            value = constant_value(node.args[0])
            found.extend([node] if value is not None and value.dtype == np.float16 else [])

    relax.analysis.post_order_visit(module["main"], look)
    return bool(found)


def fp16_if_exact(value: Array) -> Array | None:
    """Return a float32 constant as float16.

    None if it is small or float16 cannot hold it exactly.
    """
    if value.dtype != np.float32 or value.nbytes < LEAST_BYTES:
        return None
    flat = np.ascontiguousarray(value).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in (flat[:_FIRST], flat):
            half = part.astype(np.float16)
            if not (np.isfinite(half).all() and (half == part).all()):
                return None
    made: Array = half.reshape(value.shape)
    return made


def may_read_as_fp16(value: Array, core: CpuModel) -> bool:
    """Return whether a kernel for a CPU model might read a constant as float16.

    The fastest configuration for float16 may differ from that for float32.
    """
    return (
        core.fp16_convert_cycles is not None
        and value.nbytes > core.l1_bytes
        and fp16_if_exact(value) is not None
    )


def make_kernels_read_fp16_constants(
    module: tvm.IRModule, core: CpuModel, on_narrowed: OnNarrowed
) -> tvm.IRModule:
    """Return a fused module whose kernels read constants as float16.

    This applies to constants that float16 holds exactly, in kernels that get faster by it.
    `on_narrowed` is told of each constant, and what has taken its place.
    """
    calls: dict[GlobalVar, list[Sequence[Any]]] = defaultdict(list)
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if op_name(binding.value) == "relax.call_tir" and len(binding.value.args) == 2:
                calls[binding.value.args[0]].append(binding.value.args[1].fields)
    found = {
        kernel: places
        for kernel, given in calls.items()
        if (places := _places(module[kernel], given, core))
    }
    if found:
        fuse = tvm.transform.Sequential(
            [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
        )
        narrower = _Narrower(module, found, on_narrowed)
        module = fuse(narrower.narrowed())
        for name in narrower.names.values():
            module[name] = _inlined(module[name])
        module["main"] = update_kernel_names_in_layer_map(module["main"], narrower.names)
    module["main"] = module["main"].with_attr(KEEPS_FP16, True)
    return module


def _places(kernel: tirx.PrimFunc, given: Sequence[Sequence[Any]], core: CpuModel) -> set[int]:
    """Return the indices of a kernel's arguments that become float16.

    `given` holds the arguments of each call of the kernel.
    """
    if core.fp16_convert_cycles is None or not is_loop_nest(kernel):
        return set()
    found = set()
    for place, argument in enumerate(given[0]):
        if isinstance(argument, GenericConst) and _gains(
            kernel, tensor_as_array(argument.value), core
        ):
            values = [
                tensor_as_array(arguments[place].value)
                if isinstance(arguments[place], GenericConst)
                else None
                for arguments in given
            ]
            if all(value is not None and fp16_if_exact(value) is not None for value in values):
                found.add(place)
    return found


def _gains(kernel: tirx.PrimFunc, value: Array, core: CpuModel) -> bool:
    """Return whether a kernel takes fewer cycles per vector of a constant if that is float16.

    The estimate depends on how often the kernel uses each number and on which cache holds it.
    """
    if value.dtype != np.float32 or value.nbytes <= core.l1_bytes:
        return False
    uses = estimate_kernel_operations(kernel) / (2 * value.size)
    passes = uses / _pixels(
        kernel
    )  # over each number; all but the first find it in the nearest cache
    speed = (
        core.l2_bytes_per_cycle if value.nbytes <= core.l2_bytes // 2 else core.dram_bytes_per_cycle
    )
    memory, arithmetic = 4 * core.lanes / speed, uses / core.fmas_per_cycle
    return max(memory / 2, arithmetic + passes * (core.fp16_convert_cycles or 0)) < _GAIN * max(
        memory, arithmetic
    )


def _pixels(kernel: tirx.PrimFunc) -> int:
    """Return the number of pixels in the kernel's tile: how often it uses each converted weight."""
    blocks = (nested.block for nested in blocks_in_loops(kernel))
    return next(
        (int(block.annotations[TILE][0]) for block in blocks if TILE in block.annotations), 1
    )


@mutator
class _Narrower(PyExprMutator):  # type: ignore[misc]
    """Calls kernels through functions that convert constants first; TVM then fuses both."""

    def __init__(
        self,
        module: tvm.IRModule,
        places: Mapping[GlobalVar, set[int]],
        on_narrowed: OnNarrowed,
    ) -> None:
        super().__init__(module)
        self._module, self._places, self._on_narrowed = module, places, on_narrowed
        self._made: dict[GlobalVar, GlobalVar] = {}

    def narrowed(self) -> tvm.IRModule:
        main = self.visit_expr(self._module["main"])
        module = self.builder_.get()
        module["main"] = main
        return module

    def visit_call_(self, call: Call) -> relax.Expr:
        kernel = call.args[0] if op_name(call) == "relax.call_tir" else None
        if kernel not in self._places:
            return self.visit_expr_post_order(call)
        arguments = [
            self._narrow(one) if place in self._places[kernel] else self.visit_expr(one)
            for place, one in enumerate(call.args[1].fields)
        ]
        if kernel not in self._made:
            self._made[kernel] = self._converting_first(kernel, call, arguments)
        return relax.Call(self._made[kernel], arguments)

    def _narrow(self, constant: GenericConst) -> GenericConst:
        """Return a constant as float16."""
        half = relax.const(fp16_if_exact(tensor_as_array(constant.value)), HALF)
        self._on_narrowed(constant, half)
        return half

    @property
    def names(self) -> dict[str, str]:
        """The names of the kernels that read float16, by the names of those they replace."""
        return {kernel.name_hint: made.name_hint for kernel, made in self._made.items()}

    def _converting_first(
        self, kernel: GlobalVar, call: Call, arguments: Sequence[relax.Expr]
    ) -> GlobalVar:
        parameters = [
            relax.Var(f"argument_{index}", argument.ty) for index, argument in enumerate(arguments)
        ]
        fields, given = call.args[1].fields, list(parameters)
        builder = relax.BlockBuilder()
        with builder.function(kernel.name_hint, parameters, attrs={"Primitive": True}):
            with builder.dataflow():
                for place in self._places[kernel]:
                    convert = self.builder_.add_func(
                        _converting([int(extent) for extent in fields[place].ty.shape]), WIDENING
                    )
                    given[place] = builder.emit(
                        relax.call_tir(convert, [parameters[place]], fields[place].ty)
                    )
                output = builder.emit_output(
                    relax.Call(call.op, [kernel, relax.Tuple(given)], call.attrs, call.ty_args)
                )
            builder.emit_func_output(output)
        function = relax.utils.copy_with_new_vars(builder.get()[kernel.name_hint])
        return self.builder_.add_func(
            function.without_attr("global_symbol"), f"{kernel.name_hint}_half"
        )


def _inlined(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel with its conversions inlined where their results are read."""
    sch = Schedule(tvm.IRModule({"main": kernel}))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if sch.get(block).name_hint.startswith(WIDENING):
            sch.compute_inline(block)
    return sch.mod["main"]


def _converting(shape: Sequence[int]) -> tirx.PrimFunc:
    extents = [tirx.const(extent, "int64") for extent in shape]  # as Relax has them
    half = te.placeholder(extents, HALF, "half")
    made = te.create_prim_func(
        [half, te.compute(extents, lambda *at: half(*at).astype(SINGLE), name=WIDENING)]
    )
    return made.without_attr("global_symbol")  # for it to go when it is in other kernels


def fp16_parameters(main: relax.Function, parameters: Mapping[int, Array]) -> dict[int, Array]:
    """Return those of the parameters of `main` that are to be stored as float16, as float16."""
    if KEEPS_FP16 not in main.attrs:
        return {}
    made = {index: fp16_if_exact(value) for index, value in parameters.items()}
    return {index: half for index, half in made.items() if half is not None}


def fp16_widening_site_by_kernel(
    module: tvm.IRModule, parameters: Sequence[Array]
) -> dict[str, str]:
    """Return, by kernel, where its float16 weights become float32."""
    found, main = dict[str, str](), module["main"]
    if KEEPS_FP16 not in main.attrs or not parameters:
        return found
    bundle, wide, narrow = main.params[-1], set[relax.Var](), set[relax.Var]()
    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value == bundle:
            kept = parameters[int(value.index)]
            if _is_widened(kept, binding.var.ty):
                wide.add(binding.var)
            elif kept.dtype == np.float16:
                narrow.add(binding.var)
        elif op_name(value) == "relax.call_tir":
            kernel, arguments = value.args[0].name_hint, value.args[1].fields
            if any(argument in narrow for argument in arguments):
                found[kernel] = "in the kernel"
            elif any(argument in wide for argument in arguments):
                found[kernel] = "when loaded"
    return found


def _is_widened(kept: Array, taken: Any) -> bool:
    return kept.dtype == np.float16 and str(taken.dtype) == SINGLE


def fp16_to_fp32_kernel() -> tirx.PrimFunc:
    """Return a kernel that converts float16 to float32 by integer arithmetic.

    Many CPUs have no instruction for it, or flush subnormal numbers to zero.
    """
    count = te.var("count", "int64")
    half = te.placeholder((count,), HALF, "half")
    return te.create_prim_func(
        [half, te.compute((count,), lambda i: _widened(half[i]), name=WIDENING)]
    )


def _widened(half: tirx.Expr) -> tirx.Expr:
    bits = tirx.reinterpret("uint16", half).astype("uint32")
    magnitude, sign = bits & _u32(_MAGNITUDE), (bits & _u32(_SIGN)) << _u32(16)
    normal = (magnitude << _u32(_MORE_DIGITS)) + _u32(_HIGHER_EXPONENT)
    subnormal = tirx.reinterpret(
        "uint32", magnitude.astype("int32").astype(SINGLE) * tirx.const(_SUBNORMAL_UNIT, SINGLE)
    )
    return tirx.reinterpret(
        SINGLE, tirx.Select(magnitude < _u32(_LEAST_NORMAL), subnormal, normal) | sign
    )


def _u32(value: int) -> tirx.Expr:
    return tirx.const(value, "uint32")
