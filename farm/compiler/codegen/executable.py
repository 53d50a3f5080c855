"""Generate the machine code of a lowered module, and plan its memory, also for a dynamic batch.

TVM's memory planner reuses storage of symbolic size only between tensors of identical size. Memory
is therefore planned for a batch of one. Then each storage gets the size of the largest tensor
assigned to it, as an expression of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.sym import Analyzer

from farm.compiler.codegen.loop_nest_pipelines import (
    ArgumentChecks,
    register_cpu_pipeline,
    register_gpu_pipeline,
)
from farm.compiler.codegen.parallel_codegen import compile_primfuncs_to_libraries
from farm.compiler.gpu.schedule import is_gpu
from farm.compiler.ir.relax_rewriter import op_name

# Attribute that gives TVM's planner upper bounds of symbolic extents
_UPPER_BOUND = "tir_var_upper_bound"
_HOST_FUNCTION = "tirx.is_host_func"  # attribute of what VMShapeLower makes


def compile_executable(
    module: tvm.IRModule,
    target: tvm.target.Target,
    *,
    load: bool = False,
    checks: ArgumentChecks = ArgumentChecks.ALL,
    workspace: Path | None = None,
) -> Any:
    """Return the executable of a module for a target.

    With `load`, it is for this process. `checks` says which kernels for CPUs check what they are
    called with: unless it is ALL, the caller's parameters must be those of the module, or be
    checked when they are loaded (load_time_transforms). The virtual machine checks the shapes and
    types of inputs in each case, and the calls in the module are checked here. Object files are
    written to the folder `workspace`, if there is one, and found there by `export_shared_library`.
    Raises TypeError if a call gives a kernel another tensor than it takes.
    """
    if is_gpu(target):
        passes = [relax.get_default_pipeline(target), _ComputedExtentsInOrder()]
        return tvm.compile(
            module,
            target=target,
            relax_pipeline=tvm.transform.Sequential(passes),
            tir_pipeline=register_gpu_pipeline(),
        )
    with target:
        module = _PIPELINE(_plan_memory_for_batch_one(module))
    # The steps of tvm.compile, whose third takes one thread
    builder = relax.ExecBuilder()
    kernels = vm_build._filter_tir(vm_build._vmcodegen(builder, module))
    if kernels is None:
        return vm_build._vmlink(builder, target)
    loop_nests = register_cpu_pipeline(checks)
    first, *others = compile_primfuncs_to_libraries(
        kernels, target, loop_nests, load=load, workspace=workspace
    )
    for library in others:
        first.import_module(library)
    return vm_build.VMExecutable(vm_build._ffi_api.VMLink(builder, target, first, [], {}))


def _plan_memory_for_batch_one(module: tvm.IRModule) -> tvm.IRModule:
    """Return a copy of the module whose memory will be planned for a batch of one."""
    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function) and (batch := _given(function)):
            result[variable] = function.with_attr(_UPPER_BOUND, dict.fromkeys(batch, 1))
    return result


def _given(function: relax.Function) -> set[str]:
    """Return the symbolic extents that are known when a function starts.

    These are the extents of its parameters, and not those that depend on values.
    """
    return {
        str(variable.name)
        for parameter in function.params
        for variable in relax.analysis.tir_vars_in_type(parameter.ty)
    }


@tvm.transform.module_pass(opt_level=0, name="farm.CheckKernelCalls")
class _CheckKernelCalls:
    """Pass that raises TypeError if a call gives a kernel another tensor than it takes.

    The number of tensors, their data types and their shapes are compared, except for extents that
    are not known.
    """

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        kernels = {
            variable: function
            for variable, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc)
        }

        def check(node: Any) -> None:
            if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.GlobalVar):
                kernel = kernels.get(node.op)
                if kernel is not None:
                    _check_call(str(node.op.name_hint), kernel, node.args)

        for function in module.functions.values():
            if isinstance(function, relax.Function):
                relax.analysis.post_order_visit(function, check)
        return module


def _check_call(name: str, kernel: tirx.PrimFunc, arguments: Sequence[Any]) -> None:
    """Raise TypeError if a kernel takes other tensors than it is called with."""
    if len(kernel.params) != len(arguments):
        raise TypeError(f"{name} takes {len(kernel.params)} arguments, not {len(arguments)}")
    for parameter, argument in zip(kernel.params, arguments, strict=True):
        if isinstance(parameter.ty, tirx.BufferType) and not _takes(parameter, argument.ty):
            raise TypeError(
                f"{name} takes {parameter.dtype} {list(parameter.shape)} for {parameter.name}, "
                f"not {argument.ty}"
            )


def _takes(parameter: Any, given: Any) -> bool:
    if not isinstance(given, relax.TensorType) or str(given.dtype) != str(parameter.dtype):
        return False
    if not isinstance(given.shape, relax.ShapeExpr):
        return bool(given.ndim == len(parameter.shape))
    pairs = list(zip(given.shape.values, parameter.shape, strict=False))
    return len(given.shape.values) == len(parameter.shape) and not any(
        isinstance(one, tirx.IntImm) and isinstance(other, tirx.IntImm) and int(one) != int(other)
        for one, other in pairs
    )


@tvm.transform.module_pass(opt_level=0, name="farm.StorageOfOpenBatches")
class _StorageOfOpenBatches:
    """Pass that gives each storage planned for a batch of one room for its largest tensor.

    The size becomes an expression of the batch.
    """

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function) and _UPPER_BOUND in (function.attrs or {}):
                module.update_func(variable, _roomy(function))
        return module


def _roomy(function: relax.Function) -> relax.Function:
    blocks = function.body.blocks
    sizes: dict[relax.Var, list[Any]] = {}
    for binding in (binding for block in blocks for binding in block.bindings):
        if _calls(binding, "relax.memory.alloc_tensor"):
            storage, _, shape, dtype, *_ = binding.value.args
            sizes.setdefault(storage, []).append(_nbytes(shape.values, str(dtype.value)))

    def sized(binding: relax.Binding) -> relax.Binding:
        if not _calls(binding, "relax.memory.alloc_storage") or binding.var not in sizes:
            return binding
        call = binding.value
        size = relax.ShapeExpr([reduce(_larger, sizes[binding.var])])
        return relax.VarBinding(
            binding.var, relax.Call(call.op, [size, *call.args[1:]], call.attrs, call.ty_args)
        )

    made = [relax.BindingBlock([sized(binding) for binding in block.bindings]) for block in blocks]
    body = relax.SeqExpr(made, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _calls(binding: relax.Binding, operator: str) -> bool:
    return op_name(getattr(binding, "value", None)) == operator


def _nbytes(extents: Sequence[Any], dtype: str) -> Any:
    start = tirx.const(np.dtype(dtype).itemsize, "int64")
    return Analyzer().simplify(reduce(lambda size, extent: size * extent, extents, start))


def _larger(one: Any, other: Any) -> Any:
    """Return the larger of two sizes, or an expression of both if that depends on the batch."""
    analyzer = Analyzer()
    for variable in tirx.analysis.undefined_vars(tirx.Evaluate(one + other)):
        analyzer.bind(variable, tvm.ir.Range(tirx.const(0, "int64"), tirx.const(1 << 31, "int64")))
    if analyzer.can_prove(one >= other):
        return one
    return other if analyzer.can_prove(other >= one) else tirx.max(one, other)


@tvm.transform.module_pass(opt_level=0, name="farm.ComputedExtentsInOrder")
class _ComputedExtentsInOrder:
    """Pass that orders the extents that are computed from symbolic ones by their shape heap slot.

    VMShapeLower iterates over a map whose hashes are addresses: without this pass, the same module
    has other code each time.
    """

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        for variable, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and _HOST_FUNCTION in (function.attrs or {}):
                module.update_func(variable, function.with_body(_in_slot_order(function.body)))
        return module


def _in_slot_order(body: tirx.Stmt) -> tirx.Stmt:
    """Return the stores of computed extents in the order of their slots.

    Each value is computed from symbolic extents, which are stored before, and from no other one.
    """
    if not isinstance(body, tirx.SeqStmt) or not all(map(_is_store, body.seq)):
        return body
    return tirx.SeqStmt(sorted(body.seq, key=lambda store: int(store.indices[0])))


def _is_store(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.BufferStore) and len(statement.indices) == 1


_PIPELINE = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        _CheckKernelCalls(),
        relax.transform.StaticPlanBlockMemory(),
        _StorageOfOpenBatches(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        _ComputedExtentsInOrder(),
        relax.transform.AttachGlobalSymbol(),
    ]
)
