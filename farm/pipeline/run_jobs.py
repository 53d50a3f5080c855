"""Run deploy and bench: expand to jobs, build each unique thing once, run each job when ready.

    prepare(model) ─> build(model, profile) ─┐
                             agent(machine) ─┴─> measure(device, model)

There is one worker per device, a process or a thread, and a few processes for building. Deploy and
bench differ only in their plan. A failed job does not stop the others; every run is stored as soon
as it is known.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from farm import __version__, stats, transports
from farm.compiler import build_digests
from farm.errors import FarmError, UnavailableError, UsageError
from farm.pipeline.interleaving import FinishedRounds, limit_uninterleaved_jobs_to_one_round
from farm.pipeline.job_dependencies import (
    AgentKey,
    BuildKey,
    Key,
    PrepareKey,
    TaskOutcomes,
    build_key,
    can_build_remotely,
    job_dependency_keys,
    model_for_profile,
    prepare_key,
    unique_keys_in_build_order,
)
from farm.pipeline.operations import unusable_state_error
from farm.pipeline.worker_tasks import (
    AGENT_S,
    BUILD_S,
    PREPARE_S,
    add_build_and_process_times,
    build_agent_task,
    build_model_task,
    find_build_task,
    find_built_agent,
    find_prepared_model_task,
    measure_job_task,
    open_pool,
    prepare_model_task,
)
from farm.processes.workers import Message, MessageKind, WorkerPool, thread_map
from farm.store import RunStore, Store
from farm.types import (
    Artifact,
    BuildWithAgent,
    Device,
    DeviceResults,
    Event,
    Job,
    Latency,
    MeasurementSettings,
    Model,
    PreparedModel,
    Profile,
    Progress,
    Run,
    Stage,
    Verdict,
)

if TYPE_CHECKING:
    from farm.cluster import ClusterEngine

_TICK_S = 0.1
# Jobs whose devices are driven by threads of this process at once. More would only wait for its
# one interpreter, and for each other within their deadlines.
MOST_THREADS = 200
_LOOKING = "store"  # the slot that looks for what is there already


@dataclass(frozen=True, slots=True)
class WallTimes:
    """Wall time in seconds: the whole, until the last build was done, and each device at work."""

    wall_s: float
    builds_s: float
    devices: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobsOutcome:
    """All runs in the order of the jobs, the builds made for them, and the wall time."""

    runs: tuple[Run, ...]
    artifacts: tuple[Artifact, ...]
    ledger: WallTimes

    @property
    def good(self) -> bool:
        """Return True if every run has a right answer."""
        return all(run.good for run in self.runs)


def expand_jobs(
    devices: Iterable[Device],
    models: Iterable[Model],
    plan: MeasurementSettings,
    deadline_s: float | None = None,
) -> list[Job]:
    """Return a job for every model on every device.

    A device's own deadline overrides the plan's, and `deadline_s` overrides both. Raises UsageError
    for two models of one name on a device, because a run is identified by its device and that name.
    """
    models, jobs = list(models), []
    for device in devices:
        device_plan = replace(plan, deadline_s=deadline_s or device.deadline_s or plan.deadline_s)
        jobs += [
            Job(device, model_for_profile(model, device.profile), device_plan) for model in models
        ]
    first: dict[tuple[str, str], Job] = {}
    for job in jobs:
        if (other := first.setdefault((job.device.name, job.title), job)) is not job:
            why = f"{other.model.source} and {job.model.source}"
            raise UsageError(
                f"two models go by the name {job.title} on {job.device.name}",
                why,
                "leave one of them out",
            )
    return limit_uninterleaved_jobs_to_one_round(jobs)


def execute_jobs(
    jobs: Sequence[Job],
    *,
    host: Profile,
    store: Store,
    keep: RunStore,
    slots: int,
    show: Callable[[Event], None],
    tick: Callable[[], None],
    canaries: int = 0,
    cluster: ClusterEngine | None = None,
) -> JobsOutcome:
    """Run all jobs. `host` is the profile of this machine, `slots` how many builds run at once.

    With a `cluster`, its workers make the imports and builds that another machine can make.

    `show` is called with every event, `tick` at short intervals. With `canaries`, the jobs of the
    first `canaries` devices run first, and those of the other devices only if all of these were
    good; else they are skipped. A job that fails raises nothing: its run holds the failure. Ctrl-C
    ends every process that was started here.
    """
    with open_pool(store) as pool:
        first = list(dict.fromkeys(job.device.name for job in jobs))[:canaries]
        runner = _JobRunner(jobs, host, store, keep, slots, show, pool, frozenset(first), cluster)
        while runner.unfinished:
            runner.assign()
            for message in pool.messages(_TICK_S):
                runner.on_message(message)
            tick()
        return runner.outcome()


@dataclass(frozen=True, slots=True)
class _LookUp:
    """A search in the store for what a key names."""

    key: PrepareKey | BuildKey


@dataclass
class _JobRunner:
    """The state of one execution: the results of builds, the running tasks, the finished runs."""

    jobs: Sequence[Job]
    host: Profile
    store: Store
    keep: RunStore
    slots: int
    show: Callable[[Event], None]
    pool: WorkerPool
    canaries: frozenset[str] = frozenset()  # names of devices
    cluster: ClusterEngine | None = None
    _outcomes: TaskOutcomes = field(default_factory=TaskOutcomes)
    _sought: list[PrepareKey | BuildKey] = field(
        default_factory=list
    )  # may be in the store already
    _todo: list[Key] = field(default_factory=list)
    # by worker, with the start time
    _running: dict[str, tuple[Key | _LookUp | Job, float]] = field(default_factory=dict)
    _runs: dict[tuple[str, str], Run] = field(default_factory=dict)  # by device and title
    _travelling: dict[PrepareKey, bool] = field(default_factory=dict)
    _turns: FinishedRounds = field(default_factory=FinishedRounds)
    _waiting: list[Job] = field(default_factory=list)
    _driving: int = 0  # jobs that threads run
    _lanes: Mapping[str, int] = field(default_factory=dict)  # of a lab's boards, by device
    _device_s: dict[str, float] = field(default_factory=dict)
    _begin: float = field(default_factory=time.monotonic)
    _built: float = 0.0

    def __post_init__(self) -> None:
        self._models = {job.model.name: job.model for job in self.jobs}
        self._profiles = {job.device.profile.name: job.device.profile for job in self.jobs}
        # Each device is queried once: a board may refuse repeated connections.
        devices = list({job.device.name: job.device for job in self.jobs}.values())
        states = dict(
            zip(
                (device.name for device in devices),
                thread_map(transports.probe_state, devices),
                strict=True,
            )
        )
        self._lanes = _lanes([device for device in devices if states[device.name].usable])
        # Rounds of several models are interleaved on one board; boards of a lab are several
        self.jobs = [
            replace(job, plan=replace(job.plan, rounds=1))
            if self._lanes.get(job.device.name, 1) > 1
            else job
            for job in self.jobs
        ]
        for job in self.jobs:
            state = states[job.device.name]
            if state.usable:
                self._waiting.append(job)
                self._emit(job, Stage.WAITING)
            else:
                error = unusable_state_error(job.device, state)
                self._finish(job, Verdict.UNAVAILABLE, state.why, error=error)
        keys = unique_keys_in_build_order(
            key for job in self._waiting for key in job_dependency_keys(job)
        )
        agents = [key for key in keys if isinstance(key, AgentKey)]
        for key in agents:
            if agent := find_built_agent(key.architecture, self.store.root):
                self._outcomes.add(key, agent)
        self._todo = [key for key in agents if key not in self._outcomes]
        self._sought = [key for key in keys if not isinstance(key, AgentKey)]

    @property
    def unfinished(self) -> bool:
        """Return True while any job has no run yet."""
        return len(self._runs) < len(self.jobs)

    def assign(self) -> None:
        """Assign to every idle worker the next task whose dependencies are done."""
        if self.pool.idle(_LOOKING) and (
            sought := next((key for key in self._sought if self._ready(key)), None)
        ):
            self._sought.remove(sought)
            self._start_look_up(sought)
        for number in range(self.slots):
            slot = f"build-{number + 1}"
            if self.pool.idle(slot) and (key := self._next_to_build(travels=False)):
                self._todo.remove(key)
                self._start_build(slot, key)
        self._assign_to_cluster()
        may_follow = self._release_or_skip()
        for job in list(self._waiting):
            in_thread = transports.runs_in_thread(job.device)
            if in_thread and self._driving >= MOST_THREADS:
                continue
            idle = self._idle_slot(job.device)
            free = may_follow or job.device.name in self.canaries
            if idle and free and self._may_start(job) and self._turns.may_begin(job, self._waiting):
                self._waiting.remove(job)
                self._start_job(idle, job, in_thread)

    def _idle_slot(self, device: Device) -> str | None:
        """Return a slot of a device that has nothing to do; boards of a lab have one each."""
        slots = [f"device-{device.name}"]
        slots += [
            f"device-{device.name}-{n + 1}" for n in range(1, self._lanes.get(device.name, 1))
        ]
        return next((slot for slot in slots if self.pool.idle(slot)), None)

    def _assign_to_cluster(self) -> None:
        """Give every place of the cluster that is free the next build that may travel."""
        if self.cluster is None or self._next_to_build(travels=True) is None:
            return
        for number in range(self.cluster.slots()):
            slot = f"cluster-{number + 1}"
            if self.pool.idle(slot):
                if (key := self._next_to_build(travels=True)) is None:
                    return
                self._todo.remove(key)
                self._start_on_cluster(slot, key)

    def _next_to_build(self, *, travels: bool) -> Key | None:
        """Return the first key that can be built now, on the cluster or on this machine."""
        return next(
            (key for key in self._todo if self._travels(key) is travels and self._ready(key)), None
        )

    def _travels(self, key: Key) -> bool:
        """Return whether a worker of the cluster builds what a key names."""
        if self.cluster is None or isinstance(key, AgentKey):
            return False
        if isinstance(key, BuildKey):
            return can_build_remotely(self._profiles[key.profile])
        if key not in self._travelling:
            from farm.pipeline.cluster.imports import can_import_remotely

            self._travelling[key] = can_import_remotely(
                self._models[key.model], self.host, self._wanted_profiles(key)
            )
        return self._travelling[key]

    def _wanted_profiles(self, key: PrepareKey) -> tuple[Profile, ...]:
        """Return the profiles for which waiting jobs need a model, by name."""
        wanted = {one.profile for one in map(build_key, self._waiting) if one.model == key.model}
        return tuple(self._profiles[name] for name in sorted(wanted))

    def _release_or_skip(self) -> bool:
        """Return True if jobs of devices other than the canaries may start.

        If a canary has failed, finish these jobs as skipped.
        """
        if not self.canaries:
            return True
        done = [
            self._runs.get((job.device.name, job.title))
            for job in self.jobs
            if job.device.name in self.canaries
        ]
        if any(run and not run.good for run in done):
            for job in [job for job in self._waiting if job.device.name not in self.canaries]:
                self._waiting.remove(job)
                self._finish(job, Verdict.SKIPPED, "not begun: a canary failed")
        return all(run and run.good for run in done)

    def on_message(self, message: Message) -> None:
        """Process a message of a worker: progress, a result or a failure."""
        work, begin = self._running[message.slot]
        if isinstance(work, _LookUp):
            del self._running[message.slot]
            if message.value is None:
                self._todo.append(work.key)
                return
            work = work.key
        elif message.kind is MessageKind.NOTE:
            for job in [work] if isinstance(work, Job) else self._jobs_waiting_on(work):
                self._emit(job, message.value.stage, message.value)
            return
        else:
            del self._running[message.slot]
        now = time.monotonic()
        if not isinstance(work, Job):
            self._outcomes.add(work, message.value)
            self._built = now - self._begin
            self._fail_dependents(work)
            for job in self._waiting:
                if work in job_dependency_keys(job):
                    self._emit(job, Stage.READY if self._may_start(job) else Stage.WAITING)
            return
        self._driving -= transports.runs_in_thread(work.device)
        self._device_s[work.device.name] = self._device_s.get(work.device.name, 0.0) + now - begin
        if message.kind is MessageKind.DONE:
            parts = () if self._turns.of(work) else self._inputs_of(work)
            if samples := self._turns.take(
                work, add_build_and_process_times(message.value, parts, now - begin)
            ):
                self._judge(work, samples)
            else:
                self._waiting.append(work)
                self._emit(work, Stage.READY)
        else:
            lent = isinstance(message.value, UnavailableError)
            verdict = Verdict.UNAVAILABLE if lent else Verdict.FAILED
            self._finish(work, verdict, message.value.what, error=message.value)

    def outcome(self) -> JobsOutcome:
        """Return all runs, builds and times; every job must have its run."""
        runs = tuple(self._runs[job.device.name, job.title] for job in self.jobs)
        return JobsOutcome(
            runs,
            self._outcomes.artifacts(),
            WallTimes(time.monotonic() - self._begin, self._built, self._device_s),
        )

    def _inputs_of(self, job: Job) -> tuple[PreparedModel, Artifact]:
        """Return the import and the build of a job for which both succeeded."""
        prepared, artifact = (
            self._outcomes.prepared(prepare_key(job)),
            self._outcomes.artifact(build_key(job)),
        )
        assert prepared and artifact, "a job starts after its import and its build"
        return prepared, artifact

    def _may_start(self, job: Job) -> bool:
        return all(key in self._outcomes for key in job_dependency_keys(job))

    def _ready(self, key: Key) -> bool:
        return (
            not isinstance(key, BuildKey)
            or self._outcomes.prepared(PrepareKey(key.model)) is not None
        )

    def _start_look_up(self, key: PrepareKey | BuildKey) -> None:
        """Look in the store for what a key names: a thread suffices for this."""
        self._running[_LOOKING] = (_LookUp(key), time.monotonic())
        if isinstance(key, PrepareKey):
            arguments: tuple[Any, ...] = (
                find_prepared_model_task,
                self._models[key.model],
                self.store.root,
            )
        else:
            prepared, profile = (
                self._outcomes.prepared(PrepareKey(key.model)),
                self._profiles[key.profile],
            )
            arguments = (find_build_task, prepared, profile, self.store.root)
        self.pool.assign(
            _LOOKING, *arguments, deadline_s=PREPARE_S, task=f"looking for {key.model}", thread=True
        )

    def _start_build(self, slot: str, key: Key) -> None:
        self._running[slot] = (key, time.monotonic())
        if isinstance(key, AgentKey):
            task = f"building the agent for {key.architecture}"
            self.pool.assign(
                slot,
                build_agent_task,
                key.architecture,
                self.store.root,
                AGENT_S,
                deadline_s=AGENT_S,
                task=task,
            )
        elif isinstance(key, PrepareKey):
            model = self._models[key.model]
            arguments = (model, self.host, self.store, self._wanted_profiles(key))
            self.pool.assign(
                slot,
                prepare_model_task,
                *arguments,
                deadline_s=PREPARE_S,
                task=f"importing {model.name}",
            )
        else:
            prepared, profile = (
                self._outcomes.prepared(PrepareKey(key.model)),
                self._profiles[key.profile],
            )
            task = f"compiling {key.model} for {key.profile}"
            self.pool.assign(
                slot,
                build_model_task,
                self._models[key.model],
                prepared,
                profile,
                self.store,
                deadline_s=BUILD_S,
                task=task,
            )

    def _start_on_cluster(self, slot: str, key: Key) -> None:
        from farm.pipeline.cluster.builds import build_on_cluster
        from farm.pipeline.cluster.imports import request_import_from_cluster
        from farm.pipeline.cluster.task_transfer import ELSEWHERE_S

        assert not isinstance(key, AgentKey), "what travels"
        self._running[slot] = (key, time.monotonic())
        model = self._models[key.model]
        if isinstance(key, PrepareKey):
            task = f"importing {key.model} on the cluster"
            arguments: tuple[Any, ...] = (
                request_import_from_cluster,
                model,
                self.host,
                self.store,
                self.cluster,
            )
        else:
            task = f"compiling {key.model} for {key.profile} on the cluster"
            prepared, profile = (
                self._outcomes.prepared(PrepareKey(key.model)),
                self._profiles[key.profile],
            )
            arguments = (
                build_on_cluster,
                model,
                prepared,
                profile,
                self.store,
                self.cluster,
            )
        self.pool.assign(slot, *arguments, deadline_s=ELSEWHERE_S, task=task, thread=True)

    def _start_job(self, slot: str, job: Job, in_thread: bool) -> None:
        agent = self._outcomes.agent(AgentKey(job.device.profile.agent or ""))
        self._running[slot] = (job, time.monotonic())
        arguments = (
            job.device,
            BuildWithAgent(job.model, *self._inputs_of(job), agent),
            self._turns.plan_of(job),
            self.store.root,
        )
        self.pool.assign(
            slot,
            measure_job_task,
            *arguments,
            deadline_s=job.plan.deadline_s + transports.max_board_wait_s(job.device),
            task=f"{job.title} on {job.device.name}",
            here=job.device.on_this_machine,
            thread=in_thread,
        )
        self._driving += in_thread

    def _jobs_waiting_on(self, key: Key) -> list[Job]:
        """Return the waiting jobs for which to show the progress of a build task.

        The progress of an agent's build is shown for a job only while nothing else is built for it.
        """
        busy = {
            other
            for other, _ in self._running.values()
            if isinstance(other, (PrepareKey, BuildKey))
        }
        waiting = [job for job in self._waiting if key in job_dependency_keys(job)]
        return [
            job
            for job in waiting
            if not isinstance(key, AgentKey) or not busy.intersection(job_dependency_keys(job))
        ]

    def _fail_dependents(self, key: Key) -> None:
        """Finish, as failed, all waiting jobs that depend on a task that failed."""
        error = self._outcomes.error(key)
        if error is None:
            return
        if isinstance(key, PrepareKey):
            self._todo = [
                other
                for other in self._todo
                if not (isinstance(other, BuildKey) and other.model == key.model)
            ]
            self._sought = [
                other
                for other in self._sought
                if not (isinstance(other, BuildKey) and other.model == key.model)
            ]
        for job in [job for job in self._waiting if key in job_dependency_keys(job)]:
            self._waiting.remove(job)
            self._finish(job, Verdict.FAILED, error.what, error=error)

    def _judge(self, job: Job, samples: DeviceResults) -> None:
        """Finish a job with the latency and the verdict of its samples."""
        try:
            latency = (
                stats.summarize_latency(samples.seconds, samples.block) if samples.seconds else None
            )
        except FarmError as error:  # the samples are not plausible times
            self._finish(job, Verdict.FAILED, error.what, error=error)
            return
        verdict, reason = stats.judge(job.device.emulated, samples, latency, job.plan)
        self._finish(job, verdict, reason, samples=samples, latency=latency)

    def _finish(
        self,
        job: Job,
        verdict: Verdict,
        reason: str,
        *,
        samples: DeviceResults | None = None,
        latency: Latency | None = None,
        error: FarmError | None = None,
    ) -> None:
        """Store the run of a job and show it."""
        prepared, artifact = (
            self._outcomes.prepared(prepare_key(job)),
            self._outcomes.artifact(build_key(job)),
        )
        run = Run(
            id=uuid.uuid4().hex[:12],
            device=job.device.name,
            model=job.model.name,
            profile=job.device.profile.name,
            url=job.device.url,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            verdict=verdict,
            reason=reason,
            artifact_digest=artifact.digest if artifact else None,
            samples=samples,
            latency=latency,
            reference_correct=prepared.reference_correct if prepared else None,
            reference_total=prepared.reference_total if prepared else None,
            versions={"farm": __version__, **build_digests.compiler_package_versions()},
            failure=error.as_failure() if error else None,
            threads=None
            if (threads := job.device.options.get("threads")) is None
            else int(threads),
            cores=str(job.device.options.get("cores", "")),
            pinned=bool(job.device.options.get("pinned")),
            model_digest=prepared.digest if prepared else None,
            batch=job.model.batch,
        )
        self.keep.keep(run)
        self._runs[job.device.name, job.title] = run
        stage = (
            Stage.FAILED
            if verdict in (Verdict.FAILED, Verdict.UNAVAILABLE, Verdict.SKIPPED)
            else Stage.DONE
        )
        self.show(Event(job.device.name, job.title, stage, reason, 1.0, run))

    def _emit(self, job: Job, stage: Stage, progress: Progress | None = None) -> None:
        note, fraction = (progress.note, progress.fraction) if progress else ("", None)
        self.show(Event(job.device.name, job.title, stage, note, fraction))


def _lanes(devices: Sequence[Device]) -> dict[str, int]:
    """Return how many boards of a lab are free for each device, by its name; at least 1.

    A lab that does not answer is reported by the job that asks it for a board.
    """

    def lanes(device: Device) -> int:
        try:
            return transports.max_parallel_jobs(device)
        except FarmError:
            return 1

    leased = [device for device in devices if transports.max_board_wait_s(device)]
    counts = thread_map(lanes, leased)
    return dict(zip((device.name for device in leased), counts, strict=True))
