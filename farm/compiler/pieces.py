"""The pieces of a model that a search measures by themselves: operators with candidates of farm's rules, and kernels without a rule.

Each operator that something is chosen for is cut out of the model's graph, with the element-wise operators that follow it and will be
fused with it; for a choice it goes the way of every build. A kernel that only the general rule takes is taken as it is, fused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from farm.compiler import passes, schedules, traces
from farm.compiler.choices import Choice, Chooser, Decision, Records, Steps
from farm.compiler.core import Core
from farm.compiler.proposals import Space
from farm.types import Candidate, Proposals, Task

Array = np.ndarray[Any, Any]
_HEAVY = {"relax.nn.conv2d", "relax.nn.conv2d_transpose", "relax.nn.max_pool2d", "relax.matmul"}
_FOLLOWS = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "sigmoid", "tanh", "exp", "erf")}
_FOLLOWS |= {"relax.nn.relu", "relax.nn.silu", "relax.nn.gelu", "relax.astype", "relax.round"}
_HOPELESS = 4.0  # times the cycles of the best prediction: not worth a try
_GENERAL = Candidate({"method": schedules.GENERAL}, schedules.GENERAL, 0.0)
Built = tuple[tvm.IRModule, list[Array]]  # a module, and its constants, which are the last parameters of its `main`


@dataclass(slots=True)
class Operator:
    """An operator with what follows it, as a module of its own, and what was decided for it."""

    module: tvm.IRModule
    decision: Decision
    halves: bool
    calls: int = 0

    def task(self, key: str, records: Records) -> Task:
        made, recorded = self.decision, records.get(key)
        cycles = min(cost for _, cost in made.candidates)
        found = {choice: Candidate(choice.to_json(), str(choice), cost) for choice, cost in sorted(made.candidates, key=lambda one: one[1])}
        default = found[made.choice]
        likely = tuple(candidate for candidate in found.values() if candidate.predicted <= _HOPELESS * cycles)
        return Task(key, self.calls, likely, default, found.get(recorded, default) if isinstance(recorded, Choice) else default)

    def built(self, key: str, candidate: Candidate, core: Core) -> Built:
        chooser = Chooser(core, {key: Choice.from_json(candidate.choice)})
        chooser.halves = self.halves
        scheduled, _ = schedules.schedule(passes.loop_nests(self.module, chooser), schedules.by(chooser))
        return passes.lifted(scheduled)


@dataclass(slots=True)
class General:
    """A kernel that the general rule takes, as a module that calls it once, and what MetaSchedule can make of it, once that is asked."""

    module: tvm.IRModule
    kernel: tirx.PrimFunc
    calls: int
    space: Space | None = None

    def task(self, key: str, records: Records) -> Task:
        recorded = records.get(key)
        chosen = _candidate(recorded) if isinstance(recorded, Steps) else _GENERAL
        return Task(key, self.calls, (_GENERAL,), _GENERAL, chosen, open=True)

    def built(self, key: str, candidate: Candidate, core: Core) -> Built:
        records = {} if candidate == _GENERAL else {key: Steps.from_json(candidate.choice)}
        scheduled, (kernel,) = schedules.schedule(self.module.clone(), schedules.by(Chooser(core, records)))
        if records and not kernel.recorded:
            raise ValueError(kernel.note)
        return passes.lifted(scheduled)

    def proposed(self, asked: Proposals, target: tvm.target.Target, core: Core) -> list[Candidate]:
        if self.space is None:
            self.space = Space(traces.numbered(schedules.with_narrow_indices(self.kernel)), target, core, asked.seed)
        tried = [(Steps.from_json(one.choice), ratio) for one, ratio in asked.tried if one != _GENERAL]
        return [_candidate(steps) for steps in self.space.proposed(asked.count, tried, asked.skipped)]


Piece = Operator | General


def _candidate(steps: Steps) -> Candidate:
    return Candidate(steps.to_json(), str(steps), 0.0)


def operators(module: tvm.IRModule, core: Core, halves: bool) -> dict[str, Operator]:
    """The operators of a simplified module for which rules have candidates, by the key of their workload."""
    found: dict[str, Operator] = {}
    for cut in _cut(module["main"]):
        chooser = Chooser(core)
        chooser.halves = halves
        passes.loop_nests(cut, chooser)
        for key, decision in chooser.decisions.items():
            found.setdefault(key, Operator(cut, decision, halves)).calls += 1
    return {key: piece for key, piece in found.items() if len(piece.decision.candidates) > 1}


def kernels(module: tvm.IRModule, core: Core, halves: bool) -> dict[str, General]:
    """The kernels of a simplified module that only the general rule takes, by the key of their workload."""
    chooser = Chooser(core)
    chooser.halves = halves
    module = passes.loop_nests(module, chooser)
    called = [binding for block in module["main"].body.blocks for binding in block.bindings if _name(binding) == "relax.call_tir"]
    calls = Counter(binding.value.args[0] for binding in called)
    found: dict[str, General] = {}
    for binding in {binding.value.args[0]: binding for binding in called}.values():
        variable = binding.value.args[0]
        chooser.searched.clear()
        schedules.by(chooser)(variable.name_hint, module[variable])
        for key in chooser.searched:
            piece = found.setdefault(key, General(_calling(binding, module[variable]), module[variable], 0))
            piece.calls += calls[variable]
    return found


def _cut(main: relax.Function) -> Iterator[tvm.IRModule]:
    """Each heavy operator of a function with the element-wise ones that nothing but it leads to."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings if isinstance(binding, relax.VarBinding)]
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
    return getattr(getattr(binding.value, "op", None), "name", "")


def _module(chain: Sequence[relax.VarBinding]) -> tvm.IRModule:
    """Bindings as a function of what they take from elsewhere."""
    own = {binding.var for binding in chain}
    outside = dict.fromkeys(variable for binding in chain for variable in relax.analysis.free_vars(binding.value) if variable not in own)
    known: dict[Any, Any] = {variable: relax.Var(f"input_{number}", variable.ty) for number, variable in enumerate(outside)}
    builder = relax.BlockBuilder()
    with builder.function("main", list(known.values()), attrs={"num_input": len(known)}):
        with builder.dataflow():
            for binding in chain:
                call = binding.value
                known[binding.var] = builder.emit(relax.Call(call.op, [known.get(one, one) for one in call.args], call.attrs, call.ty_args))
            output = builder.emit_output(known[chain[-1].var])
        builder.emit_func_output(output)
    return builder.get()


def _calling(binding: relax.VarBinding, kernel: tirx.PrimFunc) -> tvm.IRModule:
    """A function of what a call of a kernel takes from elsewhere, with the kernel."""
    call, builder = binding.value, relax.BlockBuilder()
    inputs = {one: relax.Var(f"input_{number}", one.ty) for number, one in enumerate(dict.fromkeys(relax.analysis.free_vars(call)))}
    variable = builder.add_func(kernel, "kernel")
    with builder.function("main", list(inputs.values()), attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            given = relax.Tuple([inputs.get(one, one) for one in call.args[1].fields])
            output = builder.emit_output(relax.Call(call.op, [variable, given], call.attrs, call.ty_args))
        builder.emit_func_output(output)
    return builder.get()
