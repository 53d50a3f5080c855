"""Tuning tasks of a model: operators for which rules have candidates, kernels without a rule.

Each operator with candidates is cut out of the model's graph, with the element-wise operators that
follow it and will be fused with it. A candidate is then built like any model. A kernel that only
the general rule schedules is taken as it is, after fusion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from farm.compiler import relax_pipeline
from farm.compiler.cpu import schedule
from farm.compiler.cpu.kernel_config import (
    ConfigDecision,
    ConfigSelector,
    KernelConfig,
    Records,
    ScheduleTrace,
)
from farm.compiler.cpu.traces import metaschedule_traces
from farm.compiler.ir.blocks import narrow_indices_to_int32
from farm.compiler.ir.relax_rewriter import op_name
from farm.compiler.target.cpu_model import CpuModel
from farm.compiler.tuning.metaschedule_search import SearchSpace
from farm.types import Candidate, ProposalRequest, Task

Array = np.ndarray[Any, Any]
_HEAVY = {"relax.nn.conv2d", "relax.nn.conv2d_transpose", "relax.nn.max_pool2d", "relax.matmul"}
_FOLLOWS = {
    f"relax.{name}"
    for name in (
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "sigmoid",
        "tanh",
        "exp",
        "erf",
    )
}
_FOLLOWS |= {"relax.nn.relu", "relax.nn.silu", "relax.nn.gelu", "relax.astype", "relax.round"}
_HOPELESS = 4.0  # candidates predicted to take this many times the fewest cycles are not measured
_GENERAL = Candidate({"method": schedule.GENERAL}, schedule.GENERAL, 0.0)
# A module and its constants, which are the last parameters of its `main`
Built = tuple[tvm.IRModule, list[Array]]


@dataclass(slots=True)
class OperatorTask:
    """A tuning task: an operator with the operators fused to it, as a module of its own.

    `decision` has the candidates and the default, which has the fewest predicted cycles.
    `fp16_weights` is True if weights may be float16. `calls` is how often the model calls the
    operator.
    """

    module: tvm.IRModule
    decision: ConfigDecision
    fp16_weights: bool
    calls: int = 0

    def task(self, key: str, records: Records) -> Task:
        """Return the task for the search.

        It has the likely candidates, the default, and the candidate that the records choose.
        """
        made, recorded = self.decision, records.get(key)
        cycles = min(cost for _, cost in made.candidates)
        found = {
            choice: Candidate(choice.to_json(), str(choice), cost)
            for choice, cost in sorted(made.candidates, key=lambda one: one[1])
        }
        default = found[made.config]
        likely = tuple(
            candidate for candidate in found.values() if candidate.predicted <= _HOPELESS * cycles
        )
        return Task(
            key,
            self.calls,
            likely,
            default,
            found.get(recorded, default) if isinstance(recorded, KernelConfig) else default,
        )

    def built(self, key: str, candidate: Candidate, core: CpuModel) -> Built:
        """Return the module scheduled by a candidate, and its constants."""
        selector = ConfigSelector(
            core, {key: KernelConfig.from_json(candidate.choice)}, self.fp16_weights
        )
        scheduled, _ = schedule.schedule_module(
            relax_pipeline.legalize_and_fuse(self.module, selector),
            schedule.create_kernel_scheduler(selector),
        )
        return relax_pipeline.lift_constants_into_parameters(scheduled)


@dataclass(slots=True)
class KernelTask:
    """A tuning task: a kernel that the general rule schedules, as a module that calls it once.

    `space` is MetaSchedule's search space for it, made when it is first needed.
    """

    module: tvm.IRModule
    kernel: tirx.PrimFunc
    calls: int
    space: SearchSpace | None = None

    def task(self, key: str, records: Records) -> Task:
        """Return the task for the search.

        Its only candidate is the general rule; MetaSchedule proposes others during the search.
        """
        recorded = records.get(key)
        chosen = _candidate(recorded) if isinstance(recorded, ScheduleTrace) else _GENERAL
        return Task(key, self.calls, (_GENERAL,), _GENERAL, chosen, open=True)

    def built(self, key: str, candidate: Candidate, core: CpuModel) -> Built:
        """Return the module scheduled by a candidate, and its constants.

        Raises ValueError if the candidate's trace does not apply.
        """
        records = {} if candidate == _GENERAL else {key: ScheduleTrace.from_json(candidate.choice)}
        scheduled, (kernel,) = schedule.schedule_module(
            self.module.clone(), schedule.create_kernel_scheduler(ConfigSelector(core, records))
        )
        if records and not kernel.recorded:
            raise ValueError(kernel.note)
        return relax_pipeline.lift_constants_into_parameters(scheduled)

    def proposed(
        self, asked: ProposalRequest, target: tvm.target.Target, core: CpuModel
    ) -> list[Candidate]:
        """Return candidates that MetaSchedule proposes."""
        if self.space is None:
            self.space = SearchSpace(
                metaschedule_traces.name_blocks_by_number(narrow_indices_to_int32(self.kernel)),
                target,
                core,
                asked.seed,
            )
        tried = [
            (ScheduleTrace.from_json(one.choice), ratio)
            for one, ratio in asked.tried
            if one != _GENERAL
        ]
        return [
            _candidate(steps) for steps in self.space.proposed(asked.count, tried, asked.skipped)
        ]


Piece = OperatorTask | KernelTask


def _candidate(steps: ScheduleTrace) -> Candidate:
    return Candidate(steps.to_json(), str(steps), 0.0)


def operator_tasks(
    module: tvm.IRModule, core: CpuModel, fp16_weights: bool
) -> dict[str, OperatorTask]:
    """Return the operators of a simplified module with several candidates, by workload key."""
    found: dict[str, OperatorTask] = {}
    for cut in _cut(module["main"]):
        selector = ConfigSelector(core, fp16_weights=fp16_weights)
        relax_pipeline.legalize_and_fuse(cut, selector)
        for key, decision in selector.decisions.items():
            found.setdefault(key, OperatorTask(cut, decision, fp16_weights)).calls += 1
    return {key: piece for key, piece in found.items() if len(piece.decision.candidates) > 1}


def general_rule_kernel_tasks(
    module: tvm.IRModule, core: CpuModel, fp16_weights: bool
) -> dict[str, KernelTask]:
    """Return the kernels of a simplified module without a rule of their own, by workload key.

    The general rule schedules them.
    """
    selector = ConfigSelector(core, fp16_weights=fp16_weights)
    module = relax_pipeline.legalize_and_fuse(module, selector)
    called = [
        binding
        for block in module["main"].body.blocks
        for binding in block.bindings
        if _name(binding) == "relax.call_tir"
    ]
    calls = Counter(binding.value.args[0] for binding in called)
    found: dict[str, KernelTask] = {}
    for binding in {binding.value.args[0]: binding for binding in called}.values():
        variable = binding.value.args[0]
        selector.searched.clear()
        schedule.create_kernel_scheduler(selector)(variable.name_hint, module[variable])
        for key in selector.searched:
            piece = found.setdefault(
                key, KernelTask(_calling(binding, module[variable]), module[variable], 0)
            )
            piece.calls += calls[variable]
    return found


def _cut(main: relax.Function) -> Iterator[tvm.IRModule]:
    """Yield each heavy operator of a function, with the chain of element-wise operators after it.

    Each operator of the chain is the only user of the one before.
    """
    bindings = [
        binding
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
    ]
    users: dict[relax.Var, list[relax.VarBinding]] = {}
    for binding in bindings:
        for variable in relax.analysis.free_vars(binding.value):
            users.setdefault(variable, []).append(binding)
    for binding in bindings:
        if _name(binding) in _HEAVY:
            chain = [binding]
            while len(after := users.get(chain[-1].var, [])) == 1 and _follows(after[0], chain[-1]):
                chain.append(after[0])
            yield _module(chain)


def _follows(binding: relax.VarBinding, before: relax.VarBinding) -> bool:
    return _name(binding) in _FOLLOWS and str(binding.var.ty.shape) == str(before.var.ty.shape)


def _name(binding: relax.VarBinding) -> str:
    return op_name(binding.value)


def _module(chain: Sequence[relax.VarBinding]) -> tvm.IRModule:
    """Return a module whose `main` computes a chain of bindings.

    The inputs of `main` are the variables that the chain uses and does not bind.
    """
    own = {binding.var for binding in chain}
    outside = dict.fromkeys(
        variable
        for binding in chain
        for variable in relax.analysis.free_vars(binding.value)
        if variable not in own
    )
    known: dict[Any, Any] = {
        variable: relax.Var(f"input_{number}", variable.ty)
        for number, variable in enumerate(outside)
    }
    builder = relax.BlockBuilder()
    with builder.function("main", list(known.values()), attrs={"num_input": len(known)}):
        with builder.dataflow():
            for binding in chain:
                call = binding.value
                known[binding.var] = builder.emit(
                    relax.Call(
                        call.op,
                        [known.get(one, one) for one in call.args],
                        call.attrs,
                        call.ty_args,
                    )
                )
            output = builder.emit_output(known[chain[-1].var])
        builder.emit_func_output(output)
    return builder.get()


def _calling(binding: relax.VarBinding, kernel: tirx.PrimFunc) -> tvm.IRModule:
    """Return a module with a kernel, and with a `main` that calls it like `binding` does."""
    call, builder = binding.value, relax.BlockBuilder()
    inputs = {
        one: relax.Var(f"input_{number}", one.ty)
        for number, one in enumerate(dict.fromkeys(relax.analysis.free_vars(call)))
    }
    variable = builder.add_func(kernel, "kernel")
    with builder.function("main", list(inputs.values()), attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            given = relax.Tuple([inputs.get(one, one) for one in call.args[1].fields])
            output = builder.emit_output(
                relax.Call(call.op, [variable, given], call.attrs, call.ty_args)
            )
        builder.emit_func_output(output)
    return builder.get()
