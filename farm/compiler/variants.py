"""Kernels by themselves, each in several variants, in one library: what a search for better choices measures.

Each operator that something is chosen for is cut out of the model's graph, with the element-wise operators that follow it and will be
fused with it. For a choice it goes the way of every build, and is a function of the library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr import _update_type
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler import passes, schedules
from farm.compiler.build import read_weights, workspace
from farm.compiler.choices import Choice, Chooser, Decision, Records, parsed
from farm.compiler.core import Core, core_key, core_of
from farm.compiler.link import linker
from farm.compiler.lower import NOTHING, resolve_target
from farm.parallel import Desk
from farm.store import RecordStore, digest_of
from farm.types import Batch, Candidate, Prepared, Profile, Task, Variant

Array = np.ndarray[Any, Any]
_HEAVY = {"relax.nn.conv2d", "relax.nn.conv2d_transpose", "relax.nn.max_pool2d", "relax.matmul"}
_FOLLOWS = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "sigmoid", "tanh", "exp", "erf")}
_FOLLOWS |= {"relax.nn.relu", "relax.nn.silu", "relax.nn.gelu", "relax.astype", "relax.round"}
_MOST_BYTES = 128 << 20  # of arrays in a batch; beyond, only what a kernel is compared with and one candidate
_HOPELESS = 4.0  # times the cycles of the best prediction: not worth a try


@dataclass(slots=True)
class _Piece:
    """An operator with what follows it, as a module of its own, and what was decided for it."""

    module: tvm.IRModule
    decision: Decision
    calls: int = 1


def tasks(prepared: Prepared, profile: Profile, records: RecordStore) -> tuple[str, list[Task]]:
    """The core of a profile, and the workloads of a model that have candidates to choose from."""
    target, pieces = _pieces(prepared.directory, _Hashable(profile))
    core = core_key(target)
    recorded = parsed(records.choices(core))
    return core, [_task(key, piece, recorded) for key, piece in pieces.items() if len(piece.decision.candidates) > 1]


def build_batch(desk: Desk, prepared: Prepared, profile: Profile, wanted: Sequence[tuple[str, Candidate]], folder: Path) -> Batch:
    """Build candidates of workloads into a new folder: those that compile, and not more than a device may be sent at once."""
    target, pieces = _pieces(prepared.directory, _Hashable(profile))
    merged = tvm.IRModule({"no_kernel": NOTHING})
    arrays: dict[str, Array] = {}
    variants: list[Variant] = []
    failed: list[tuple[str, str, str]] = []
    generator = np.random.default_rng(0)
    inputs = {key: [_drawn(generator, parameter.ty) for parameter in pieces[key].module["main"].params] for key in dict(wanted)}
    with target:
        for key, candidate in wanted:
            if sum(array.nbytes for array in arrays.values()) > _MOST_BYTES and sum(one.workload == key for one in variants) > 1:
                continue
            function = f"variant_{len(variants)}"
            try:
                module, values = _variant(pieces[key].module, {key: Choice.from_json(candidate.choice)}, core_of(target))
                merged.update(_renamed(module, function))
            except Exception as exc:  # TVM raises whatever its passes raise
                failed.append((key, candidate.words, f"it does not compile: {type(exc).__name__}"))
                continue
            names = [digest_of(str(value.dtype), str(value.shape), value.tobytes()) for value in (*inputs[key], *values)]
            arrays.update(zip(names, (*inputs[key], *values), strict=True))
            variants.append(Variant(key, candidate, function, tuple(names)))
        executable = tvm.compile(merged, target=target)
    folder.mkdir()
    batch = Batch(folder / "library.so", folder / "arrays.npz", tuple(variants), tuple(failed))
    executable.export_library(str(batch.library), fcompile=linker(profile), workspace_dir=str(workspace(desk)))
    np.savez(batch.arrays, **arrays)  # type: ignore[arg-type]
    return batch


def _task(key: str, piece: _Piece, recorded: Records) -> Task:
    made = piece.decision
    cycles = min(cost for _, cost in made.candidates)
    found = {choice: Candidate(choice.to_json(), str(choice), cost) for choice, cost in sorted(made.candidates, key=lambda one: one[1])}
    default = found[made.choice]
    likely = tuple(candidate for candidate in found.values() if candidate.predicted <= _HOPELESS * cycles)
    return Task(key, piece.calls, likely, default, found.get(recorded[key], default) if key in recorded else default)


@lru_cache(maxsize=1)  # a worker builds batch after batch of one model
def _pieces(directory: Path, profile: _Hashable) -> tuple[tvm.target.Target, dict[str, _Piece]]:
    """The target, and the pieces of a prepared model by the key of their workload."""
    target = resolve_target(profile.profile)
    core = core_of(target)
    found: dict[str, _Piece] = {}
    with target:
        module = tvm.ir.load_json((directory / "module.json").read_text())
        for cut in _cut(passes.simplified(passes.bind(module, read_weights(directory)))["main"]):
            chooser = Chooser(core)
            passes.loop_nests(cut, chooser)
            for key, decision in chooser.decisions.items():
                piece = found.setdefault(key, _Piece(cut, decision, 0))
                piece.calls += 1
    return target, found


@dataclass(frozen=True)
class _Hashable:
    """A profile, told from others by its target."""

    profile: Profile

    def __hash__(self) -> int:
        return hash(self.profile.name)


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


def _variant(module: tvm.IRModule, records: Records, core: Core) -> tuple[tvm.IRModule, list[Array]]:
    """A piece, built by a choice, and its constants, which are its last parameters."""
    scheduled, _ = schedules.schedule(passes.loop_nests(module, Chooser(core, records)), schedules.for_core(core))
    return passes.lifted(scheduled)


def _renamed(module: tvm.IRModule, name: str) -> tvm.IRModule:
    """`main` as a function of another name, and its kernels under names that no other module has."""
    names = {}
    for variable in module.get_global_vars():
        names[variable] = tvm.ir.GlobalVar(name if variable.name_hint == "main" else f"{name}_{variable.name_hint}")
        _update_type(names[variable], variable.ty)
    functions = {}
    for variable, function in module.functions_items():
        function = _Renamer(names).visit_expr(function) if isinstance(function, relax.Function) else function
        functions[names[variable]] = function.with_attr("global_symbol", names[variable].name_hint)
    return tvm.IRModule(functions)


@mutator
class _Renamer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, names: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> None:
        super().__init__()
        self._names = names

    def visit_global_var_(self, variable: tvm.ir.GlobalVar) -> tvm.ir.GlobalVar:
        return self._names[variable]


def _drawn(generator: np.random.Generator, wanted: relax.TensorType) -> Array:
    """An input of a piece."""
    shape, dtype = tuple(int(extent) for extent in wanted.shape), np.dtype(str(wanted.dtype))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return generator.standard_normal(shape).astype(dtype)
