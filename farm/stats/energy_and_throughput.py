"""Throughput, power and energy per inference; None if unknown.

An inference is that of one sample: a batch of eight counts as eight inferences.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from farm.types import Run

# Shortest measurement: a driver updates its readings about ten times a second, and its power
# reading is the mean over one second.
LEAST_S = 0.5


def energy_j(readings: Sequence[Mapping[str, str]], seconds: float | None) -> float | None:
    """Return the board's energy in joules during a measurement of `seconds`, or None if unknown.

    `readings` are the board's facts in order of time, the first at the measurement's begin and the
    last at its end. The energy is the difference of the energy counter or, without a counter, the
    mean of the power readings after the first, times the duration.
    """
    if seconds is None or seconds < LEAST_S:
        return None
    counted = [float(facts["gpu_energy_j"]) for facts in readings if "gpu_energy_j" in facts]
    if len(counted) > 1 and counted[-1] > counted[0]:
        return counted[-1] - counted[0]
    powers = [float(facts["gpu_power_w"]) for facts in readings[1:] if "gpu_power_w" in facts]
    return statistics.fmean(powers) * seconds if powers else None


def power_w(run: Run) -> float | None:
    """Return the mean power of the whole board during the measurement, in watts."""
    samples = run.samples
    return (
        samples.energy_j / samples.measured_s
        if samples and samples.energy_j is not None and samples.measured_s
        else None
    )


def inferences_per_second(run: Run) -> float | None:
    """Return inferences per second with one batch after the other, from the median latency.

    It is None for a run without a requested batch.
    """
    if run.batch is None or run.emulated or run.latency is None or run.latency.p50_ms <= 0:
        return None
    return 1e3 * run.batch / run.latency.p50_ms


def energy_per_inference_j(run: Run) -> float | None:
    """Return the energy of the whole board for one inference, in joules."""
    power = power_w(run)
    return (
        None
        if power is None or run.latency is None
        else 1e-3 * run.latency.p50_ms * power / (run.batch or 1)
    )
