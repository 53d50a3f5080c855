"""Run a task on a worker in a process of its own, and pack folders of the store into archives.

The process has the sandbox and the deadline that it would have on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from farm import checked_model_import
from farm.cluster import ClusterEngine, ControllerChannel, Work
from farm.processes.cancellation import Cancelled
from farm.processes.workers import MessageKind, WorkerPool
from farm.store import Store, read_archive, write_archive
from farm.types import PreparedModel, Progress

# A task may wait for a place on a cluster that others use, too; its own deadline is the worker's.
ELSEWHERE_S = 86_400.0
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class PreparedModelMissingAnswer:
    """The answer of a worker that does not have the import."""


def run_request_sending_import_if_missing(
    engine: ClusterEngine,
    work: Work,
    request: Callable[[bytes | None], object],
    prepared: PreparedModel,
    note: Callable[[Progress], None],
) -> tuple[str, Any]:
    """Carry out a request about an import; send the import to a worker that does not have it.

    `request` returns the request with the archive of the import, or without it. Returns the
    worker's name and its answer.
    """
    worker, answer = engine.run(work, request(None), note)
    while isinstance(answer, PreparedModelMissingAnswer):
        sent = request(
            archive_of_stored_folder(prepared.directory, checked_model_import.KIND, prepared.digest)
        )
        worker, answer = engine.run(work, sent, note, worker)
    return worker, answer


def find_or_unpack_import(
    prepared: PreparedModel, archive: bytes | None, store: Store
) -> Path | None:
    """Return the folder of an import on a worker, unpacked if it came; None if it is missing.

    Raises ArchiveError for an archive that is damaged.
    """
    directory = store.find(checked_model_import.KIND, prepared.digest)
    if directory is None and archive is not None:
        publish_archive_in_store(archive, checked_model_import.KIND, prepared.digest, store)
        directory = store.find(checked_model_import.KIND, prepared.digest)
    return directory


def run_task_in_process(
    pool: WorkerPool,
    line: ControllerChannel,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    deadline_s: float,
    task: str,
) -> Any:
    """Run a task in a process; end it when nobody waits for it any more."""
    pool.assign("task", function, *arguments, deadline_s=deadline_s, task=task)
    while True:
        if not line.wanted():
            raise Cancelled
        for message in pool.messages(_TICK_S):
            if message.kind is MessageKind.NOTE:
                if isinstance(message.value, Progress):
                    line.note(message.value)
            elif message.kind is MessageKind.DONE:
                return message.value
            else:
                raise message.value


def archive_of_stored_folder(folder: Path, kind: str, digest: str) -> bytes:
    """Return the archive of a folder of the store."""
    file = BytesIO()
    write_archive(folder, kind, digest, None, file)
    return file.getvalue()


def publish_archive_in_store(archive: bytes, kind: str, digest: str, store: Store) -> None:
    """Publish the content of an archive in a store. Raises ArchiveError if it is damaged."""
    with store.publish(kind, digest) as folder:
        read_archive(BytesIO(archive), kind, digest, None, folder)
