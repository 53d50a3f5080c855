"""Keep kernels apart that would be slow, or slow to compile, if they were fused.

A reshape after a transpose stays a kernel of its own, which costs nothing: the virtual machine
turns it into a view. A resize before a transpose writes vectors of channels, which would become
single numbers at transposed places.

A kernel that joins groups of tensors is not fused with those that make the groups, see
`wide_concats`.

A kernel that slices a tensor to a dynamic extent stays one of its own, too: fused with the one
before it, it would run before the count is read.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from farm.compiler.graph.concats.wide_concats import MOST_JOINED
from farm.compiler.ir.blocks import block_names
from farm.compiler.ir.relax_rewriter import op_name
from farm.kernels.bounded_selection import SLICE_TO_DYNAMIC

_PATTERN = "op_pattern"  # TVM's attribute of a kernel: what may be fused with it
_INJECTIVE, _OPAQUE = 2, 8
_JOINS = (["T_concat"], ["T_stack"])
_VIEWS, _TRANSPOSE, _RESIZE = ("T_reshape", "expand_dims", "T_squeeze"), "T_transpose", "resize"


@tvm.transform.module_pass(opt_level=0, name="farm.Views")
class FusionBarrierMarker:
    """Marks these kernels as opaque to fusion. The kernels must have their `op_pattern`."""

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the module after this pass."""
        result = module.clone()
        for variable in _apart(module):
            result.update_func(variable, module[variable].with_attr(_PATTERN, _OPAQUE))
        return result


def _apart(module: tvm.IRModule) -> set[tvm.ir.GlobalVar]:
    """Return the kernels to mark.

    They are transposes of resized images, reshapes of transposes that a kernel reads which is not
    element-wise, joins of large groups, and slices to dynamic extents.
    """
    calls = {
        binding.var: binding.value
        for block in module["main"].body.blocks
        for binding in block.bindings
        if _is_kernel(binding)
    }
    names = {
        kernel: block_names(module[kernel]) for kernel in {call.args[0] for call in calls.values()}
    }
    users: dict[relax.Var, list[relax.Var]] = defaultdict(list)
    turned: set[relax.Var] = set()
    for variable, call in calls.items():
        given, (name, *more) = list(call.args[1].fields), names[call.args[0]] or [""]
        for argument in given:
            users[argument].append(variable)
        if not more and (name == _TRANSPOSE or (name in _VIEWS and given[0] in turned)):
            turned.add(variable)
    ending: set[relax.Var] = (
        set()
    )  # views that are not fused with what follows, nor what follows with them
    for variable, call in reversed(calls.items()):
        after = (
            user in ending
            or int(module[calls[user].args[0]].attrs.get(_PATTERN, _OPAQUE)) > _INJECTIVE
            for user in users[variable]
        )
        if variable in turned and names[call.args[0]] != [_TRANSPOSE] and any(after):
            ending.add(variable)
    transposes = (variable for variable in turned if names[calls[variable].args[0]] == [_TRANSPOSE])
    ending |= {variable for variable in transposes if _source(calls, variable, names) == [_RESIZE]}
    joined = {
        variable: call.args[1].fields
        for variable, call in calls.items()
        if names[call.args[0]][:1] in _JOINS
    }
    groups = {variable for variable, parts in joined.items() if len(parts) >= MOST_JOINED}
    of_groups = {variable for variable, parts in joined.items() if not groups.isdisjoint(parts)}
    slices = {kernel for kernel, blocks in names.items() if blocks == [SLICE_TO_DYNAMIC]}
    return {calls[variable].args[0] for variable in ending | of_groups} | slices


def _source(
    calls: dict[relax.Var, Call], variable: relax.Var, names: dict[tvm.ir.GlobalVar, list[str]]
) -> list[str]:
    """Return the block names of the kernel that computes a kernel's first argument.

    The list is empty if the argument is an input or a constant.
    """
    made = calls.get(calls[variable].args[1].fields[0])
    return [] if made is None else names[made.args[0]]


def _is_kernel(binding: Any) -> bool:
    value = getattr(binding, "value", None)
    return (
        isinstance(value, Call)
        and op_name(value) == "relax.call_tir"
        and isinstance(value.args[1], relax.Tuple)
    )
