"""CPU schedules: one rule for each main block of a fused kernel, and for the rest what a search has found, or a general rule.

TVM 0.27 has no CPU schedules of its own: an unscheduled convolution is ten to thirty times slower. Where a rule fails, the kernel stays as
it is, correct and slow, and the report names it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import Schedule

from farm.compiler import recurrence, traces
from farm.compiler.choices import Chooser
from farm.compiler.extents import product_at_one
from farm.compiler.fences import with_fences
from farm.compiler.loops import WORKLOAD
from farm.compiler.phases import INTERLEAVED, schedule_interleaved
from farm.compiler.prefetch import with_prefetches
from farm.compiler.rolled import with_rolled_rows
from farm.compiler.rows import LAYER_NORM, SOFTMAX, schedule_rows
from farm.compiler.rules import RULES
from farm.compiler.seen import with_seen_taps
from farm.compiler.spread import has_reduction, name_of, schedule_general
from farm.compiler.tails import with_tails
from farm.compiler.windows import WINDOW_RULES
from farm.compiler.winograd import WINOGRAD
from farm.compiler.winograd_rules import schedule_winograd
from farm.types import Kernel

GENERAL = "general"
_RULES = {
    WINOGRAD: schedule_winograd,
    **RULES,
    **WINDOW_RULES,
    SOFTMAX: schedule_rows,
    LAYER_NORM: schedule_rows,
    INTERLEAVED: schedule_interleaved,
    GENERAL: schedule_general,
}


ScheduleOne = Callable[[str, tirx.PrimFunc], tuple[tirx.PrimFunc, Kernel]]


def schedule(module: tvm.IRModule, schedule_one: ScheduleOne) -> tuple[tvm.IRModule, list[Kernel]]:
    """Schedule every kernel of a module."""
    kernels: list[Kernel] = []
    calls = _calls(module)
    scheduled: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            scheduled[variable], kernel = schedule_one(variable.name_hint, function)
            workload = kernel.workload or _workload(function)
            kernels.append(replace(kernel, operations=calls[variable] * operations(function), workload=workload))
    for variable, function in scheduled.items():
        module.update_func(variable, function.with_attr("tirx.is_scheduled", True))
    return module, kernels


def by(chooser: Chooser) -> ScheduleOne:
    """What schedules a kernel for the chooser's core; one without a rule of its own by the steps that the chooser has for it."""
    return lambda name, function: _schedule_one(name, function, chooser)


def _schedule_one(name: str, function: tirx.PrimFunc, chooser: Chooser) -> tuple[tirx.PrimFunc, Kernel]:
    if recurrence.is_recurrence(function):
        return function, Kernel(name, recurrence.NAME, "")
    blocks = block_names(function)
    failure = "" if blocks else "it has no blocks to schedule"
    for rule in (rule for rule in _RULES if rule in blocks or (blocks and rule == GENERAL)):
        if rule == GENERAL and (steps := chooser.steps(workload := traces.workload_of(function))):
            try:
                made = traces.applied(with_narrow_indices(function), steps)
                return made, Kernel(name, traces.RULE, failure, workload=workload, choice=str(steps), recorded=True)
            except Exception as exc:  # of another version of TVM
                failure = f"its record does not apply: {_reason(exc)}"
        work = Schedule(tvm.IRModule({"main": with_narrow_indices(function) if rule == GENERAL else function}))
        try:
            _RULES[rule](work, chooser.core)
        except Exception as exc:  # a step of the schedule that does not apply, in whatever words
            failure = f"{rule}: {_reason(exc)}"
            continue
        return _with_changes(work.mod["main"]), Kernel(name, rule, failure)
    return function, Kernel(name, "none", failure)


def _with_changes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """What rules ask for by annotations, as TVM has no such steps; what fetches ahead comes first, as it reads plain loops."""
    for change in (with_prefetches, with_rolled_rows, with_fences, with_tails, with_seen_taps):
        function = change(function)
    return function


def with_narrow_indices(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """With indices of 32 bits, as TVM forgets the hints of wider loops; unchanged where tensors are open, large, or hold such numbers."""
    work = Schedule(tvm.IRModule({"main": function}))
    blocks = [work.get(block) for block in work.get_child_blocks(work.get_sblock("root"))]
    buffers = [region.source for block in blocks for region in (*block.reads, *block.writes)]
    static = all(isinstance(extent, tirx.IntImm) for buffer in buffers for extent in buffer.shape)
    if not static or any(str(buffer.dtype) == "int64" or math.prod(map(int, buffer.shape)) >= 2**31 for buffer in buffers):
        return function
    return tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": function}))["main"]


def _workload(function: tirx.PrimFunc) -> str:
    """The key of the workload that something was chosen for; empty where there is none."""
    if not is_loop_nest(function):
        return ""
    work = Schedule(tvm.IRModule({"main": function}))
    blocks = (work.get(block) for block in work.get_child_blocks(work.get_sblock("root")))
    return next((str(block.annotations[WORKLOAD]) for block in blocks if WORKLOAD in block.annotations), "")


def _calls(module: tvm.IRModule) -> Counter[tvm.ir.GlobalVar]:
    """How often the module's Relax functions call each kernel."""
    calls: Counter[tvm.ir.GlobalVar] = Counter()

    def count(node: Any) -> None:
        if isinstance(node, relax.Call):
            calls.update(argument for argument in node.args if isinstance(argument, tvm.ir.GlobalVar))

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, count)
    return calls


def operations(function: tirx.PrimFunc) -> int:
    """Arithmetic of one call, roughly: two for each step of a sum, one for each element computed otherwise; at a batch of one."""
    if recurrence.is_recurrence(function):
        return recurrence.operations(function)
    if not is_loop_nest(function):
        return 0
    work = Schedule(tvm.IRModule({"main": function}))
    total = 0
    for block in work.get_child_blocks(work.get_sblock("root")):
        extents = [work.get(loop).extent for loop in work.get_loops(block)]
        total += (2 if has_reduction(work, block) else 1) * product_at_one(extents)
    return total


def is_loop_nest(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is made of loops over blocks, as all are but TVM's sort and scan."""
    body = getattr(function.body, "block", None)
    return body is not None and body.name_hint == "root"


def block_names(function: tirx.PrimFunc) -> list[str]:
    """The blocks of a kernel in order; none for one that is no loop nest."""
    if not is_loop_nest(function):
        return []
    work = Schedule(tvm.IRModule({"main": function}))
    return [name_of(work, block) for block in work.get_child_blocks(work.get_sblock("root"))]


def _reason(error: Exception) -> str:
    """What TVM says in its last line of words; the rest is its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
