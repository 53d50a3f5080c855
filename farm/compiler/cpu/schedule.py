"""Choose the schedule of each fused kernel on a CPU.

A kernel gets the rule of its main block, else a trace that a search has recorded, else the general
rule. TVM 0.27 has no CPU schedules of its own: an unscheduled convolution is ten to thirty times
slower. If a rule fails, the kernel stays as it is, correct and slow, and the report names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax, tirx

from farm.compiler.cpu.attention.compute import ATTENTION
from farm.compiler.cpu.attention.schedule import schedule_attention
from farm.compiler.cpu.block_quantized.few_rows import FEW_ROWS, schedule_few_rows
from farm.compiler.cpu.block_quantized.many_rows import MANY_ROWS, schedule_many_rows
from farm.compiler.cpu.conv_dense_compute import CONVOLUTION
from farm.compiler.cpu.conv_dense_schedule import RULES
from farm.compiler.cpu.depth_first.schedule import (
    DEPTH_FIRST,
    WINDOWS,
    plan_of_kernel,
    schedule_depth_first,
)
from farm.compiler.cpu.dot_products import DOT_PRODUCTS, schedule_dot_products
from farm.compiler.cpu.general_schedule import schedule_general
from farm.compiler.cpu.kernel_config import ConfigSelector
from farm.compiler.cpu.phase_interleave import schedule_phase_interleave
from farm.compiler.cpu.rows.row_reductions import ROW_REDUCTION, schedule_row_reduction
from farm.compiler.cpu.rows.softmax_layer_norm import (
    LAYER_NORM,
    LOG_SOFTMAX,
    SOFTMAX,
    schedule_softmax_layer_norm,
)
from farm.compiler.cpu.tir_passes.load_fences import insert_load_fences
from farm.compiler.cpu.tir_passes.prefetch import insert_prefetches
from farm.compiler.cpu.tir_passes.propagate_nan import propagate_nan
from farm.compiler.cpu.tir_passes.skip_padding_taps import insert_tap_conditions
from farm.compiler.cpu.tir_passes.vector_tails import split_vector_tails
from farm.compiler.cpu.traces import metaschedule_traces
from farm.compiler.cpu.transposes import TRANSPOSE, transpose_by_register_tiles
from farm.compiler.cpu.windows.depthwise_pool import WINDOW_RULES
from farm.compiler.cpu.windows.depthwise_row_tiles import order_loops_by_input_row
from farm.compiler.cpu.winograd.compute import WINOGRAD
from farm.compiler.cpu.winograd.schedule import schedule_winograd
from farm.compiler.graph.convolutions.transposed_conv import INTERLEAVED
from farm.compiler.ir.annotations import WORKLOAD
from farm.compiler.ir.blocks import (
    block_names,
    blocks_in_loops,
    estimate_kernel_operations,
    is_loop_nest,
    is_tensor_contraction,
    narrow_indices_to_int32,
)
from farm.compiler.ir.unchecked_schedule import UncheckedSchedule
from farm.kernels import recurrent, recurrent_layer_cost
from farm.types import Kernel

GENERAL = "general"
_UNTILED = "its sums of products are not tiled: no rule is for them"
_RULES = {
    ATTENTION: schedule_attention,
    WINOGRAD: schedule_winograd,
    DEPTH_FIRST: schedule_depth_first,
    **RULES,
    **WINDOW_RULES,
    DOT_PRODUCTS: schedule_dot_products,
    FEW_ROWS: schedule_few_rows,
    MANY_ROWS: schedule_many_rows,
    SOFTMAX: schedule_softmax_layer_norm,
    LOG_SOFTMAX: schedule_softmax_layer_norm,
    ROW_REDUCTION: schedule_row_reduction,
    LAYER_NORM: schedule_softmax_layer_norm,
    INTERLEAVED: schedule_phase_interleave,
    GENERAL: schedule_general,
}

_OF_INT32 = (
    GENERAL,
    DOT_PRODUCTS,
    FEW_ROWS,
    MANY_ROWS,
)  # rules for loops whose indices have 32 bits

# The changes that rules request by annotations (see ir.annotations), because TVM has no such
# schedule primitives. Each pass returns a function without its annotations unchanged. The order is:
TIR_PASSES: tuple[Callable[[tirx.PrimFunc], tirx.PrimFunc], ...] = (
    insert_prefetches,  # PREFETCH_*: first, because it reads the loops as the schedule left them
    order_loops_by_input_row,  # PEEL_FIRST_AND_LAST, ROLL_ROWS: replaces whole nests, adds fences
    insert_load_fences,  # FENCE
    split_vector_tails,  # VECTOR_TAIL
    insert_tap_conditions,  # SKIP_PADDING_TAPS: last, because it puts a condition around a loop
)

ScheduleOne = Callable[[str, tirx.PrimFunc], tuple[tirx.PrimFunc, Kernel]]


def schedule_module(
    module: tvm.IRModule, schedule_one: ScheduleOne
) -> tuple[tvm.IRModule, list[Kernel]]:
    """Schedule every kernel of a module."""
    kernels: list[Kernel] = []
    calls = _calls(module)
    scheduled: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            scheduled[variable], kernel = schedule_one(variable.name_hint, function)
            workload = kernel.workload or _workload(function)
            counted = calls[variable] * estimate_kernel_operations(function)
            slow = (
                _UNTILED
                if kernel.rule in (GENERAL, "none") and is_tensor_contraction(function)
                else ""
            )
            kernels.append(replace(kernel, operations=counted, workload=workload, slow=slow))
    for variable, function in scheduled.items():
        module.update_func(variable, function.with_attr("tirx.is_scheduled", True))
    return module, kernels


def create_kernel_scheduler(selector: ConfigSelector) -> ScheduleOne:
    """Return a function that schedules one kernel for the selector's CPU.

    A kernel without a rule of its own gets the trace that the selector has for it, if any.
    """

    def schedule_one(name: str, function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, Kernel]:
        made, kernel = _schedule_one(name, function, selector)
        return propagate_nan(made, selector.cpu), kernel

    return schedule_one


def _schedule_one(
    name: str, function: tirx.PrimFunc, selector: ConfigSelector
) -> tuple[tirx.PrimFunc, Kernel]:
    """Return the scheduled kernel and the report on it."""
    if recurrent_layer_cost.is_recurrent_layer(function):
        return function, Kernel(name, recurrent.NAME, "")
    blocks = block_names(function)
    failure = "" if blocks else "it has no blocks to schedule"
    for rule in (rule for rule in _RULES if _applies(rule, blocks)):
        if rule == GENERAL and (
            trace := selector.recorded_trace(workload := metaschedule_traces.workload_key(function))
        ):
            try:
                made = metaschedule_traces.apply_trace(narrow_indices_to_int32(function), trace)
                return made, Kernel(
                    name,
                    metaschedule_traces.RULE,
                    failure,
                    workload=workload,
                    choice=str(trace),
                    recorded=True,
                )
            except Exception as exc:  # it comes from another version of TVM
                failure = f"its record does not apply: {_reason(exc)}"
        if rule == GENERAL:
            try:
                transpose = transpose_by_register_tiles(function, selector.cpu)
            except Exception as exc:  # TVM raises several types
                failure = f"{TRANSPOSE}: {_reason(exc)}"
            else:
                if transpose is not None:
                    return transpose, Kernel(name, TRANSPOSE, failure)
        sch = UncheckedSchedule(
            tvm.IRModule(
                {"main": narrow_indices_to_int32(function) if rule in _OF_INT32 else function}
            )
        )
        try:
            _RULES[rule](sch, selector.cpu)
        except Exception as exc:  # a primitive does not apply: TVM raises several types
            failure = f"{rule}: {_reason(exc)}"
            continue
        kernel = Kernel(name, rule, failure)
        if rule == DEPTH_FIRST:
            kernel = _with_plan(kernel, function, selector)
        return _apply_tir_passes(sch.mod["main"]), kernel
    return function, Kernel(name, "none", failure)


def _applies(rule: str, blocks: Sequence[str]) -> bool:
    """Return whether a rule is for a kernel of these blocks."""
    if rule == DEPTH_FIRST:
        return CONVOLUTION in blocks and any(block in WINDOWS for block in blocks)
    return rule in blocks or (bool(blocks) and rule == GENERAL)


def _with_plan(kernel: Kernel, function: tirx.PrimFunc, selector: ConfigSelector) -> Kernel:
    """Return the report on a pair with its plan, and whether a record decided the tile."""
    plan = plan_of_kernel(function)
    decision = selector.decisions.get(_workload(function))
    recorded = decision is not None and decision.recorded and decision.config.tile == plan.tile
    return replace(kernel, choice=str(plan), recorded=recorded)


def _apply_tir_passes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Apply TIR_PASSES in their order to a scheduled function."""
    for tir_pass in TIR_PASSES:
        function = tir_pass(function)
    return function


def _workload(function: tirx.PrimFunc) -> str:
    """Return the key of the workload that the kernel was configured for; empty if there is none."""
    if not is_loop_nest(function):
        return ""
    blocks = (nested.block for nested in blocks_in_loops(function))
    return next(
        (str(block.annotations[WORKLOAD]) for block in blocks if WORKLOAD in block.annotations), ""
    )


def _calls(module: tvm.IRModule) -> Counter[tvm.ir.GlobalVar]:
    """Count the calls of each kernel in the module's Relax functions."""
    calls: Counter[tvm.ir.GlobalVar] = Counter()

    def count(node: Any) -> None:
        if isinstance(node, relax.Call):
            calls.update(
                argument for argument in node.args if isinstance(argument, tvm.ir.GlobalVar)
            )

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, count)
    return calls


def _reason(error: Exception) -> str:
    """Return the last line of TVM's message; the rest is its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
