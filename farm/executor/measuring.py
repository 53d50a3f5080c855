"""Measure one job on a device: its answer, its latency by the device's clock, and its accuracy."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farm import checked_model_import, data, deployments, stats
from farm.executor.batches import run_samples_in_batches
from farm.executor.loading import (
    LoadedModel,
    connect_and_load_model,
    pause_other_workers,
    read_device_facts,
)
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext
from farm.time_ledger import add_block_duration
from farm.transports import Link
from farm.types import (
    Agreement,
    BuildWithAgent,
    Device,
    DeviceResults,
    MeasurementSettings,
    Model,
    OutputErrorLimits,
    PreparedModel,
    Progress,
    Stage,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_BATCH_S, _LONGEST_BATCH_S = 0.25, 2.0  # seconds of samples between two progress notes
_ON_THE_WAY = 0.005  # largest share of the time for the RPC round trips of batches
_LOOK_AGAIN = 1.15  # factor on the elapsed time, after which the precision is computed again
_FACTS_EVERY_S = 1.0
_MOST_FACTS = 40  # readings; if there are more, every second one is dropped
_WINDOW_S = 0.1  # one window of the warm-up
_LEAST_SAMPLE_S = 1e-3  # shorter inferences are timed in blocks
_COOLER_BY_C = 2.0  # a device is cool again at most this far above its earlier temperature
_CHANGING = (
    *(
        "frequency_khz",
        "temperatures_c",
        "throttled",
        "load_1m",
        "memory_available_bytes",
        "cpu_wait_s",
        "time_s",
    ),
    *(
        "gpu_clock_khz",
        "gpu_memory_clock_khz",
        "gpu_power_w",
        "gpu_energy_j",
        "gpu_slowed_by",
        "gpu_memory_free_bytes",
    ),
)
_NOTE_EVERY_S = 0.5


def measure_job(
    context: TaskContext, device: Device, fitted: BuildWithAgent, plan: MeasurementSettings
) -> DeviceResults:
    """Run one job: check the answer, sample the latency, classify the labelled samples.

    Installs the model if the plan asks for it and the answer is right and good enough. Raises
    DeviceError and its subclasses.
    """
    ledger: dict[str, float] = {}
    begin = time.perf_counter()
    with ExitStack() as stack:
        with add_block_duration(ledger, "reference"):
            inputs, expected = checked_model_import.read_reference_inputs_and_outputs(
                fitted.prepared
            )
        loaded, link, uploaded = connect_and_load_model(
            stack, context, device, fitted.artifact, fitted.agent, plan.deadline_s, ledger
        )
        meter = _Meter(context, device, link, loaded, plan, ledger)
        before = meter.facts()
        first_s, agreement = run_and_check_first_inference(
            context, loaded, fitted.limits, inputs, expected, ledger, record=True
        )
        meter.sample(first_s)
        correct, total = _classify(context, loaded, fitted.model, fitted.prepared, plan, ledger)
        with add_block_duration(ledger, "install"):
            good = agreement.right and not stats.missed_accuracy_requirement_reason(
                plan, agreement, correct, total
            )
            release = (
                deployments.install(link, fitted.model, fitted.artifact)
                if plan.install and link.native and good
                else None
            )
        after = meter.facts()
        meter.cool_down(before)
        closing = time.perf_counter()
    end = time.perf_counter()
    ledger["close"] = end - closing
    return DeviceResults(
        seconds=tuple(meter.seconds),
        first_s=first_s,
        agreement=agreement,
        correct=correct,
        total=total,
        facts_before=before,
        facts_after=after,
        ledger=ledger,
        uploaded=uploaded,
        release=release,
        held_up=meter.held_up,
        block=meter.block,
        warm=meter.warm,
        measured_s=meter.measured_s,
        facts_during=tuple(meter.during),
        wall_s=end - begin,
        memory_peak_bytes=int(float(after["memory_peak_bytes"]))
        if "memory_peak_bytes" in after
        else None,
        energy_j=stats.energy_j(meter.during, meter.measured_s),
    )


def run_and_check_first_inference(
    context: TaskContext,
    loaded: LoadedModel,
    limits: OutputErrorLimits,
    inputs: dict[str, Array],
    expected: list[Array],
    ledger: dict[str, float],
    *,
    record: bool = False,
) -> tuple[float, Agreement]:
    """Run the first inference and check its answer; return its seconds and the agreement.

    The seconds are by the host's clock. With `record`, the kernel launches are then
    captured as a CUDA graph, if the device can, and the checked answer is that of the inference
    after the first.
    """
    with add_block_duration(ledger, "feed"):
        loaded.feed(inputs)
    with add_block_duration(ledger, "progress"):
        context.note(Progress(Stage.RUNNING, "first inference"))
    begin = time.perf_counter()
    with add_block_duration(ledger, "first run"):
        loaded.run()
    first_s = time.perf_counter() - begin
    if record and loaded.recordable:
        with add_block_duration(ledger, "record"):
            loaded.record()
    with add_block_duration(ledger, "read-back"):
        outputs = loaded.outputs()
    with add_block_duration(ledger, "check"):
        return first_s, stats.compare_outputs_with_reference(outputs, expected, limits)


@dataclass
class _Meter:
    """Times a loaded model.

    `seconds` are its samples, each the mean of a `block` of inferences; `during` holds the facts
    read meanwhile.
    """

    context: TaskContext
    device: Device
    link: Link
    loaded: LoadedModel
    plan: MeasurementSettings
    ledger: dict[str, float]
    seconds: list[float] = field(default_factory=list)
    during: list[dict[str, str]] = field(default_factory=list)
    held_up: float | None = None
    warm: bool | None = None
    measured_s: float | None = None
    block: int = 1
    _look_again_s: float = 0.0

    def facts(self, *, system: bool = True) -> dict[str, str]:
        """Return the device's facts and add the time of reading them to the ledger."""
        with add_block_duration(self.ledger, "facts"):
            return read_device_facts(self.link, system=system)

    def sample(self, first_s: float) -> None:
        """Take samples until there are enough, over a long enough time.

        Nothing else of farm runs on this machine meanwhile if the device is this machine. Also sets
        the share of the time in which other work had the CPU. An emulated device is not sampled,
        because the times would be those of the emulator.
        """
        if self.plan.maximum_s <= 0 or self.device.emulated:
            return
        with ExitStack() as stack:
            with add_block_duration(self.ledger, "wait for quiet"):
                stack.enter_context(pause_other_workers(self.context, self.device))
            typical = self._warm_up(first_s)
            self.block = self.plan.block or 1
            if typical < _LEAST_SAMPLE_S and not self.plan.block:
                self.block = math.ceil(_LEAST_SAMPLE_S / max(typical, 1e-7))
            self._take_samples(typical * self.block)

    def _warm_up(self, typical: float) -> float:
        """Run until the latency has settled (see `stats.settled`) or the time for that is over.

        Returns the seconds of an inference.
        """
        if not self.plan.warmup:
            return typical
        with add_block_duration(self.ledger, "progress"):
            self.context.note(Progress(Stage.MEASURING, "warming up"))
        windows: list[list[float]] = []
        deadline = Deadline(self.plan.warmup_s)
        with add_block_duration(self.ledger, "warm-up"):
            while True:
                windows.append(self.loaded.time(_count(_WINDOW_S, typical)))
                typical = statistics.median(windows[-1])
                self.warm = stats.is_warmed_up(windows)
                if sum(map(len, windows)) >= self.plan.warmup and (self.warm or deadline.expired):
                    return typical

    def _take_samples(self, typical: float) -> None:
        """Take the samples. `typical` is the length of a sample in seconds."""
        plan, begin, waiting = self.plan, time.perf_counter(), self._read_facts()
        batch_s = _BATCH_S
        while (elapsed := time.perf_counter() - begin) < plan.maximum_s:
            enough = min(
                len(self.seconds) / plan.count, elapsed / plan.minimum_s if plan.minimum_s else 1.0
            )
            if self.seconds and (
                (enough >= 1 and self._sure(elapsed)) or len(self.seconds) >= plan.most
            ):
                break
            done = enough if enough < 1 else elapsed / plan.maximum_s
            with add_block_duration(self.ledger, "progress"):
                self.context.note(Progress(Stage.MEASURING, f"{len(self.seconds)} samples", done))
            batch_begin = time.perf_counter()
            count = min(plan.most, _count(batch_s, typical))
            if enough < 1:
                count = min(count, self._missing_samples(typical))
            batch = self.loaded.time(count, self.block)
            # The device runs one more inference, untimed, before the first.
            compute = math.fsum(batch) * (self.block + 1 / len(batch))
            on_the_way = time.perf_counter() - batch_begin - compute
            _add(self.ledger, "compute", compute)
            _add(self.ledger, "RPC", on_the_way)
            batch_s = min(_LONGEST_BATCH_S, max(_BATCH_S, on_the_way / _ON_THE_WAY))
            self.seconds += batch
            typical = statistics.median(batch) * self.block
            if time.monotonic() - float(self.during[-1]["host_s"]) > _FACTS_EVERY_S:
                self._read_facts()
        self.measured_s = time.perf_counter() - begin
        waited = self._read_facts()
        self.held_up = (
            None if waited is None or waiting is None else (waited - waiting) / self.measured_s
        )

    def _missing_samples(self, typical: float) -> int:
        """Return how many samples of `typical` seconds the plan still requires; at least 1."""
        missing_s = self.plan.minimum_s - math.fsum(self.seconds) * self.block
        for_time = math.ceil(missing_s / max(typical, 1e-6))
        return max(1, self.plan.count - len(self.seconds), for_time)

    def _sure(self, elapsed_s: float) -> bool:
        """Return True if the median is as precise as the plan requires.

        The computation takes some time and is therefore repeated only now and then.
        """
        if self.plan.precision is None:
            return True
        if elapsed_s < self._look_again_s:
            return False
        with add_block_duration(self.ledger, "judging"):
            self._look_again_s = _LOOK_AGAIN * elapsed_s
            return stats.median_relative_standard_error(self.seconds) <= self.plan.precision

    def _read_facts(self) -> float | None:
        """Store the facts that change; return the seconds in which the session waited for a CPU.

        The seconds are the total so far: the session was ready to run and other work had the CPU.
        None if the device does not report them.
        """
        facts = self.facts(system=False)
        self.during.append(
            {
                **{name: facts[name] for name in _CHANGING if name in facts},
                "host_s": f"{time.monotonic():.3f}",
            }
        )
        if len(self.during) > _MOST_FACTS:
            del self.during[1::2]
        return float(facts["cpu_wait_s"]) if "cpu_wait_s" in facts else None

    def cool_down(self, before: Mapping[str, str]) -> None:
        """Wait until the device is as cool as before, so that its next job starts like this one."""
        deadline, target = Deadline(self.plan.cooldown_s), _hottest(before)
        if target is None or not self.seconds:
            return
        with add_block_duration(self.ledger, "cool-down"):
            while (
                not deadline.expired
                and (now := _hottest(read_device_facts(self.link, system=False))) is not None
                and now > target + _COOLER_BY_C
            ):
                self.context.note(
                    Progress(Stage.MEASURING, f"cooling down, {now:.0f} °C of {target:.0f} °C")
                )
                time.sleep(min(1.0, deadline.remaining))


def _count(seconds: float, each_s: float) -> int:
    """Return how many inferences of `each_s` seconds fit into `seconds`: 1 to 10,000."""
    return max(1, min(10_000, int(seconds / max(each_s, 1e-6))))


def _add(ledger: dict[str, float], part: str, seconds: float) -> None:
    ledger[part] = ledger.get(part, 0.0) + seconds


def _hottest(facts: Mapping[str, str]) -> float | None:
    return max(json.loads(facts.get("temperatures_c", "{}")).values(), default=None)


def _classify(
    context: TaskContext,
    loaded: LoadedModel,
    model: Model,
    prepared: PreparedModel,
    plan: MeasurementSettings,
    ledger: dict[str, float],
) -> tuple[int | None, int | None]:
    """Return how many labelled samples the device classifies right, and of how many.

    Both are None if the model has no data set or the plan takes no samples of it.
    """
    if model.dataset is None or plan.dataset_limit == 0:
        return None, None
    correct = 0
    with add_block_duration(ledger, "accuracy"):
        samples = data.open_labelled_data_set(
            model.dataset, model, prepared.inputs, prepared.outputs
        )
        chosen = samples.spread(plan.dataset_limit)  # a folder's samples come class by class
        total = len(chosen)
        told = -math.inf
        for number, (sample, output) in enumerate(
            run_samples_in_batches(loaded, samples.read(chosen))
        ):
            if time.monotonic() - told > _NOTE_EVERY_S:
                told = time.monotonic()
                context.note(Progress(Stage.ACCURACY, f"{number} of {total}", number / total))
            correct += int(output.argmax() == sample.label)
    return correct, total
