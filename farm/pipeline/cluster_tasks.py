"""Builds on a cluster: what travels to a worker, what it does, and what comes back.

A worker shares no files with this machine. A request names the import by its digest; a worker that
does not have it says so, and gets it with the next request. The worker builds in a process of its
own, as this machine would: in the sandbox, with a deadline. What comes back are the archives of the
folders that a build leaves in the store. They are checked as those of the shared cache are, and
must have the digests that this machine computes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from farm import prepare
from farm.cancellation import Cancelled
from farm.cluster import Engine, Line
from farm.compiler import build as compiler_build
from farm.compiler.artifact import KIND
from farm.compiler.fingerprint import artifact_digest
from farm.errors import BuildError, FarmError
from farm.pipeline.worker_tasks import BUILD_S, build_task, kept_build_task, open_pool
from farm.store import ArchiveError, RecordStore, Store, open_store, read_archive, write_archive
from farm.types import Artifact, Model, Prepared, Profile, Record
from farm.workers import Kind, TaskContext, WorkerPool

# A task may wait for a place on a cluster that others use, too; its own deadline is the worker's.
ELSEWHERE_S = 86_400.0
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build for a worker of the cluster.

    `base` is the digest of the build without tuning records, as this machine computes it. `archive`
    is that of the import, for a worker that does not have it.
    """

    model: Model
    prepared: Prepared
    profile: Profile
    records: tuple[Record, ...]
    base: str
    archive: bytes | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """The answer of a worker that does not have the import."""


@dataclass(frozen=True, slots=True)
class Built:
    """The answer of a worker: the archives of a build, and of the list of its workloads."""

    digest: str
    artifact: bytes
    workloads: bytes


def build_on_cluster_task(
    context: TaskContext,
    model: Model,
    prepared: Prepared,
    profile: Profile,
    store: Store,
    engine: Engine,
) -> Artifact:
    """Have a worker of the cluster build a prepared model; return the build from our own store.

    It runs in a thread. Raises BuildError if what comes back is not the build that was asked for.
    """
    from farm.quantize import float_model

    # a recipe is a file of this machine
    plain = replace(float_model(model), name=model.name)
    base = artifact_digest(prepared, profile)
    request = BuildRequest(plain, prepared, profile, tuple(RecordStore.of_user().records()), base)
    worker, answer = engine.run(build_here, request, context.note)
    while isinstance(answer, Missing):
        sent = replace(request, archive=_archive(prepared.directory, prepare.KIND, prepared.digest))
        worker, answer = engine.run(build_here, sent, context.note, worker)
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
    made = kept_build_task(context, prepared, profile, store.root)
    if made is None:
        why = "a tuning record changed while it was built"
        raise BuildError(
            f"{model.name} was built for {profile.name} with other records",
            why,
            "run the command again",
        )
    return replace(made, cached=False)


def build_here(request: BuildRequest, line: Line) -> Built | Missing | FarmError:
    """Make a build on a worker of the cluster."""
    store = open_store(None)
    directory = store.find(prepare.KIND, request.prepared.digest)
    if directory is None and request.archive is None:
        return Missing()
    try:
        if directory is None and request.archive is not None:
            _unpack(request.archive, prepare.KIND, request.prepared.digest, store)
            directory = store.find(prepare.KIND, request.prepared.digest)
        assert directory is not None, "just unpacked"
        prepared = replace(request.prepared, directory=directory)
        if artifact_digest(prepared, request.profile) != request.base:
            why = "its farm has the same version and other sources, or another compiler"
            return BuildError(
                "a worker of the cluster would build something else",
                why,
                "install the same farm on the workers",
            )
        with open_pool(store) as pool, store.scratch() as folder:
            records = RecordStore(folder / "records.sqlite")
            if request.records:
                records.merge(request.records)
            arguments = (request.model, prepared, request.profile, store, records)
            made: Artifact = _carried_out(
                pool,
                line,
                build_task,
                arguments,
                f"compiling {request.model.name} for {request.profile.name}",
            )
        artifact = _archive(made.library.parent, KIND, made.digest)
        workloads = store.find(compiler_build.ASKED, request.base)
        assert workloads is not None, "a build leaves them"
        return Built(made.digest, artifact, _archive(workloads, compiler_build.ASKED, request.base))
    except FarmError as error:
        return error
    except ArchiveError as error:
        return BuildError(
            f"the import of {request.model.name} was damaged on its way",
            str(error),
            "run the command again",
        )


def _carried_out(
    pool: WorkerPool, line: Line, function: Callable[..., Any], arguments: Sequence[Any], task: str
) -> Any:
    """Run a task in a process; end it when nobody waits for it any more."""
    pool.assign("task", function, *arguments, deadline_s=BUILD_S, task=task)
    while True:
        if not line.wanted():
            raise Cancelled
        for message in pool.messages(_TICK_S):
            if message.kind is Kind.NOTE:
                line.note(message.value)
            elif message.kind is Kind.DONE:
                return message.value
            else:
                raise message.value


def _receive(built: Built, request: BuildRequest, store: Store) -> None:
    """Publish what a worker has built. Raises ArchiveError if it is not what was asked for."""
    with store.scratch() as scratch:
        asked, made = scratch / "workloads", scratch / "artifact"
        for folder in (asked, made):
            folder.mkdir()
        read_archive(BytesIO(built.workloads), compiler_build.ASKED, request.base, None, asked)
        read_archive(BytesIO(built.artifact), KIND, built.digest, None, made)
        wanted = compiler_build.digest_by(asked, request.base, request.records)
        if built.digest != wanted:
            raise ArchiveError(
                "its digest is not that of the import, the profile and the tuning records"
            )
        compiler_build.check_files(made, wanted)
        for kind, digest, folder in (
            (KIND, wanted, made),
            (compiler_build.ASKED, request.base, asked),
        ):
            if store.find(kind, digest) is None:
                with store.publish(kind, digest) as place:
                    shutil.copytree(folder, place, dirs_exist_ok=True)


def _unpack(archive: bytes, kind: str, digest: str, store: Store) -> None:
    with store.publish(kind, digest) as folder:
        read_archive(BytesIO(archive), kind, digest, None, folder)


def _archive(folder: Path, kind: str, digest: str) -> bytes:
    file = BytesIO()
    write_archive(folder, kind, digest, None, file)
    return file.getvalue()
