"""Use farm from Python: the commands, as methods of a `Farm`.

    from farm import Farm

    farm = Farm.load("devices.toml")
    result = farm.bench("model.onnx", device="pi5", preset="standard")
    print(result.verdict, result.p50_ms)

    results   `Result` and `Answer`, the return types
    resolve   turn arguments of commands and methods into plans, models, runs and profiles

A device or a model that fails raises a FarmError, which says what happened, why, and how to fix it.
A measured run is a `Result`. Its latencies are available if its verdict allows it; otherwise
reading them raises `UntrustedNumber`. `result.run` holds everything as it was measured.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import this_machine
from farm.api.resolve import (
    check_reservations,
    deadline_from_options_or_preset,
    device_with_options,
    devices_with_reservation,
    find_runs,
    host_profile,
    max_parallel_builds,
    model_with_batch,
    model_with_input_shapes,
    plan_with_overrides,
    resolve_cluster_address,
)
from farm.api.results import Answer, Result
from farm.errors import UsageError, WrongAnswer, error_from_failure
from farm.types import Device, MeasurementSettings, Model, PairedStoppingRule, Run, Verdict

if TYPE_CHECKING:
    import numpy as np

    from farm.cluster import ClusterEngine
    from farm.comparison import RunComparison
    from farm.config import Fleet
    from farm.pipeline import JobsOutcome
    from farm.store import RunStore
    from farm.types import Event, Job, Progress, Value

__all__ = ["Answer", "Farm", "Result"]


@dataclass(frozen=True)
class Farm:
    """A configuration (devices, models, measurement settings) and the database of runs.

    `store` is the URL or path of that database; None uses the configuration's. `kept` is called
    with each run that `bench` and `deploy` store. `cluster` is the address of the cluster that
    builds, or "none"; None uses the configuration's.
    """

    fleet: Fleet
    store: str | None = field(default=None, repr=False)
    kept: Callable[[Run], object] = field(default=lambda _: None, repr=False, compare=False)
    cluster: str | None = None

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        store: str | None = None,
        kept: Callable[[Run], object] = lambda _: None,
        cluster: str | None = None,
    ) -> Farm:
        """Load a devices.toml; without a path, the one that the `farm` command would use.

        Raises ConfigError with all mistakes in the file, FarmError on a system that is not Linux.
        """
        from farm.config import load_fleet

        this_machine.check_system()
        return cls(load_fleet(Path(path) if path is not None else None), store, kept, cluster)

    @property
    def record(self) -> RunStore:
        """Return the database of runs."""
        from farm.store import RunStore

        return RunStore.at(self.store or self.fleet.store)

    def bench(
        self,
        model: str | Path,
        *,
        device: str,
        preset: str | None = None,
        tries: int = 1,
        threads: int | None = None,
        cores: str = "",
        pinned: bool = False,
        shapes: Mapping[str, Sequence[int]] | None = None,
        values: Mapping[str, Value] | None = None,
        batch: int | None = None,
        reservation: int | None = None,
        show: Callable[[Event], None] | None = None,
        **plan: Any,
    ) -> Result:
        """Measure a model on a device, and store the run.

        `model` is a name of devices.toml, a file, or python:package.module:function. `preset` is
        "quick", "standard" or "mlperf". `shapes` are those of inputs that the model leaves open,
        and `values` the inputs that are constants, by name, as with --value: values={"sr": 16000}.
        `batch` builds the model for that many samples per inference. `reservation` is the number of
        one of yours at the device's lab, which has begun: its boards are used. Further arguments
        are fields of `farm.types.MeasurementSettings`, such as count=200 or minimum_s=3. A run that
        is NOISY or THROTTLED is measured again, up to `tries` times in all.

        Raises FarmError if the run fails, UsageError for unknown names and invalid arguments.
        """
        options = {"threads": threads, "cores": cores or None, "pinned": pinned or None}
        (board,) = devices_with_reservation([self.fleet.device(device)], reservation)
        board = device_with_options(board, options)
        if batch is not None and batch < 1:
            raise UsageError(
                f"batch={batch}: no number of samples",
                "an inference takes one at the least",
                "batch=8",
            )
        chosen, how = (
            model_with_batch(
                model_with_input_shapes(self.fleet.model(str(model)), shapes, values), batch
            ),
            plan_with_overrides(self.fleet.bench.plan, preset, plan),
        )
        for number in range(tries):
            run = self._one(board, chosen, how, show, deadline_from_options_or_preset(preset, plan))
            if number == tries - 1 or run.verdict not in (Verdict.NOISY, Verdict.THROTTLED):
                return Result(run)
        raise UsageError(
            f"tries={tries}: no number of tries", "it is measured once at the least", "tries=1"
        )

    def deploy(
        self,
        model: str | Path,
        *,
        device: str,
        shapes: Mapping[str, Sequence[int]] | None = None,
        values: Mapping[str, Value] | None = None,
        reservation: int | None = None,
        show: Callable[[Event], None] | None = None,
    ) -> Result:
        """Build a model for a device, push it, run it once, and install it if its answer is right.

        `shapes`, `values` and `reservation` are as for `bench`. The installed model becomes the
        current release of its name on the device. Raises WrongAnswer if the answer is wrong,
        FarmError if the run fails.
        """
        how = replace(
            MeasurementSettings.once(), deadline_s=self.fleet.bench.plan.deadline_s, install=True
        )
        (board,) = devices_with_reservation([self.fleet.device(device)], reservation)
        run = self._one(
            board,
            model_with_input_shapes(self.fleet.model(str(model)), shapes, values),
            how,
            show,
        )
        if run.verdict is Verdict.WRONG:
            raise WrongAnswer(
                f"{run.title} on {run.device} answers wrong, and was not installed", run.reason, ""
            )
        return Result(run)

    def run(
        self,
        model: str | Path,
        inputs: str | Path | Mapping[str, np.ndarray[Any, Any]],
        *,
        device: str,
        build: bool = False,
        shapes: Mapping[str, Sequence[int]] | None = None,
        values: Mapping[str, Value] | None = None,
        reservation: int | None = None,
        show: Callable[[Progress], None] | None = None,
    ) -> Answer:
        """Run a model on a device with an input, and return its outputs.

        `inputs` are arrays by name, or an image, .npy or .npz file. `shapes`, `values` and
        `reservation` are as for `bench`. If a model of that name is deployed on the device, that
        release runs, unless `build`, `shapes` or `values` is given; otherwise the model is built.
        """
        if isinstance(inputs, Mapping):
            import numpy as np

            with tempfile.TemporaryDirectory(prefix="farm-inputs-") as folder:
                np.savez(path := Path(folder) / "inputs.npz", **inputs)  # type: ignore[arg-type]
                return self.run(
                    model,
                    path,
                    device=device,
                    build=build,
                    shapes=shapes,
                    values=values,
                    reservation=reservation,
                    show=show,
                )
        (chosen,) = devices_with_reservation([self.fleet.device(device)], reservation)
        seconds = self.fleet.deadline_s(chosen)
        asked = (
            model_with_input_shapes(self.fleet.model(str(model)), shapes, values)
            if shapes or values
            else str(model)
        )
        return self.answer(asked, chosen, Path(inputs), deadline_s=seconds, build=build, show=show)

    def history(
        self, model: str | None = None, *, device: str | None = None, limit: int | None = 100
    ) -> list[Run]:
        """Return stored runs, including failed ones, the newest first."""
        return self.record.runs(model=model, device=device, limit=limit)

    def compare(
        self,
        first: str | Result | Run,
        second: str | Result | Run,
        *,
        in_turns: bool = False,
        until: PairedStoppingRule | None = None,
        deadline_s: float | None = None,
        show: Callable[[Progress], None] | None = None,
    ) -> list[RunComparison]:
        """Test whether the second is slower than the first, by how much, and with what confidence.

        Each argument is a run, the name of a baseline, or the beginning of a run's id. Raises
        UsageError if there is none of that name, or if the two have no model on a device in common.

        By default the stored measurements are compared. With `in_turns`, both builds are measured
        again, interleaved: see the method `in_turns`, also for `until` and `deadline_s`.
        """
        from farm import comparison

        if not in_turns and (until or deadline_s):
            name = "until" if until else "deadline_s"
            raise UsageError(
                f"{name}=...: nothing is measured", "kept runs are compared", "in_turns=True"
            )
        pairs = self.pairs(first, second)
        return (
            self.in_turns(pairs, until=until, deadline_s=deadline_s, show=show)
            if in_turns
            else comparison.compare_run_pairs(pairs)
        )

    def pairs(self, first: str | Result | Run, second: str | Result | Run) -> list[tuple[Run, Run]]:
        """Return the pairs of runs that `compare` compares."""
        from farm import comparison

        record = self.record
        sides = [
            find_runs(record, one)
            if isinstance(one, str)
            else [one.run if isinstance(one, Result) else one]
            for one in (first, second)
        ]
        pairs = comparison.pair_runs(*sides)
        if not pairs:
            names = [
                one if isinstance(one, str) else side[0].id
                for one, side in zip((first, second), sides, strict=True)
            ]
            raise UsageError(
                f"{' and '.join(names)} have nothing in common",
                "no model on a device is in both",
                "farm baseline list",
            )
        return pairs

    def in_turns(
        self,
        pairs: Sequence[tuple[Run, Run]],
        *,
        until: PairedStoppingRule | None = None,
        confidence: float | None = None,
        deadline_s: float | None = None,
        show: Callable[[Progress], None] | None = None,
    ) -> list[RunComparison]:
        """Measure the builds of each pair of runs again, interleaved, on the device of both.

        Interleaving exposes both builds to the same disturbances of the machine. `until` is the
        stopping rule, `confidence` the joint confidence of all answers, and `deadline_s` the
        longest that a pair may take in addition to the measurement itself.

        Raises UsageError before anything is measured if a build is no longer in the cache, if the
        runs have different devices or settings, or if the device is emulated. A device that fails,
        or a build with a wrong answer, is the `failure` of its pair.
        """
        from farm import comparison, stats
        from farm.pipeline import compare as pipeline_compare
        from farm.store import open_local_store_over_shared_cache

        store, sure = (
            open_local_store_over_shared_cache(self.fleet.cache),
            confidence or stats.CONFIDENCE,
        )
        contests = [pipeline_compare.pair_of_builds(*pair, self.fleet, store) for pair in pairs]
        length = replace(
            until or PairedStoppingRule(), confidence=1 - (1 - sure) / max(1, len(pairs))
        )

        def limit_s(device: Device) -> float:
            return self.fleet.deadline_s(device, deadline_s)

        measured = pipeline_compare.measure_pairs(
            contests, length, limit_s, store=store, show=show or (lambda _: None)
        )
        return comparison.compare_interleaved_measurements(pairs, measured, sure)

    @contextlib.contextmanager
    def cluster_engine(self) -> Iterator[ClusterEngine | None]:
        """Yield the cluster that builds, and None if there is none.

        Leaving the block cancels its tasks. Raises UsageError if its package is not installed.
        """
        from farm.cluster import open_cluster

        if address := resolve_cluster_address(self.cluster, self.fleet.cluster):
            with open_cluster(address) as engine:
                yield engine
        else:
            yield None

    def execute(
        self,
        jobs: Sequence[Job],
        *,
        show: Callable[[Event], None] | None = None,
        tick: Callable[[], None] | None = None,
        canaries: int = 0,
    ) -> JobsOutcome:
        """Execute many jobs in parallel (see `farm.pipeline.expand_jobs`) and store every run.

        A failed job is returned as a run with a failure. Raises UsageError for a reservation that
        a device cannot use.
        """
        from farm.pipeline import execute_jobs
        from farm.store import open_local_store_over_shared_cache

        check_reservations(job.device for job in jobs)
        record = self.record
        record.ready()
        with self.cluster_engine() as cluster:
            return execute_jobs(
                jobs,
                host=host_profile(self.fleet),
                store=open_local_store_over_shared_cache(self.fleet.cache),
                keep=record,
                slots=max_parallel_builds(),
                show=show or (lambda _: None),
                tick=tick or (lambda: None),
                canaries=canaries,
                cluster=cluster,
            )

    def answer(
        self,
        model: str | Model,
        device: Device,
        source: Path,
        *,
        deadline_s: float,
        build: bool = False,
        show: Callable[[Progress], None] | None = None,
    ) -> Answer:
        """Run a model as `run` does, for a device with its options set and an input file.

        A `Model`, unlike a name, is always built.
        """
        from farm import pipeline
        from farm.inputs import read
        from farm.store import open_local_store_over_shared_cache

        check_reservations([device])
        store, said = open_local_store_over_shared_cache(self.fleet.cache), show or (lambda _: None)
        if isinstance(model, str) and not (build or self.fleet.names_source(model)):
            found = pipeline.infer_deployed(
                model, device, source, store=store, deadline_s=deadline_s, show=said
            )
            if found:
                release, outputs, words = found
                return Answer(
                    model, release.outputs, tuple(outputs), release.labels, release, tuple(words)
                )
        chosen = self.fleet.model(model) if isinstance(model, str) else model
        host = host_profile(self.fleet)
        specs, outputs, words = pipeline.infer(
            chosen, device, source, host=host, store=store, deadline_s=deadline_s, show=said
        )
        labels = tuple(read.read_class_names(chosen.labels)) if chosen.labels else ()
        return Answer(chosen.name, tuple(specs), tuple(outputs), labels, converted=tuple(words))

    def _one(
        self,
        device: Device,
        model: Model,
        plan: MeasurementSettings,
        show: Callable[[Event], None] | None,
        deadline_s: float | None = None,
    ) -> Run:
        from farm.pipeline import expand_jobs

        (run,) = self.execute(expand_jobs([device], [model], plan, deadline_s), show=show).runs
        self.kept(run)
        if run.failure:
            raise error_from_failure(run.failure)
        return run
