"""Inferences in a second, watts and joules: what runs tell, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_runs import timed

from farm import stats
from farm.types import Latency, Run, Verdict

COUNTED = [
    {"gpu_energy_j": "1000.0", "gpu_power_w": "80.0"},
    {"gpu_energy_j": "1010.0", "gpu_power_w": "110.0"},
    {"gpu_power_w": "180.0"},
    {"gpu_energy_j": "1300.0", "gpu_power_w": "160.0"},
]


def measured(
    p50_ms: float, energy_j: float | None, batch: int | None = 8, **changes: object
) -> Run:
    run = timed("h100", "resnet18", 1)
    assert run.samples
    latency = Latency(
        count=20,
        minimum_ms=p50_ms,
        p50_ms=p50_ms,
        mean_ms=p50_ms,
        iqr_ms=0.0,
        p90_ms=None,
        p99_ms=None,
    )
    return replace(
        run,
        samples=replace(run.samples, energy_j=energy_j, measured_s=2.0),
        latency=latency,
        batch=batch,
        **changes,
    )


def test_energy_is_what_the_counter_says_and_else_the_power_since_measuring_began() -> None:
    assert stats.energy_j(COUNTED, 2.0) == pytest.approx(300.0)
    assert stats.energy_j(
        [{"gpu_power_w": reading["gpu_power_w"]} for reading in COUNTED], 2.0
    ) == pytest.approx(300.0)
    assert stats.energy_j(
        [{**reading, "gpu_energy_j": "7.0"} for reading in COUNTED], 2.0
    ) == pytest.approx(300.0)  # a counter that stands


def test_a_device_that_tells_nothing_and_a_measurement_too_short_have_no_energy() -> None:
    assert stats.energy_j([{"load_1m": "0.1"}] * 3, 2.0) is None
    assert stats.energy_j(COUNTED, 0.2) is None
    assert stats.energy_j([], None) is None


def test_a_batch_of_eight_is_eight_inferences() -> None:
    run = measured(4.0, 300.0)
    assert stats.inferences_per_second(run) == pytest.approx(2000.0)
    assert stats.power_w(run) == pytest.approx(150.0)
    assert stats.energy_per_inference_j(run) == pytest.approx(0.075)


def test_without_a_batch_there_is_no_throughput_but_the_energy_of_an_inference() -> None:
    run = measured(4.0, 300.0, batch=None)
    assert stats.inferences_per_second(run) is None
    assert stats.energy_per_inference_j(run) == pytest.approx(0.6)


def test_an_emulator_and_a_failed_run_have_none_of_it() -> None:
    assert stats.inferences_per_second(measured(4.0, None, verdict=Verdict.EMULATED)) is None
    failed = replace(measured(4.0, None), samples=None, latency=None)
    assert (
        stats.inferences_per_second(failed),
        stats.power_w(failed),
        stats.energy_per_inference_j(failed),
    ) == (
        None,
        None,
        None,
    )
