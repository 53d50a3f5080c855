"""Slurm's clusters, by submitit: each task is a job, and travels in files of a shared folder.

submitit submits the jobs and keeps their tasks, results and logs in a folder that the nodes must
see under the same path. Beside them lie files of ours: of each task its progress, which also shows
that its job lives, and a counter which shows that the controller lives. A job whose process has
ended without a result, or that has been silent for long, is submitted again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import logging
import os
import pickle
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from farm import ownership
from farm.cluster.engine import ClusterEngine, ControllerChannel, Work
from farm.cluster.environment import local_versions
from farm.errors import BuildError, FarmError, UsageError
from farm.store import user_cache_dir
from farm.types import Progress, Stage

_POLL_S = 0.5
_BEAT_S = 5.0
_SILENCE_S = 120.0  # a network's file system may show a change after a minute
_RESULT_S = 5.0  # after the end of a job, until its result is seen here
_ENDING_S = 10.0  # for a job that is no longer wanted to end by itself
_MOST_JOBS = 64  # submitted at once
_DEATHS = 3  # of a task's jobs, after which it is not submitted again
_JOB_MINUTES = 60
_CONTROLLER, _CANCELLED, _NOTES = "controller", "cancelled", "notes"
_SLURM = {"job_name": "farm", "time": _JOB_MINUTES, "cpus_per_task": 2, "mem": "4GB"}


class _SharedFolderLine:
    """The connection of a task in a job: files of the shared folder."""

    def __init__(self, folder: Path, task: str) -> None:
        self.folder, self.task = folder, task
        self._seen, self._changed, self._looked, self._is_wanted = "", 0.0, 0.0, True

    def __reduce__(self) -> tuple[type[_SharedFolderLine], tuple[Path, str]]:
        return type(self), (self.folder, self.task)

    def note(self, progress: Progress) -> None:
        self.write([progress.stage.value, progress.note, progress.fraction])

    def write(self, content: object) -> None:
        with contextlib.suppress(OSError), self.file(_NOTES).open("a") as file:
            file.write(json.dumps(content) + "\n")

    def wanted(self) -> bool:
        """Return whether the controller lives, and has not cancelled this task."""
        now = time.monotonic()
        if now - self._looked < 1.0:
            return self._is_wanted
        self._looked = now
        try:
            seen = (self.folder / _CONTROLLER).read_text()
        except FileNotFoundError:  # the controller has removed the folder
            self._is_wanted = False
            return False
        except OSError:
            seen = self._seen
        if seen != self._seen or not self._changed:
            self._seen, self._changed = seen, now
        lives = now - self._changed < _SILENCE_S
        self._is_wanted = lives and not self.file(_CANCELLED).exists()
        return self._is_wanted

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.task}.{kind}"


@dataclass(frozen=True, slots=True)
class _Refused:
    """The answer of a node with other versions."""

    node: str
    why: str


def run_pickled_task_in_slurm_job(
    task: bytes, versions: Mapping[str, str]
) -> tuple[str, Any] | _Refused:
    """Run a task in a job; return the node's name and the result."""
    node = socket.gethostname()
    own = local_versions()
    wrong = [
        f"{name} {own.get(name, 'none')}, the controller's {version}"
        for name, version in versions.items()
        if own.get(name) != version
    ]
    if wrong:
        return _Refused(node, "; ".join(wrong))
    work, request, line = pickle.loads(task)
    ended = Event()

    def beat() -> None:
        line.write(None)
        while not ended.wait(_BEAT_S):
            line.write(None)

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        return node, work(request, line)
    finally:
        ended.set()
        thread.join()


@dataclass
class _Task:
    """A task that has no result yet, and its current job."""

    number: int
    payload: bytes
    line: _SharedFolderLine
    future: Future[Any]
    job: Any
    deaths: int = 0
    read: int = 0  # bytes of the notes
    heard: float = 0.0  # when the job was last heard; 0 before it began
    ended: float = 0.0  # when the job was first seen to have ended
    unwanted: float = 0.0  # when the task was cancelled


@dataclass
class _State:
    """The state that threads share, under a lock."""

    lock: Lock = field(default_factory=Lock)
    tasks: dict[int, _Task] = field(default_factory=dict)
    ended: Event = field(default_factory=Event)


class SlurmEngine(ClusterEngine):
    """Jobs of Slurm. `folder` is seen by its nodes; the default lies in farm's cache.

    With `executor="local"`, submitit runs the jobs on this machine.
    """

    def __init__(self, folder: Path | None = None, executor: str = "slurm") -> None:
        super().__init__()
        if importlib.util.find_spec("submitit") is None:
            raise UsageError(
                "a cluster of Slurm needs submitit",
                "cluster slurm",
                "pip install 'tvm-farm[cluster]'",
            )
        self._root, self._kind = folder or user_cache_dir() / "slurm", executor
        self._folder: Path | None = None
        self._executor: Any = None
        self._refused: dict[str, str] = {}
        self._state = _State()
        self._watcher: Thread | None = None
        self._jobs = itertools.count(1)

    def slots(self) -> int:
        """Return how many jobs are submitted at once; Slurm decides when they run."""
        return _MOST_JOBS if self._kind == "slurm" else os.cpu_count() or 1

    def submit(self, number: int, work: Work, request: object, prefer: str) -> Future[Any]:  # noqa: ARG002
        """Submit a job. Which node runs it is Slurm's choice."""
        with self._state.lock:
            if self._watcher is None:
                self._open()
            assert self._folder, "opened"
            line = _SharedFolderLine(self._folder, f"{number}-{next(self._jobs)}")
            payload = pickle.dumps((work, request))
            job = self._submitted(payload, line)
            task = _Task(number, payload, line, Future(), job)
            self._state.tasks[number] = task
        task.future.add_done_callback(lambda future: self._cancelled(task, future))
        return task.future

    def lost(self, number: int, error: BaseException) -> BaseException:  # noqa: ARG002
        """Return the error of a task; the watcher has put it into farm's words."""
        if isinstance(error, FarmError):
            return error
        return BuildError(
            "the cluster could not carry out this task",
            f"{type(error).__name__}: {error}"[:600],
            "see the logs of its nodes",
        )

    def close(self) -> None:
        """End what still runs, and remove the folder."""
        if self._watcher is None or self._folder is None:
            return
        self._state.ended.set()
        self._watcher.join(_ENDING_S + 2 * _POLL_S + _BEAT_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _open(self) -> None:
        """Make the folder and the executor, and start the thread that watches the jobs."""
        import submitit

        logging.getLogger("submitit").setLevel(logging.CRITICAL)  # faults are told in our words
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=self._root))
        except OSError as exc:
            raise UsageError(
                f"the folder {self._root} cannot be used",
                f"{exc.strerror}: Slurm's nodes and this machine have to share one",
                'cluster = "slurm:/FOLDER"',
            ) from exc
        if foreign := ownership.foreign_writer(self._folder):
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            raise UsageError(
                f"the folder {self._root} is not yours alone",
                f"{foreign}: its files are pickles, and who can change them runs code as you",
                f"use a folder that only you may write to: chmod go-w {self._root}",
            )
        (self._folder / _CONTROLLER).write_text("0")
        if self._kind == "slurm":
            try:
                self._executor = submitit.SlurmExecutor(self._folder)
            except RuntimeError as exc:
                raise UsageError(
                    "this machine has no Slurm", str(exc)[:300], "run farm where sbatch is"
                ) from exc
            self._executor.update_parameters(**_SLURM)
        else:
            self._executor = submitit.LocalExecutor(self._folder)
            self._executor.update_parameters(timeout_min=_JOB_MINUTES)
        self._watcher = Thread(target=self._watch, name="slurm", daemon=True)
        self._watcher.start()

    def _submitted(self, payload: bytes, line: ControllerChannel) -> Any:
        work, request = pickle.loads(payload)
        task = pickle.dumps((work, request, line))
        try:
            return self._executor.submit(run_pickled_task_in_slurm_job, task, local_versions())
        except Exception as exc:
            raise BuildError(
                "Slurm does not take the jobs",
                f"{type(exc).__name__}: {exc}"[-600:],
                "see what sinfo says; the variables SBATCH_PARTITION and SBATCH_ACCOUNT choose "
                "where jobs go",
            ) from exc

    def _cancelled(self, task: _Task, future: Future[Any]) -> None:
        """Tell the job of a task that was cancelled."""
        if future.cancelled():
            task.unwanted = time.monotonic()
            with contextlib.suppress(OSError):
                task.line.file(_CANCELLED).touch()

    def _watch(self) -> None:
        """Look at all jobs at intervals, until the engine is closed and they have ended."""
        assert self._folder, "opened"
        beats = itertools.count(1)
        beaten = closing = 0.0
        while True:
            now = time.monotonic()
            if now - beaten > _BEAT_S:
                beaten = now
                with contextlib.suppress(OSError):
                    (self._folder / _CONTROLLER).write_text(str(next(beats)))
            with self._state.lock:
                tasks = list(self._state.tasks.values())
            for task in tasks:
                try:
                    over = self._look(task)
                except Exception as exc:
                    over = self._fail(task, self.lost(task.number, exc))
                if over:
                    with self._state.lock:
                        del self._state.tasks[task.number]
            if self._state.ended.is_set():
                closing = closing or now
                if not self._state.tasks or now - closing > _ENDING_S + _POLL_S:
                    return
            self._state.ended.wait(_POLL_S)
            if self._state.ended.is_set():
                time.sleep(_POLL_S / 5)

    def _look(self, task: _Task) -> bool:
        """Look at the job of a task; return whether nothing more is to be done for it."""
        now = time.monotonic()
        self._hear(task, now)
        if task.job.paths.result_pickle.exists():
            return self._take(task)
        if task.unwanted:
            # One that has not begun need not end by itself
            if not task.heard or now - task.unwanted > _ENDING_S:
                task.job.cancel(check=False)
                return True
            return bool(task.job.done())
        silent = task.heard and now - task.heard > _SILENCE_S
        if task.job.done() and not task.ended:
            task.ended = now
        if silent or (task.ended and now - task.ended > _RESULT_S):
            if silent:
                task.job.cancel(check=False)
            return self._died(task)
        return False

    def _hear(self, task: _Task, now: float) -> None:
        """Pass on the progress that a job has written."""
        with contextlib.suppress(FileNotFoundError), task.line.file(_NOTES).open("rb") as file:
            file.seek(task.read)
            *lines, rest = file.read().split(b"\n")
            if lines or rest:
                task.heard = now
            for line in lines:
                task.read += len(line) + 1
                if note := json.loads(line):
                    stage, text, fraction = note
                    self.noted(task.number, Progress(Stage(stage), text, fraction))

    def _take(self, task: _Task) -> bool:
        """Take the result of a job."""
        outcome, value = pickle.loads(task.job.paths.result_pickle.read_bytes())
        if task.unwanted:
            return True
        if outcome != "success":
            return self._fail(
                task,
                BuildError(
                    "the cluster could not carry out this task",
                    str(value).strip()[-600:],
                    "see the logs of its nodes",
                ),
            )
        if isinstance(value, _Refused):
            return self._refuse(task, value)
        with contextlib.suppress(InvalidStateError):  # it has just been cancelled
            task.future.set_result(value)
        return True

    def _refuse(self, task: _Task, refused: _Refused) -> bool:
        """Submit the task of a refused node elsewhere."""
        if self._kind != "slurm" or refused.node in self._refused:
            return self._fail(
                task,
                BuildError(
                    f"the node {refused.node} of the cluster is refused",
                    refused.why,
                    "install the same versions on the nodes",
                ),
            )
        self._refused[refused.node] = refused.why
        logging.getLogger("farm").warning(
            "the node %s of the cluster is refused: %s", refused.node, refused.why
        )
        self._executor.update_parameters(exclude=",".join(self._refused))
        return self._again(task)

    def _died(self, task: _Task) -> bool:
        """Submit the task of a dead job again, some times."""
        task.deaths += 1
        if task.deaths <= _DEATHS:
            return self._again(task)
        log = task.job.stderr() or ""
        return self._fail(
            task,
            BuildError(
                "the cluster's jobs died at this task, one after the other",
                log.strip()[-600:],
                "see with sacct whether they had enough memory and time",
            ),
        )

    def _again(self, task: _Task) -> bool:
        task.line = _SharedFolderLine(task.line.folder, f"{task.number}-{next(self._jobs)}")
        task.read, task.heard, task.ended = 0, 0.0, 0.0
        task.job = self._submitted(task.payload, task.line)
        return False

    @staticmethod
    def _fail(task: _Task, error: BaseException) -> bool:
        with contextlib.suppress(InvalidStateError):
            task.future.set_exception(error)
        return True
