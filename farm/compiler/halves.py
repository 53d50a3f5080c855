"""Weights of half precision: float16 in the parameters of a build, float32 in its arithmetic.

A model asks for it by constants of float16 that it makes float32 of: farm's own `quantize`, or whoever exported it. What becomes of such
a constant (other layouts, blocks for a kernel) holds the same numbers, so that float16 still holds them exactly, and no answer changes.

A kernel that waits for memory reads float16, and converts where it multiplies. All others read float32: their parameters are widened
once, when a build is loaded, by the function `WIDEN` of its library, which changes them in TVM's tensor cache. So the file is half as
large in both cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import Schedule

from farm.compiler.core import Core
from farm.compiler.folding import constant, view
from farm.compiler.layers import ATTRIBUTE
from farm.compiler.loops import TILE
from farm.compiler.parameters import PREFIX, WIDEN
from farm.compiler.schedules import is_loop_nest, operations

Array = np.ndarray[Any, Any]
ASKED = "halves"  # attribute of a `main` whose parameters are to be kept so
HALF, SINGLE = "float16", "float32"
_KERNEL = "half_to_float"
_AS_HALF = "_half"  # behind the name of a kernel that reads float16
LEAST_BYTES = 4096  # of a constant as float32: less is not worth a conversion
_FIRST = 4096  # values that mostly tell that others need more digits
_GAIN = 0.95  # of the cycles: less is not worth another kernel
_MAGNITUDE, _SIGN, _LEAST_NORMAL = 0x7FFF, 0x8000, 0x400  # of the 16 bits
_MORE_DIGITS, _HIGHER_EXPONENT, _SUBNORMAL_UNIT = 13, (127 - 15) << 23, 2.0**-24


def are_asked(module: tvm.IRModule) -> bool:
    """Whether a module, its weights bound, makes float32 of constants of float16."""
    found: list[Call] = []

    def look(node: Any) -> None:
        if isinstance(node, Call) and getattr(node.op, "name", "") == "relax.astype" and str(node.ty.dtype) == SINGLE:
            value = constant(node.args[0])
            found.extend([node] if value is not None and value.dtype == np.float16 else [])

    relax.analysis.post_order_visit(module["main"], look)
    return bool(found)


def as_half(value: Array) -> Array | None:
    """A constant of float32 as float16, where it is worth that, and float16 holds all of its numbers exactly."""
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


def may_be_read(value: Array, core: Core) -> bool:
    """Whether some kernel for a core might read a constant as float16: what is fast for it then need not be for float32."""
    return core.half_cycles is not None and value.nbytes > core.l1_bytes and as_half(value) is not None


def narrowed(module: tvm.IRModule, core: Core) -> tvm.IRModule:
    """A module of fused loop nests in which kernels read constants as float16, where float16 holds them and the core gains by that."""
    calls: dict[GlobalVar, list[Sequence[Any]]] = defaultdict(list)
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_tir" and len(binding.value.args) == 2:
                calls[binding.value.args[0]].append(binding.value.args[1].fields)
    found = {kernel: places for kernel, given in calls.items() if (places := _places(module[kernel], given, core))}
    if found:
        fuse = tvm.transform.Sequential([relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()])
        module = fuse(_Narrower(module, found).narrowed())
        for kernel in module.get_global_vars():
            if kernel.name_hint.endswith(_AS_HALF):
                module.update_func(kernel, _inlined(module[kernel]))
    main = module["main"]
    steps = {_renamed(str(step), found): layer for step, layer in main.attrs.get(ATTRIBUTE, {}).items()}
    module["main"] = main.with_attr(ASKED, True).with_attr(ATTRIBUTE, steps)
    return module


def _renamed(step: str, found: Mapping[GlobalVar, set[int]]) -> str:
    """The key of a kernel's call, where that has another name now."""
    name, _, number = step.rpartition(" ")
    return f"{name}{_AS_HALF} {number}" if any(kernel.name_hint == name for kernel in found) else step


def _places(kernel: tirx.PrimFunc, given: Sequence[Sequence[Any]], core: Core) -> set[int]:
    """Which arguments of a kernel are to be float16; `given` has those of each of its calls."""
    if core.half_cycles is None or not is_loop_nest(kernel):
        return set()
    found = set()
    for place, argument in enumerate(given[0]):
        if isinstance(argument, GenericConst) and _gains(kernel, view(argument.value), core):
            values = [view(arguments[place].value) if isinstance(arguments[place], GenericConst) else None for arguments in given]
            if all(value is not None and as_half(value) is not None for value in values):
                found.add(place)
    return found


def _gains(kernel: tirx.PrimFunc, value: Array, core: Core) -> bool:
    """Whether a kernel would take fewer cycles for a vector of a constant that is float16, by what it does with it and where it lies."""
    if value.dtype != np.float32 or value.nbytes <= core.l1_bytes:
        return False
    uses = operations(kernel) / (2 * value.size)
    passes = uses / _pixels(kernel)  # over each number; all but the first find it in the nearest cache
    speed = core.l2_speed if value.nbytes <= core.l2_bytes // 2 else core.stream
    memory, arithmetic = 4 * core.lanes / speed, uses / core.multiply_adds
    return max(memory / 2, arithmetic + passes * (core.half_cycles or 0)) < _GAIN * max(memory, arithmetic)


def _pixels(kernel: tirx.PrimFunc) -> int:
    """Of a kernel's tile: so often it uses what it has converted."""
    work = Schedule(tvm.IRModule({"main": kernel}))
    blocks = (work.get(block) for block in work.get_child_blocks(work.get_sblock("root")))
    return next((int(block.annotations[TILE][0]) for block in blocks if TILE in block.annotations), 1)


@mutator
class _Narrower(PyExprMutator):  # type: ignore[misc]
    """Has kernels called through functions that convert constants first: what TVM then fuses to one kernel, under the name it had."""

    def __init__(self, module: tvm.IRModule, places: Mapping[GlobalVar, set[int]]) -> None:
        super().__init__(module)
        self._module, self._places = module, places
        self._made: dict[GlobalVar, GlobalVar] = {}

    def narrowed(self) -> tvm.IRModule:
        main = self.visit_expr(self._module["main"])
        module = self.builder_.get()
        module["main"] = main
        return module

    def visit_call_(self, call: Call) -> relax.Expr:
        kernel = call.args[0] if getattr(call.op, "name", "") == "relax.call_tir" else None
        if kernel not in self._places:
            return self.visit_expr_post_order(call)
        arguments = [
            relax.const(as_half(view(one.value)), HALF) if place in self._places[kernel] else self.visit_expr(one)
            for place, one in enumerate(call.args[1].fields)
        ]
        if kernel not in self._made:
            self._made[kernel] = self._converting_first(kernel, call, arguments)
        return relax.Call(self._made[kernel], arguments)

    def _converting_first(self, kernel: GlobalVar, call: Call, arguments: Sequence[relax.Expr]) -> GlobalVar:
        parameters = [relax.Var(f"argument_{index}", argument.ty) for index, argument in enumerate(arguments)]
        fields, given = call.args[1].fields, list(parameters)
        builder = relax.BlockBuilder()
        with builder.function(kernel.name_hint, parameters, attrs={"Primitive": True}):
            with builder.dataflow():
                for place in self._places[kernel]:
                    convert = self.builder_.add_func(_converting([int(extent) for extent in fields[place].ty.shape]), _KERNEL)
                    given[place] = builder.emit(relax.call_tir(convert, [parameters[place]], fields[place].ty))
                output = builder.emit_output(relax.Call(call.op, [kernel, relax.Tuple(given)], call.attrs, call.ty_args))
            builder.emit_func_output(output)
        function = relax.utils.copy_with_new_vars(builder.get()[kernel.name_hint])
        return self.builder_.add_func(function.without_attr("global_symbol"), f"{kernel.name_hint}{_AS_HALF}")


def _inlined(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel with its conversions where their results are read."""
    work = Schedule(tvm.IRModule({"main": kernel}))
    for block in work.get_child_blocks(work.get_sblock("root")):
        if work.get(block).name_hint.startswith(_KERNEL):
            work.compute_inline(block)
    return work.mod["main"]


def _converting(shape: Sequence[int]) -> tirx.PrimFunc:
    extents = [tirx.const(extent, "int64") for extent in shape]  # as Relax has them
    half = te.placeholder(extents, HALF, "half")
    made = te.create_prim_func([half, te.compute(extents, lambda *at: half(*at).astype(SINGLE), name=_KERNEL)])
    return made.without_attr("global_symbol")  # for it to go when it is in other kernels


def stored(module: tvm.IRModule, parameters: Sequence[Array]) -> tuple[tvm.IRModule, list[Array]]:
    """A module whose parameters are lifted, and these as they are to be kept; with what widens those of float16 where there are any."""
    if ASKED not in module["main"].attrs:
        return module, list(parameters)
    halves = {index: half for index, value in enumerate(parameters) if (half := as_half(value)) is not None}
    if halves:
        module = _with_widening(module, {index: value.shape for index, value in halves.items()})
    return module, [halves.get(index, value) for index, value in enumerate(parameters)]


def as_taken(module: tvm.IRModule, parameters: Sequence[Array]) -> list[Array]:
    """Parameters that are kept as `stored` says, as `main` takes them."""
    if not parameters:
        return []
    types = module["main"].params[-1].ty.fields
    return [value.astype(SINGLE) if _is_widened(value, type_) else value for value, type_ in zip(parameters, types, strict=True)]


def places(module: tvm.IRModule, parameters: Sequence[Array]) -> dict[str, str]:
    """By kernel, where its weights of float16 become float32."""
    found, main = dict[str, str](), module["main"]
    if ASKED not in main.attrs or not parameters:
        return found
    bundle, wide = main.params[-1], set[relax.Var]()
    for binding in (binding for block in main.body.blocks for binding in block.bindings):
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value == bundle:
            if _is_widened(parameters[int(value.index)], binding.var.ty):
                wide.add(binding.var)
        elif getattr(getattr(value, "op", None), "name", "") == "relax.call_tir":
            kernel = value.args[0].name_hint
            if kernel.endswith(_AS_HALF):
                found[kernel] = "in the kernel"
            elif any(argument in wide for argument in value.args[1].fields):
                found[kernel] = "when loaded"
    return found


def _is_widened(kept: Array, taken: Any) -> bool:
    return kept.dtype == np.float16 and str(taken.dtype) == SINGLE


def _with_widening(module: tvm.IRModule, shapes: dict[int, tuple[int, ...]]) -> tvm.IRModule:
    """The module with a function that makes float32 of these parameters in the tensor cache. It returns them, so that none shares room."""
    builder = relax.BlockBuilder(module.clone())
    kernel = builder.add_func(_widening().with_attr("tirx.is_scheduled", True), _KERNEL)
    with builder.function(WIDEN, [], pure=False):
        made = []
        for index, shape in shapes.items():
            name, size = tvm.ir.StringImm(f"{PREFIX}_{index}"), int(np.prod(shape))
            half = builder.emit(_runtime("tensor_cache.get", relax.TensorType(list(shape), HALF), name))
            flat = builder.emit(_runtime("reshape", relax.TensorType([size], HALF), half, relax.ShapeExpr([size])))
            wide = builder.emit(relax.call_tir(kernel, [flat], relax.TensorType([size], SINGLE)))
            whole = builder.emit(_runtime("reshape", relax.TensorType(list(shape), SINGLE), wide, relax.ShapeExpr(list(shape))))
            builder.emit(_runtime("tensor_cache.update", relax.ObjectType(), name, whole, tirx.const(1, "int64")))
            made.append(whole)
        builder.emit_func_output(relax.Tuple(made))
    return builder.get()


def _runtime(name: str, type_: Any, *arguments: relax.Expr) -> relax.Call:
    return relax.Call(relax.ExternFunc(f"vm.builtin.{name}"), list(arguments), None, [type_])


def _widening() -> tirx.PrimFunc:
    """float16 to float32 by integers, which every CPU has: as many have no instruction for it, or round the smallest numbers to zero."""
    count = te.var("count", "int64")
    half = te.placeholder((count,), HALF, "half")
    return te.create_prim_func([half, te.compute((count,), lambda i: _widened(half[i]), name=_KERNEL)])


def _widened(half: tirx.Expr) -> tirx.Expr:
    bits = tirx.reinterpret("uint16", half).astype("uint32")
    magnitude, sign = bits & _u32(_MAGNITUDE), (bits & _u32(_SIGN)) << _u32(16)
    normal = (magnitude << _u32(_MORE_DIGITS)) + _u32(_HIGHER_EXPONENT)
    subnormal = tirx.reinterpret("uint32", magnitude.astype("int32").astype(SINGLE) * tirx.const(_SUBNORMAL_UNIT, SINGLE))
    return tirx.reinterpret(SINGLE, tirx.Select(magnitude < _u32(_LEAST_NORMAL), subnormal, normal) | sign)


def _u32(value: int) -> tirx.Expr:
    return tirx.const(value, "uint32")
