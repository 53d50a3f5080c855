"""Imports on a cluster: the files of a model travel, the imported model comes back.

The worker imports the model, runs its reference and checks the import, as this machine would. The
digest under which the import is stored is that which this machine computes of the model's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farm import checked_model_import, importers
from farm.cluster import ClusterEngine, ControllerChannel
from farm.compiler.build import build_reuses_import_check_code
from farm.compiler.build_digests import compiler_sources_digest
from farm.errors import BuildError, FarmError, ModelError
from farm.importers.fingerprints import checked_external_files
from farm.pipeline.cluster.task_transfer import (
    archive_of_stored_folder,
    publish_archive_in_store,
    run_task_in_process,
)
from farm.pipeline.worker_tasks import (
    PREPARE_S,
    find_prepared_model_task,
    open_pool,
    prepare_model_task,
)
from farm.processes.workers import TaskContext
from farm.store import ArchiveError, Store, open_local_store_over_shared_cache
from farm.types import RECIPES, Model, PreparedModel, Profile

_MOST_BYTES = 1 << 30  # of a model's files; they pass through the scheduler's memory


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """An import for a worker: a model, and its files by name; the first is its source.

    `compiler` is the digest of the compiler's sources here, which the worker's must have.
    """

    model: Model
    host: Profile
    files: tuple[tuple[str, bytes], ...]
    compiler: str


@dataclass(frozen=True, slots=True)
class ImportAnswer:
    """The answer of a worker: the archive of an import."""

    digest: str
    archive: bytes


def can_import_remotely(model: Model, host: Profile, profiles: Sequence[Profile]) -> bool:
    """Return whether another machine may import a model that is built for `profiles`.

    It may not if the model has other files than its own (code, samples, a data set), if its file is
    trusted as a program of this machine, or if the check of the import makes one of the builds.
    Neither may a file that is missing, so that this machine reports it, or too large to travel.
    """
    return not (
        importers.python_function_reference_of_model(model)
        or model.module
        or model.trust
        or model.dataset
        or model.source.endswith(RECIPES)
        or (model.quantize is not None and model.quantize.calibrates)
        or any(build_reuses_import_check_code(profile, host) for profile in profiles)
        or not 0 < _size(model) <= _MOST_BYTES
    )


def _size(model: Model) -> int:
    """Return the size of a model's files in bytes; 0 if one is missing or lies elsewhere."""
    try:
        importers.check_source(model)
        files = importers.model_files(model)
        if Path(model.source).suffix.lower() == ".onnx":
            elsewhere = len(checked_external_files(Path(model.source))) - len(files) + 1
            if elsewhere:
                return 0
        return sum(path.stat().st_size for path in files)
    except (FarmError, OSError):
        return 0


def request_import_from_cluster(
    context: TaskContext, model: Model, host: Profile, store: Store, engine: ClusterEngine
) -> PreparedModel:
    """Have a worker of the cluster import a model; return the import from our own store.

    It runs in a thread. Raises BuildError if what comes back is not the import that was asked for,
    and ModelError.
    """
    files = importers.model_files(model)
    folder = files[0].parent
    content = tuple((path.relative_to(folder).as_posix(), path.read_bytes()) for path in files)
    request = ImportRequest(replace(model, labels=None), host, content, compiler_sources_digest())
    wanted = checked_model_import.prepared_model_digest(model, store.root)
    assert wanted is not None, "only a model with code has dependencies of its own"
    worker, answer = engine.run(import_as_cluster_worker, request, context.note)
    if isinstance(answer, FarmError):
        raise answer
    made = None
    try:
        if answer.digest != wanted:
            raise ArchiveError("its digest is not that of the model's files, or these changed")
        if store.find(checked_model_import.KIND, wanted) is None:
            publish_archive_in_store(answer.archive, checked_model_import.KIND, wanted, store)
        made = find_prepared_model_task(context, model, store.root)
    except ArchiveError as error:
        what = f"what worker {worker} of the cluster sent is not the import of {model.name}"
        fix = "run the command again, without --cluster if it happens again"
        raise BuildError(what, str(error), fix) from error
    if made is None:
        raise ModelError(
            f"{model.name} changed while it was read", model.source, "run the command again"
        )
    return replace(made, cached=False)


def import_as_cluster_worker(
    request: ImportRequest, line: ControllerChannel
) -> ImportAnswer | FarmError:
    """Import a model on a worker of the cluster."""
    store = open_local_store_over_shared_cache(None)
    if compiler_sources_digest() != request.compiler:
        why = "its farm has the same version and other sources"
        return BuildError(
            "a worker of the cluster would import something else",
            why,
            "install the same farm on the workers",
        )
    try:
        with open_pool(store) as pool, store.scratch() as folder:
            for name, content in request.files:
                path = folder / Path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            model = replace(request.model, source=str(folder / request.files[0][0]))
            made: PreparedModel = run_task_in_process(
                pool,
                line,
                prepare_model_task,
                (model, request.host, store),
                PREPARE_S,
                f"importing {model.name}",
            )
        return ImportAnswer(
            made.digest,
            archive_of_stored_folder(made.directory, checked_model_import.KIND, made.digest),
        )
    except FarmError as error:
        return error
