"""Find a model's tuning tasks, and generate the code of several variants of them.

It reads a model's module, and TVM runs kernels of a module to fold constants: `batch_build` calls
it in a sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr import _update_type
from tvm.relax.expr_functor import PyExprMutator, mutator

from farm.compiler import relax_pipeline
from farm.compiler.build import RawChoices, read_prepared_weights
from farm.compiler.codegen.executable import compile_executable
from farm.compiler.codegen.loop_nest_pipelines import ArgumentChecks
from farm.compiler.codegen.parallel_codegen import export_shared_library
from farm.compiler.cpu.kernel_config import decode_recorded_configs
from farm.compiler.graph.precision import fp16_weights
from farm.compiler.lower import NOTHING, resolve_target
from farm.compiler.target.cpu_model import cpu_model_of, tuning_target_key
from farm.compiler.tuning import tasks as tuning_tasks
from farm.compiler.tuning.tasks import KernelTask, Piece
from farm.processes.workers import TaskContext
from farm.store import digest_of_parts
from farm.types import (
    Candidate,
    CompiledCandidate,
    PreparedModel,
    Profile,
    Progress,
    ProposalRequest,
    Stage,
    Task,
)

Array = np.ndarray[Any, Any]
Wanted = Sequence[tuple[str, Candidate | ProposalRequest]]
# Limit for the arrays of a batch; above it, a task gets its default and one candidate only
_MOST_BYTES = 128 << 20
# Lower bound of random inputs, so that roots, logarithms and quotients of them are finite
_LEAST = 0.05


def cpu_model_key(profile: Profile) -> str:
    """Return the key of a profile's CPU model."""
    return str(tuning_target_key(resolve_target(profile)))


def find_tuning_tasks(
    context: TaskContext,
    prepared: PreparedModel,
    profile: Profile,
    records: Mapping[str, RawChoices],
) -> list[Task]:
    """Return the tuning tasks of a model; `records` are the recorded choices by CPU model.

    The tasks are the workloads with several candidates, and those for which MetaSchedule can
    propose schedules.
    """
    context.note(Progress(Stage.COMPILING, "what there is to choose"))
    target, found = _pieces(prepared.directory, _Hashable(profile))
    recorded = decode_recorded_configs(records.get(tuning_target_key(target), {}))
    return [_plain_task(piece.task(key, recorded)) for key, piece in found.items()]


def generate_candidates_code(
    _: TaskContext,
    prepared: PreparedModel,
    profile: Profile,
    wanted: Wanted,
    workspace: Path,
    arrays_file: Path,
) -> tuple[tuple[CompiledCandidate, ...], tuple[tuple[str, str, str], ...], tuple[str, ...]]:
    """Write the object files of candidates into a folder, and their arrays into a file.

    Returns the variants, the candidates that do not compile with the reason, and the names of the
    object files. Candidates whose arrays would exceed the size limit of a batch are left out.
    """
    target, found = _pieces(prepared.directory, _Hashable(profile))
    merged = tvm.IRModule({"no_kernel": NOTHING})
    arrays: dict[str, Array] = {}
    variants: list[CompiledCandidate] = []
    failed: list[tuple[str, str, str]] = []
    generator = np.random.default_rng(0)
    inputs = {
        key: [
            _drawn(generator, parameter.ty, found[key])
            for parameter in found[key].module["main"].params
        ]
        for key in dict(wanted)
    }
    with target:
        for key, candidate in _candidates(found, wanted, target):
            if (
                sum(array.nbytes for array in arrays.values()) > _MOST_BYTES
                and sum(one.workload == key for one in variants) > 1
            ):
                continue
            function = f"variant_{len(variants)}"
            try:
                module, values = found[key].built(key, candidate, cpu_model_of(target))
                merged.update(_renamed(module, function))
            except Exception as exc:  # TVM's passes may raise any exception
                failed.append(
                    (key, str(candidate.words), f"it does not compile: {type(exc).__name__}")
                )
                continue
            names = [
                digest_of_parts(str(value.dtype), str(value.shape), value.tobytes())
                for value in (*inputs[key], *values)
            ]
            arrays.update(zip(names, (*inputs[key], *values), strict=True))
            variants.append(CompiledCandidate(key, _plain(candidate), function, tuple(names)))
        executable = compile_executable(merged, target, checks=ArgumentChecks.NONE)
    objects: list[str] = []
    export_shared_library(
        executable,
        workspace / "library.so",
        lambda _, files, **__: objects.extend(Path(file).name for file in files),
        workspace,
    )
    np.savez(arrays_file, **arrays)  # type: ignore[arg-type]
    return tuple(variants), tuple(failed), tuple(objects)


def _plain_task(task: Task) -> Task:
    """Return a task without texts of TVM's own type, which do not pass out of a sandbox."""
    return replace(
        task,
        workload=str(task.workload),
        candidates=tuple(map(_plain, task.candidates)),
        default=_plain(task.default),
        chosen=_plain(task.chosen),
    )


def _plain(candidate: Candidate) -> Candidate:
    choice = json.loads(json.dumps(candidate.choice))
    return Candidate(choice, str(candidate.words), float(candidate.predicted))


def _candidates(
    found: Mapping[str, Piece],
    wanted: Sequence[tuple[str, Candidate | ProposalRequest]],
    target: tvm.target.Target,
) -> Iterator[tuple[str, Candidate]]:
    """Yield the wanted candidates with their workloads.

    A Proposals is replaced by the candidates that MetaSchedule proposes.
    """
    for key, one in wanted:
        piece = found[key]
        if isinstance(one, Candidate):
            yield key, one
        elif isinstance(piece, KernelTask):
            yield from (
                (key, candidate) for candidate in piece.proposed(one, target, cpu_model_of(target))
            )


@lru_cache(maxsize=1)  # a worker builds several batches of one model, if without a sandbox
def _pieces(directory: Path, profile: _Hashable) -> tuple[tvm.target.Target, dict[str, Piece]]:
    """Return the target, and the tuning tasks of a prepared model by the key of their workload.

    Kernels of a dynamic batch are not among them: the best schedule for a batch of one need not be
    the best for others.
    """
    target = resolve_target(profile.profile)
    core = cpu_model_of(target)
    with target:
        bound = relax_pipeline.bind_weights_for_cpu(
            tvm.ir.load_json((directory / "module.json").read_text()),
            read_prepared_weights(directory),
        )
        halved = fp16_weights.has_fp16_weights(bound)
        known = relax_pipeline.bind_batch_to_one(bound)
        simple = relax_pipeline.run_passes_before_legalization(known)
        found: dict[str, Piece] = {**tuning_tasks.operator_tasks(simple, core, halved)}
        if known is bound:
            found |= tuning_tasks.general_rule_kernel_tasks(simple, core, halved)
    return target, found


@dataclass(frozen=True)
class _Hashable:
    """A profile that can be a key of a cache."""

    profile: Profile

    def __hash__(self) -> int:
        return hash(self.profile.name)


def _renamed(module: tvm.IRModule, name: str) -> tvm.IRModule:
    """Return the module with `main` renamed to `name`, and its kernels with names unique to it."""
    names = {}
    for variable in module.get_global_vars():
        names[variable] = tvm.ir.GlobalVar(
            name if variable.name_hint == "main" else f"{name}_{variable.name_hint}"
        )
        _update_type(names[variable], variable.ty)
    functions = {}
    for variable, function in module.functions_items():
        function = (
            _Renamer(names).visit_expr(function)
            if isinstance(function, relax.Function)
            else function
        )
        functions[names[variable]] = function.with_attr("global_symbol", names[variable].name_hint)
    return tvm.IRModule(functions)


@mutator
class _Renamer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, names: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> None:
        super().__init__()
        self._names = names

    def visit_global_var_(self, variable: tvm.ir.GlobalVar) -> tvm.ir.GlobalVar:
        return self._names[variable]


def _drawn(generator: np.random.Generator, wanted: relax.TensorType, piece: Piece) -> Array:
    """Return a random value for an input of a tuning task."""
    shape, dtype = tuple(int(extent) for extent in wanted.shape), np.dtype(str(wanted.dtype))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return generator.integers(0, 1, shape, endpoint=True).astype(dtype)
    if isinstance(piece, KernelTask):
        return generator.uniform(_LEAST, 1, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)
