"""How many samples a run takes: no more than complete the time that its plan requires; and what is
read of the device meanwhile.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from farm.executor import measuring
from farm.executor.measuring import _Meter
from farm.processes.workers import TaskContext
from farm.transports import Link
from farm.types import Device, MeasurementSettings, Profile


class SteadyModel:
    """A loaded model whose inferences take the same time, all of which passes here."""

    def __init__(self, inference_s: float) -> None:
        self.inference_s = inference_s
        self.counts: list[int] = []  # of inferences, by call

    def time(self, count: int, block: int = 1) -> list[float]:
        self.counts.append(count * block)
        time.sleep(count * block * self.inference_s)
        return [self.inference_s] * count


def meter_of(model: SteadyModel, plan: MeasurementSettings, folder: Path) -> _Meter:
    """What measures a model by a plan."""
    device = Device("board", Profile("x86", {}, ""), "rpc://board:9090")
    nothing: Any = None
    loaded: Any = model
    return _Meter(TaskContext(folder), device, Link(nothing, native=False), loaded, plan, {})


def sampled(model: SteadyModel, plan: MeasurementSettings, folder: Path) -> _Meter:
    """What has measured a model by a plan."""
    meter = meter_of(model, plan, folder)
    meter.sample(model.inference_s)
    return meter


@pytest.mark.parametrize("block", [1, 10])
def test_the_time_of_all_inferences_of_a_block_counts(block: int, tmp_path: Path) -> None:
    plan = MeasurementSettings(warmup=0, count=1, minimum_s=0.4, block=block)
    meter = sampled(SteadyModel(0.01 / block), plan, tmp_path)
    # A busy machine sleeps for longer, and takes fewer. The sum of 0.01 s may lie just below 0.4 s.
    assert len(meter.seconds) <= 41


def test_a_warm_up_ends_after_its_runs_once_the_latency_is_steady(tmp_path: Path) -> None:
    model = SteadyModel(0.02)
    plan = MeasurementSettings(warmup=20, count=1, minimum_s=0.0, block=1)
    meter = sampled(model, plan, tmp_path)
    assert meter.warm
    # 5 fit into 0.1 s, a window; the last call takes the sample
    assert sum(model.counts[:-1]) == 20


def test_the_share_of_waiting_is_of_the_time_of_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = itertools.count(100.0, 0.25)
    monkeypatch.setattr(
        measuring, "read_device_facts", lambda *_, **__: {"cpu_wait_s": f"{next(waited)}"}
    )
    plan = MeasurementSettings(warmup=0, count=1, minimum_s=0.0, block=1)
    meter = sampled(SteadyModel(0.01), plan, tmp_path)
    assert meter.measured_s and meter.held_up == pytest.approx(0.25 / meter.measured_s)


def test_a_device_cools_down_to_the_heat_of_its_hottest_part_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(degrees: float) -> dict[str, str]:
        return {"temperatures_c": json.dumps({"wifi": 20.0, "cpu": degrees, "disk": 30.0})}

    read, degrees = list[float](), iter([60.0, 50.0, 44.5, 43.5, 42.0])

    def read_next(*_: object, **__: object) -> dict[str, str]:
        read.append(next(degrees))
        return facts(read[-1])

    monkeypatch.setattr(measuring, "read_device_facts", read_next)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    meter = meter_of(SteadyModel(0.01), MeasurementSettings(cooldown_s=60.0), tmp_path)
    meter.seconds = [0.01]
    meter.cool_down(facts(42.0))
    assert read == [60.0, 50.0, 44.5, 43.5]
