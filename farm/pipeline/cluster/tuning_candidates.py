"""The candidates of a search on a cluster: a worker compiles a batch, its library comes back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farm.cluster import ClusterEngine, ControllerChannel
from farm.compiler.build_digests import compiler_sources_digest
from farm.errors import BuildError, FarmError
from farm.pipeline.cluster.task_transfer import (
    PreparedModelMissingAnswer,
    find_or_unpack_import,
    run_request_sending_import_if_missing,
    run_task_in_process,
)
from farm.pipeline.worker_tasks import BUILD_S, build_variant_batch_task, open_pool
from farm.processes.workers import TaskContext
from farm.quantize import float_model
from farm.store import ArchiveError, open_local_store_over_shared_cache
from farm.types import CompiledCandidate, CompiledCandidateBatch, Model, PreparedModel, Profile


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A batch for a worker: candidates by workload. `archive` is that of the import, if it travels.

    `compiler` is the digest of the compiler's sources here, which the worker's must have.
    """

    model: Model
    prepared: PreparedModel
    profile: Profile
    wanted: tuple[tuple[str, Any], ...]
    compiler: str
    archive: bytes | None = None


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer of a worker: a batch, with the content of its files."""

    library: bytes
    arrays: bytes
    variants: tuple[CompiledCandidate, ...]
    failed: tuple[tuple[str, str, str], ...]


def request_batch_from_cluster(
    context: TaskContext,
    model: Model,
    prepared: PreparedModel,
    profile: Profile,
    wanted: tuple[tuple[str, Any], ...],
    folder: Path,
    engine: ClusterEngine,
) -> CompiledCandidateBatch:
    """Have a worker of the cluster build a batch; write its files into a new folder.

    It runs in a thread. Raises BuildError if what comes back is not what was asked for.
    """
    plain = replace(float_model(model), name=model.name)

    def request(archive: bytes | None) -> BatchRequest:
        return BatchRequest(plain, prepared, profile, wanted, compiler_sources_digest(), archive)

    worker, answer = run_request_sending_import_if_missing(
        engine, build_batch_as_cluster_worker, request, prepared, context.note
    )
    if isinstance(answer, FarmError):
        raise answer
    names = [variant.function for variant in answer.variants]
    workloads = {variant.workload for variant in answer.variants}
    if names != [f"variant_{index}" for index in range(len(names))] or not workloads <= {
        workload for workload, _ in wanted
    }:
        raise BuildError(
            f"worker {worker} of the cluster answered with other variants than it was asked for",
            "",
            "run the command again, without --cluster if it happens again",
        )
    folder.mkdir(parents=True)
    batch = CompiledCandidateBatch(
        folder / "library.so", folder / "arrays.npz", answer.variants, answer.failed
    )
    batch.library.write_bytes(answer.library)
    batch.arrays.write_bytes(answer.arrays)
    return batch


def build_batch_as_cluster_worker(
    request: BatchRequest, line: ControllerChannel
) -> BatchAnswer | PreparedModelMissingAnswer | FarmError:
    """Build a batch on a worker of the cluster."""
    store = open_local_store_over_shared_cache(None)
    if compiler_sources_digest() != request.compiler:
        return BuildError(
            "a worker of the cluster would build something else",
            "its farm has the same version and other sources",
            "install the same farm on the workers",
        )
    try:
        directory = find_or_unpack_import(request.prepared, request.archive, store)
        if directory is None:
            return PreparedModelMissingAnswer()
        prepared = replace(request.prepared, directory=directory)
        with open_pool(store) as pool, store.scratch() as scratch:
            made: CompiledCandidateBatch = run_task_in_process(
                pool,
                line,
                build_variant_batch_task,
                (request.model, prepared, request.profile, request.wanted, scratch / "batch"),
                BUILD_S,
                f"compiling {len(request.wanted)} variants",
            )
            return BatchAnswer(
                made.library.read_bytes(), made.arrays.read_bytes(), made.variants, made.failed
            )
    except FarmError as error:
        return error
    except ArchiveError as error:
        return BuildError(
            f"the import of {request.model.name} was damaged on its way",
            str(error),
            "run the command again",
        )
