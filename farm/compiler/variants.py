"""Pieces of a model, each in several variants, in one library: what a search for better choices measures."""

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

from farm.compiler import halves, passes, pieces
from farm.compiler.build import read_weights, workspace
from farm.compiler.choices import parsed
from farm.compiler.code import compiled
from farm.compiler.core import core_key, core_of
from farm.compiler.link import linker
from farm.compiler.lower import NOTHING, resolve_target
from farm.compiler.pieces import General, Piece
from farm.parallel import Desk
from farm.store import RecordStore, digest_of
from farm.types import Batch, Candidate, Prepared, Profile, Proposals, Task, Variant

Array = np.ndarray[Any, Any]
_MOST_BYTES = 128 << 20  # of arrays in a batch; beyond, only what a kernel is compared with and one candidate
_LEAST = 0.05  # of the numbers that are drawn for a kernel: of them, roots, logarithms and quotients are numbers too


def tasks(prepared: Prepared, profile: Profile, records: RecordStore) -> tuple[str, list[Task]]:
    """The core of a profile, and the workloads of a model that have candidates to choose from, or that MetaSchedule may be asked about."""
    target, found = _pieces(prepared.directory, _Hashable(profile))
    core = core_key(target)
    recorded = parsed(records.choices(core))
    return core, [piece.task(key, recorded) for key, piece in found.items()]


def build_batch(
    desk: Desk, prepared: Prepared, profile: Profile, wanted: Sequence[tuple[str, Candidate | Proposals]], folder: Path
) -> Batch:
    """Build candidates of workloads into a new folder: those that compile, and not more than a device may be sent at once."""
    target, found = _pieces(prepared.directory, _Hashable(profile))
    merged = tvm.IRModule({"no_kernel": NOTHING})
    arrays: dict[str, Array] = {}
    variants: list[Variant] = []
    failed: list[tuple[str, str, str]] = []
    generator = np.random.default_rng(0)
    inputs = {key: [_drawn(generator, parameter.ty, found[key]) for parameter in found[key].module["main"].params] for key in dict(wanted)}
    with target:
        for key, candidate in _candidates(found, wanted, target):
            if sum(array.nbytes for array in arrays.values()) > _MOST_BYTES and sum(one.workload == key for one in variants) > 1:
                continue
            function = f"variant_{len(variants)}"
            try:
                module, values = found[key].built(key, candidate, core_of(target))
                merged.update(_renamed(module, function))
            except Exception as exc:  # TVM raises whatever its passes raise
                failed.append((key, candidate.words, f"it does not compile: {type(exc).__name__}"))
                continue
            names = [digest_of(str(value.dtype), str(value.shape), value.tobytes()) for value in (*inputs[key], *values)]
            arrays.update(zip(names, (*inputs[key], *values), strict=True))
            variants.append(Variant(key, candidate, function, tuple(names)))
        executable = compiled(merged, target)
    folder.mkdir()
    batch = Batch(folder / "library.so", folder / "arrays.npz", tuple(variants), tuple(failed))
    executable.export_library(str(batch.library), fcompile=linker(profile), workspace_dir=str(workspace(desk)))
    np.savez(batch.arrays, **arrays)  # type: ignore[arg-type]
    return batch


def _candidates(
    found: Mapping[str, Piece], wanted: Sequence[tuple[str, Candidate | Proposals]], target: tvm.target.Target
) -> Iterator[tuple[str, Candidate]]:
    """Those that are wanted, with what is proposed where that is asked for."""
    for key, one in wanted:
        piece = found[key]
        if isinstance(one, Candidate):
            yield key, one
        elif isinstance(piece, General):
            yield from ((key, candidate) for candidate in piece.proposed(one, target, core_of(target)))


@lru_cache(maxsize=1)  # a worker builds batch after batch of one model
def _pieces(directory: Path, profile: _Hashable) -> tuple[tvm.target.Target, dict[str, Piece]]:
    """The target, and the pieces of a prepared model by the key of their workload.

    Kernels of an open batch have none: what is good for a batch of one need not be for others.
    """
    target = resolve_target(profile.profile)
    core = core_of(target)
    with target:
        bound = passes.bind(tvm.ir.load_json((directory / "module.json").read_text()), read_weights(directory))
        halved = halves.are_asked(bound)
        known = passes.at_one(bound)
        simple = passes.simplified(known)
        found: dict[str, Piece] = {**pieces.operators(simple, core, halved)}
        if known is bound:
            found |= pieces.kernels(simple, core, halved)
    return target, found


@dataclass(frozen=True)
class _Hashable:
    """A profile, told from others by its target."""

    profile: Profile

    def __hash__(self) -> int:
        return hash(self.profile.name)


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


def _drawn(generator: np.random.Generator, wanted: relax.TensorType, piece: Piece) -> Array:
    """An input of a piece."""
    shape, dtype = tuple(int(extent) for extent in wanted.shape), np.dtype(str(wanted.dtype))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return generator.integers(0, 1, shape, endpoint=True).astype(dtype)
    if isinstance(piece, General):
        return generator.uniform(_LEAST, 1, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)
