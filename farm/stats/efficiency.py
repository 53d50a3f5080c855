"""What a device gets done, and what that takes: inferences in a second, watts, joules an inference. None where it is not known.

An inference is that of one sample: a batch of eight is eight of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from farm.types import Run

LEAST_S = 0.5  # of measuring: a driver renews its figures some ten times a second, and its power is the mean of a second


def energy_j(readings: Sequence[Mapping[str, str]], seconds: float | None) -> float | None:
    """What the board took in the time of measuring, by its facts in order of time, the first at its begin and the last at its end: by its
    counter of energy or, where it has none, its power since the first."""
    if seconds is None or seconds < LEAST_S:
        return None
    counted = [float(facts["gpu_energy_j"]) for facts in readings if "gpu_energy_j" in facts]
    if len(counted) > 1 and counted[-1] > counted[0]:
        return counted[-1] - counted[0]
    powers = [float(facts["gpu_power_w"]) for facts in readings[1:] if "gpu_power_w" in facts]
    return statistics.fmean(powers) * seconds if powers else None


def power_w(run: Run) -> float | None:
    """The mean power of the whole board while it was measured."""
    samples = run.samples
    return samples.energy_j / samples.measured_s if samples and samples.energy_j is not None and samples.measured_s else None


def per_second(run: Run) -> float | None:
    """Inferences in a second, one batch after the other, by the median latency; only of a batch that was asked for."""
    if run.batch is None or run.emulated or run.latency is None or run.latency.p50_ms <= 0:
        return None
    return 1e3 * run.batch / run.latency.p50_ms


def each_j(run: Run) -> float | None:
    """Joules of the whole board for one inference."""
    power = power_w(run)
    return None if power is None or run.latency is None else 1e-3 * run.latency.p50_ms * power / (run.batch or 1)
