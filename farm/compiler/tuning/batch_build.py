"""Build several variants of a model's tuning tasks into one library, to be measured by a search.

`batch_code` reads the model, in a sandbox if the caller says so. Here the files that it leaves are
checked and linked. TVM is imported by functions only, so that a sandbox can be forked before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.compiler.build import (
    OBJECTS,
    RawChoices,
    checked_object_files,
    link_objects,
    require_regular_file,
)
from farm.errors import BuildError
from farm.processes.workers import TaskContext
from farm.store import TuningRecordStore
from farm.types import (
    Candidate,
    CompiledCandidate,
    CompiledCandidateBatch,
    PreparedModel,
    Profile,
    ProposalRequest,
    Task,
)

ARRAYS = "arrays.npz"
Wanted = Sequence[tuple[str, Candidate | ProposalRequest]]
Finder = Callable[[TaskContext, PreparedModel, Profile, Mapping[str, RawChoices]], list[Task]]
Generator = Callable[[TaskContext, PreparedModel, Profile, Wanted, Path], "BatchCode"]


@dataclass(frozen=True, slots=True)
class BatchCode:
    """The variants of a batch, and the names of the object files of their code.

    `failed` are candidates that do not compile: workload, description, reason.
    """

    variants: tuple[CompiledCandidate, ...]
    failed: tuple[tuple[str, str, str], ...]
    objects: tuple[str, ...]


def find_tuning_tasks(
    context: TaskContext,
    prepared: PreparedModel,
    profile: Profile,
    records: Mapping[str, RawChoices],
) -> list[Task]:
    """Return the tuning tasks of a model; `records` are the recorded choices by CPU model."""
    from farm.compiler.tuning import batch_code

    return batch_code.find_tuning_tasks(context, prepared, profile, records)


def generate_batch_code(
    context: TaskContext, prepared: PreparedModel, profile: Profile, wanted: Wanted, folder: Path
) -> BatchCode:
    """Write the object files and the arrays of candidates into a folder."""
    from farm.compiler.tuning import batch_code

    workspace = folder / OBJECTS
    workspace.mkdir()
    return BatchCode(
        *batch_code.generate_candidates_code(
            context, prepared, profile, wanted, workspace, folder / ARRAYS
        )
    )


def cpu_model_key_and_tuning_tasks(
    prepared: PreparedModel,
    profile: Profile,
    records: TuningRecordStore,
    context: TaskContext | None = None,
    finder: Finder = find_tuning_tasks,
) -> tuple[str, list[Task]]:
    """Return the key of a profile's CPU model, and the tuning tasks of a model.

    The tasks are the workloads with several candidates, and those for which MetaSchedule can
    propose schedules. `finder` replaces `find_tuning_tasks`, for example to run it in a sandbox.
    """
    every = {core: records.choices(core) for core in records.cores()}
    found = finder(context or TaskContext(Path()), prepared, profile, every)
    from farm.compiler.tuning.batch_code import cpu_model_key

    return cpu_model_key(profile), found


def build_variant_batch(
    context: TaskContext,
    prepared: PreparedModel,
    profile: Profile,
    wanted: Wanted,
    folder: Path,
    generator: Generator = generate_batch_code,
) -> CompiledCandidateBatch:
    """Build candidates of workloads into a new folder.

    Candidates that do not compile are reported in `failed`. Candidates whose arrays would exceed
    the size limit of a batch are left out. `generator` replaces `generate_batch_code`, for example
    to run it in a sandbox; the files that it leaves are trusted for their content only. Raises
    BuildError.
    """
    made = folder / "made"
    made.mkdir(parents=True)
    code = generator(context, prepared, profile, wanted, made)
    what = f"{prepared.model}: the process that compiled its variants"
    _check(what, code, {workload for workload, _ in wanted})
    batch = CompiledCandidateBatch(
        folder / "library.so", folder / ARRAYS, code.variants, code.failed
    )
    link_objects(profile, batch.library, checked_object_files(what, made, code.objects))
    require_regular_file(what, made / ARRAYS).rename(batch.arrays)
    return batch


def _check(what: str, code: BatchCode, wanted: set[str]) -> None:
    """Raise BuildError if a batch has other workloads than the `wanted`, or other functions."""
    functions = [variant.function for variant in code.variants]
    told = {variant.workload for variant in code.variants} | {
        workload for workload, _, _ in code.failed
    }
    if not told <= wanted or functions != [f"variant_{index}" for index in range(len(functions))]:
        raise BuildError(
            f"{what} answered with other variants than it was asked for",
            "",
            "run the command again",
        )
