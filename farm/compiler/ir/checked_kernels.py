"""Mark the kernels that check the tensors that they are called with in a build for a device.

TVM lets each kernel compare the types, shapes, strides and devices of its tensors with what it was
compiled for. LLVM takes up to half of its time for that. Most tensors come from other kernels of
the same module, whose calls are checked when they are compiled; only kernels that read what a
caller gave have something to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx

from farm.compiler.ir.relax_rewriter import op_name

_MARK = "farm.checks_arguments"
_RESHAPE = "relax.reshape"


def mark_checked_kernel(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel that checks its arguments also where others do not."""
    return kernel.with_attr(_MARK, True)


def is_marked(kernel: Any) -> bool:
    """Return True for a result of `mark_checked_kernel`."""
    return _MARK in (kernel.attrs or {})


def mark_kernels_of_inputs(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with marks on the kernels that read an input.

    The virtual machine checks an input's type and shape, but not its strides.
    """
    return _marked(module, [call.kernel for call in _kernel_calls(module) if call.reads_input])


def mark_first_kernel_of_parameters(module: tvm.IRModule, indices: set[int]) -> tvm.IRModule:
    """Return the module with a mark on the first kernel that reads one of these parameters.

    They are fields of the tuple that `main` takes, which the virtual machine does not check. If no
    kernel reads them directly, all kernels are marked.
    """
    calls = list(_kernel_calls(module))
    readers = [call.kernel for call in calls if call.parameters & indices]
    return _marked(module, readers[:1] or [call.kernel for call in calls])


@dataclass(frozen=True, slots=True)
class _KernelCall:
    """A call of a kernel, and which of the function's parameters are among its arguments."""

    kernel: tvm.ir.GlobalVar
    reads_input: bool
    parameters: frozenset[int]  # indices of fields of a tuple


def _marked(module: tvm.IRModule, kernels: list[tvm.ir.GlobalVar]) -> tvm.IRModule:
    result = module.clone()
    for variable in dict.fromkeys(kernels):
        result.update_func(variable, mark_checked_kernel(module[variable]))
    return result


def _kernel_calls(module: tvm.IRModule) -> list[_KernelCall]:
    """Return the calls of kernels through call_tir, in the order of each function."""
    calls: list[_KernelCall] = []
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            read = partial(_read_call, function, relax.analysis.get_var2val(function), calls)
            relax.analysis.post_order_visit(function, read)
    return calls


def _read_call(
    function: relax.Function, values: Mapping[relax.Var, Any], calls: list[_KernelCall], node: Any
) -> None:
    if op_name(node) != "relax.call_tir":
        return
    sources = [_source(argument, values) for argument in node.args[1].fields]
    calls.append(
        _KernelCall(
            node.args[0],
            any(_is_parameter(source, function) for source in sources),
            frozenset(
                int(source.index)
                for source in sources
                if isinstance(source, relax.TupleGetItem)
                and _is_parameter(source.tuple_value, function)
            ),
        )
    )


def _source(expression: Any, values: Mapping[relax.Var, Any]) -> Any:
    """Return what an expression is another name, or another view, of."""
    while True:
        if op_name(expression) == _RESHAPE:
            expression = expression.args[0]
        elif isinstance(expression, relax.Var) and expression in values:
            expression = values[expression]
        else:
            return expression


def _is_parameter(expression: Any, function: relax.Function) -> bool:
    return any(expression.same_as(parameter) for parameter in function.params)
