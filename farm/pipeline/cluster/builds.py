"""Builds on a cluster: an import travels, the archives of the folders of a build come back.

They are checked as those of the shared cache are, and must have the digests that this machine
computes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from io import BytesIO

from farm.cluster import ClusterEngine, ControllerChannel
from farm.compiler import build as compiler_build
from farm.compiler.artifact import KIND
from farm.compiler.build_digests import build_inputs_digest_without_records
from farm.errors import BuildError, FarmError
from farm.pipeline.cluster.task_transfer import (
    PreparedModelMissingAnswer,
    archive_of_stored_folder,
    find_or_unpack_import,
    run_request_sending_import_if_missing,
    run_task_in_process,
)
from farm.pipeline.worker_tasks import BUILD_S, build_model_task, find_build_task, open_pool
from farm.processes.workers import TaskContext
from farm.store import (
    ArchiveError,
    Store,
    TuningRecordStore,
    open_local_store_over_shared_cache,
    read_archive,
)
from farm.types import Artifact, Model, PreparedModel, Profile, TuningRecord


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build for a worker of the cluster.

    `base` is the digest of the build without tuning records, as this machine computes it. `archive`
    is that of the import, for a worker that does not have it.
    """

    model: Model
    prepared: PreparedModel
    profile: Profile
    records: tuple[TuningRecord, ...]
    base: str
    archive: bytes | None = None


@dataclass(frozen=True, slots=True)
class BuildAnswer:
    """The answer of a worker: the archives of a build, and of the list of its workloads."""

    digest: str
    artifact: bytes
    workloads: bytes


def build_on_cluster(
    context: TaskContext,
    model: Model,
    prepared: PreparedModel,
    profile: Profile,
    store: Store,
    engine: ClusterEngine,
) -> Artifact:
    """Have a worker of the cluster build a prepared model; return the build from our own store.

    It runs in a thread. Raises BuildError if what comes back is not the build that was asked for.
    """
    from farm.quantize import float_model

    # a recipe is a file of this machine
    plain = replace(float_model(model), name=model.name)
    base = build_inputs_digest_without_records(prepared, profile)
    request = BuildRequest(
        plain, prepared, profile, tuple(TuningRecordStore.of_user().records()), base
    )
    worker, answer = run_request_sending_import_if_missing(
        engine,
        build_as_cluster_worker,
        lambda archive: replace(request, archive=archive),
        prepared,
        context.note,
    )
    if isinstance(answer, FarmError):
        raise answer
    try:
        _receive(answer, request, store)
    except ArchiveError as error:
        what = (
            f"what worker {worker} of the cluster sent is not the build of {model.name} for "
            f"{profile.name}"
        )
        raise BuildError(
            what, str(error), "run the command again, without --cluster if it happens again"
        ) from error
    made = find_build_task(context, prepared, profile, store.root)
    if made is None:
        why = "a tuning record changed while it was built"
        raise BuildError(
            f"{model.name} was built for {profile.name} with other records",
            why,
            "run the command again",
        )
    return replace(made, cached=False)


def build_as_cluster_worker(
    request: BuildRequest, line: ControllerChannel
) -> BuildAnswer | PreparedModelMissingAnswer | FarmError:
    """Make a build on a worker of the cluster."""
    store = open_local_store_over_shared_cache(None)
    try:
        directory = find_or_unpack_import(request.prepared, request.archive, store)
        if directory is None:
            return PreparedModelMissingAnswer()
        prepared = replace(request.prepared, directory=directory)
        if build_inputs_digest_without_records(prepared, request.profile) != request.base:
            why = "its farm has the same version and other sources, or another compiler"
            return BuildError(
                "a worker of the cluster would build something else",
                why,
                "install the same farm on the workers",
            )
        with open_pool(store) as pool, store.scratch() as folder:
            records = TuningRecordStore(folder / "records.sqlite")
            if request.records:
                records.merge(request.records)
            arguments = (request.model, prepared, request.profile, store, records)
            made: Artifact = run_task_in_process(
                pool,
                line,
                build_model_task,
                arguments,
                BUILD_S,
                f"compiling {request.model.name} for {request.profile.name}",
            )
        artifact = archive_of_stored_folder(made.library.parent, KIND, made.digest)
        workloads = store.find(compiler_build.ASKED, request.base)
        assert workloads is not None, "a build leaves them"
        return BuildAnswer(
            made.digest,
            artifact,
            archive_of_stored_folder(workloads, compiler_build.ASKED, request.base),
        )
    except FarmError as error:
        return error
    except ArchiveError as error:
        return BuildError(
            f"the import of {request.model.name} was damaged on its way",
            str(error),
            "run the command again",
        )


def _receive(built: BuildAnswer, request: BuildRequest, store: Store) -> None:
    """Publish what a worker has built. Raises ArchiveError if it is not what was asked for."""
    with store.scratch() as scratch:
        asked, made = scratch / "workloads", scratch / "artifact"
        for folder in (asked, made):
            folder.mkdir()
        read_archive(BytesIO(built.workloads), compiler_build.ASKED, request.base, None, asked)
        read_archive(BytesIO(built.artifact), KIND, built.digest, None, made)
        wanted = compiler_build.build_inputs_digest_with_records(
            asked, request.base, request.records
        )
        if built.digest != wanted:
            raise ArchiveError(
                "its digest is not that of the import, the profile and the tuning records"
            )
        compiler_build.check_artifact_folder(made, wanted)
        for kind, digest, folder in (
            (KIND, wanted, made),
            (compiler_build.ASKED, request.base, asked),
        ):
            if store.find(kind, digest) is None:
                with store.publish(kind, digest) as place:
                    shutil.copytree(folder, place, dirs_exist_ok=True)
