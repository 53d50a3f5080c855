"""Machine code of a lowered module. Memory is planned for an open batch as well as for a known one.

TVM plans it by sizes, and those that are open it finds no room for but in tensors of the very same size. Here it plans them as for a batch
of one, and then each piece of memory gets the size that the largest tensor in it will have when the batch is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from farm.compiler.gpu import is_gpu
from farm.compiler.registers import with_tiles_on_stack

_UPPER_BOUND = "tir_var_upper_bound"  # the attribute by which TVM's planner takes open extents for known ones


def compiled(module: tvm.IRModule, target: tvm.target.Target) -> Any:
    """The executable of a module for a target; for a GPU, by TVM's own passes for it."""
    if is_gpu(target):
        return tvm.compile(module, target=target)
    return tvm.compile(_planned_at_one(module), target=target, relax_pipeline=_PIPELINE, tir_pipeline=with_tiles_on_stack())


def _planned_at_one(module: tvm.IRModule) -> tvm.IRModule:
    """The module with its planner told to take a batch for one."""
    result = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function) and (batch := _given(function)):
            result[variable] = function.with_attr(_UPPER_BOUND, dict.fromkeys(batch, 1))
    return result


def _given(function: relax.Function) -> set[str]:
    """The open extents that are known when a function begins: those of its parameters, not those that depend on values."""
    return {str(variable.name) for parameter in function.params for variable in relax.analysis.tir_vars_in_type(parameter.ty)}


@tvm.transform.module_pass(opt_level=0, name="farm.StorageOfOpenBatches")
class _StorageOfOpenBatches:
    """Gives each storage that was planned as for a batch of one room for the largest of its tensors at any."""

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
        return relax.VarBinding(binding.var, relax.Call(call.op, [size, *call.args[1:]], call.attrs, call.ty_args))

    made = [relax.BindingBlock([sized(binding) for binding in block.bindings]) for block in blocks]
    body = relax.SeqExpr(made, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _calls(binding: relax.Binding, operator: str) -> bool:
    return getattr(getattr(getattr(binding, "value", None), "op", None), "name", "") == operator


def _nbytes(extents: Sequence[Any], dtype: str) -> Any:
    start = tirx.const(np.dtype(dtype).itemsize, "int64")
    return Analyzer().simplify(reduce(lambda size, extent: size * extent, extents, start))


def _larger(one: Any, other: Any) -> Any:
    """The larger of two sizes, or an expression of it where that depends on the batch."""
    analyzer = Analyzer()
    for variable in tirx.analysis.undefined_vars(tirx.Evaluate(one + other)):
        analyzer.bind(variable, tvm.ir.Range(tirx.const(0, "int64"), tirx.const(1 << 31, "int64")))
    if analyzer.can_prove(one >= other):
        return one
    return other if analyzer.can_prove(other >= one) else tirx.max(one, other)


_PIPELINE = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        _StorageOfOpenBatches(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
)
