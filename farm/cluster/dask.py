"""The cluster of Dask: a scheduler at an address, and its workers, which run tasks in threads.

Dask repeats the task of a worker that has died on another one. A thread of ours asks the scheduler
for its workers at intervals, checks the versions of new ones, and notices that the scheduler is
gone. It also repeats our tasks of a worker that is frozen or cut off, for which Dask waits five
minutes (its setting distributed.scheduler.worker-ttl).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import pickle
import secrets
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from farm.cluster.engine import ClusterEngine, Work
from farm.cluster.environment import EXPRESSION, describe_version_difference
from farm.errors import BuildError, FarmError, UsageError
from farm.processes.cancellation import Cancelled
from farm.types import Progress, Stage

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from distributed import Client

_CONNECT_S = 10.0
_REFRESH_S = 1.0
_READY_S = 60.0  # to connect, and for the first workers to say their versions
_NO_WORKERS_S = 60.0
# A worker is taken for gone after this time without a heartbeat. Dask's interval grows with the
# number of workers n, by n / 200 s; our tasks are processes and keep no worker from its heartbeats.
_SILENT_S = 30.0
_SILENT_S_PER_WORKER = 0.05
_CLOSE_S = 5.0
_LARGEST_TASK = "16 GiB"


@dataclass(frozen=True, slots=True)
class _Line:
    """The connection of a task on a Dask worker: the events of a topic."""

    topic: str
    number: int

    def note(self, progress: Progress) -> None:
        from distributed import get_worker

        get_worker().log_event(
            self.topic, (self.number, progress.stage.value, progress.note, progress.fraction)
        )

    def wanted(self) -> bool:
        """Return whether the task still runs for somebody: the scheduler has not cancelled it."""
        from distributed import get_worker

        worker = get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
        return task is not None and task.state == "executing"


def run_pickled_task_in_dask_worker(task: bytes) -> tuple[str, Any]:
    """Run a task on a worker; return the worker's address and the result."""
    from distributed import get_worker

    work, request, line = pickle.loads(task)
    return get_worker().address, work(request, line)


_NAME = run_pickled_task_in_dask_worker.__name__
# The scheduler reads tasks too: with builtins and bytes only, it needs no farm.
_CALL = f"__import__({__name__!r}, fromlist=[{_NAME!r}]).{_NAME}(task)"


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """When the scheduler last heard a worker: by its own clock, and when we learned of it."""

    scheduler_time: float
    noticed: float  # seconds of time.monotonic


class _Stranded(Exception):
    """The worker of a task is silent, or all to which it was restricted are gone."""


class DaskEngine(ClusterEngine):
    """The workers of one scheduler. It connects when it gets its first task."""

    def __init__(self, address: str) -> None:
        super().__init__()
        if importlib.util.find_spec("distributed") is None:
            raise UsageError(
                "a cluster needs Dask's distributed",
                f"cluster {address}",
                "pip install 'tvm-farm[cluster]'",
            )
        self.address = address
        self._topic = f"farm-{secrets.token_hex(8)}"
        self._begun, self._ready, self._ended = Lock(), Event(), Event()
        self._watcher: Thread | None = None
        self._client: Client | None = None
        self._executor: Executor | None = None
        self._threads: dict[str, int] = {}  # by address of each worker that is not refused
        self._refused: dict[str, str] = {}  # why, by address
        self._heartbeats: dict[str, _Heartbeat] = {}  # the last one, by address
        self._silent: set[str] = set()
        self._failure: FarmError | None = None
        self._places: dict[int, frozenset[str]] = {}  # where a task may run, by its number
        self._stranded: set[int] = set()

    def slots(self) -> int:
        """Return the number of the workers' threads; 1 before the first task."""
        return max(1, sum(self._threads.values()))

    def submit(self, number: int, work: Work, request: object, prefer: str) -> Future[Any]:
        """Submit a task, to workers of our versions only that are not silent."""
        self._connect()
        if self._failure:
            raise self._failure
        assert self._executor, "connected"
        options: dict[str, Any] = {"key": self._key(number)}
        if self._refused or self._silent:
            while not self._threads:  # until the watcher gives up
                if self._failure or self._ended.wait(_REFRESH_S):
                    raise self._failure or Cancelled
            self._places[number] = frozenset(self._threads)
            options["workers"] = list(self._places[number])
        elif prefer in self._threads:
            options |= {"workers": [prefer], "allow_other_workers": True}
        task = {"task": pickle.dumps((work, request, _Line(self._topic, number)))}
        try:
            return self._executor.submit(eval, _CALL, task, **options)
        except Exception as exc:
            raise self.lost(number, exc) from exc

    def run(
        self, work: Work, request: object, note: Callable[[Progress], None], prefer: str = ""
    ) -> tuple[str, Any]:
        """Carry out a request; again, if its worker is silent or all it may use are gone."""
        while True:
            with contextlib.suppress(_Stranded):
                return super().run(work, request, note, prefer)

    def lost(self, number: int, error: BaseException) -> BaseException:
        """Return the error for a task that Dask gave up; FarmErrors stay as they are."""
        if number in self._stranded and not self._failure:
            return _Stranded()
        if isinstance(error, FarmError):
            return error
        if self._failure:
            return self._failure
        client = self._client
        if client is None or client.status != "running":
            return self._gone(str(error) or type(error).__name__)
        if type(error).__name__ == "KilledWorker":
            fix = "see the logs of the workers, above all whether they had enough memory"
            return BuildError(
                "the cluster's workers died at this task, one after the other",
                str(error)[:600],
                fix,
            )
        why = f"{type(error).__name__}: {error}"[:600]
        return BuildError(
            "the cluster could not carry out this task", why, "see the logs of its workers"
        )

    def close(self) -> None:
        """Close the connection; the scheduler then cancels what we still wait for."""
        self._ended.set()
        if self._watcher:
            self._watcher.join(_CLOSE_S)
        if self._client is not None:
            self._client.close(timeout=_CLOSE_S)
            self._client = None

    def _connect(self) -> None:
        """Connect, once, and wait until the first workers have been checked."""
        with self._begun:
            if self._watcher is None:
                self._watcher = Thread(target=self._watch, name="cluster", daemon=True)
                self._watcher.start()
        if not self._ready.wait(_READY_S):
            raise self._gone(f"no worker has said its versions after {_READY_S:.0f} s")

    def _watch(self) -> None:
        """Connect; then check workers until the scheduler is gone or the engine is closed."""
        try:
            self._open()
            seen = time.monotonic()
            while not self._ended.is_set():
                self._look()
                if self._threads:
                    seen = time.monotonic()
                    self._ready.set()
                else:  # a worker that has died may come back
                    patience_s = (
                        _NO_WORKERS_S
                        if self._ready.is_set()
                        else 0.0
                        if self._refused
                        else _CONNECT_S
                    )
                    if time.monotonic() - seen > patience_s:
                        raise self._no_workers()
                self._ended.wait(_REFRESH_S)
        except FarmError as error:
            self._fail(error)
        except Exception as exc:
            self._fail(self._gone(f"{type(exc).__name__}: {exc}"[:600]))

    def _fail(self, error: FarmError) -> None:
        self._failure = error
        self._ready.set()
        if not self._ended.is_set():
            self.cancel_all()

    def _open(self) -> None:
        import dask
        from distributed import Client

        logging.getLogger("distributed").setLevel(
            logging.CRITICAL
        )  # its faults are told in our words
        # Dask warns of tasks above 10 MB; the files of a model travel in its task.
        dask.config.set({"distributed.admin.large-graph-warning-threshold": _LARGEST_TASK})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._client = Client(self.address, timeout=_CONNECT_S, set_as_default=False)
        self._client.subscribe_topic(self._topic, self._hear)
        self._executor = self._client.get_executor(pure=False)

    def _look(self) -> None:
        """Ask for the workers, and check those that are new."""
        client = self._client
        assert client is not None
        if client.status != "running":
            raise ConnectionError("the connection to it has ended")
        workers = client.scheduler_info(n_workers=-1)["workers"]
        self._listen({address: one["last_seen"] for address, one in workers.items()})
        there = {
            address: one["nthreads"]
            for address, one in workers.items()
            if address not in self._silent
        }
        self._refused = {address: why for address, why in self._refused.items() if address in there}
        new = [
            address
            for address in there
            if address not in self._threads and address not in self._refused
        ]
        answers = client.run(eval, EXPRESSION, workers=new, on_error="return") if new else {}
        known = set(self._threads)
        for address in new:
            if address not in answers or isinstance(answers[address], OSError):
                continue  # it has just gone
            if why := describe_version_difference(answers[address]):
                self._refused[address] = why
                logging.getLogger("farm").warning(
                    "the worker %s of the cluster is refused: %s", address, why
                )
            else:
                known.add(address)
        self._threads = {address: count for address, count in there.items() if address in known}
        stranded = {
            number for number, places in self._places.items() if places.isdisjoint(self._threads)
        }
        if self._silent:
            keys = client.processing(workers=list(self._silent)).values()
            of_silent = {key for some in keys for key in some}
            stranded |= {number for number in self.waiting() if self._key(number) in of_silent}
        for number in stranded:
            self._stranded.add(number)
            if self.cancel(number):
                self._places.pop(number, None)

    def _listen(self, last_seen: dict[str, float]) -> None:
        """Note the workers' heartbeats, and which workers are silent."""
        now, before = time.monotonic(), self._heartbeats
        self._heartbeats = {
            address: before[address]
            if address in before and before[address].scheduler_time == seen
            else _Heartbeat(seen, now)
            for address, seen in last_seen.items()
        }
        limit_s = _SILENT_S + _SILENT_S_PER_WORKER * len(last_seen)
        silent = {
            address
            for address, heartbeat in self._heartbeats.items()
            if now - heartbeat.noticed > limit_s
        }
        for address in silent - self._silent:
            logging.getLogger("farm").warning(
                "the worker %s of the cluster has been silent for %.0f s: its tasks run elsewhere",
                address,
                limit_s,
            )
        self._silent = silent

    def _key(self, number: int) -> str:
        """Return Dask's key of a task."""
        return f"{self._topic}-{number}"

    def _hear(self, event: tuple[float, tuple[int, str, str, float | None]]) -> None:
        """Pass on the progress that a worker reports."""
        number, stage, note, fraction = event[1]
        self.noted(number, Progress(Stage(stage), note, fraction))

    def _gone(self, why: str) -> FarmError:
        fix = "see whether it runs, and run the command again: what is built is kept"
        return BuildError(
            f"the scheduler of the cluster, {self.address}, is gone or cannot be reached", why, fix
        )

    def _no_workers(self) -> FarmError:
        if self._refused:
            why = "\n".join(f"{address}: {why}" for address, why in self._refused.items())
            return BuildError(
                f"every worker of the cluster {self.address} is refused",
                why,
                "install the same versions on the workers",
            )
        fix = f"start some: dask worker {self.address}"
        return BuildError(f"the cluster {self.address} has no workers", "", fix)
