"""How many samples a run takes: no more than complete the time that its plan requires."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from farm.executor.measuring import _Meter
from farm.processes.workers import TaskContext
from farm.transports import Link
from farm.types import Device, MeasurementSettings, Profile


class SteadyModel:
    """A loaded model whose inferences take the same time, all of which passes here."""

    def __init__(self, inference_s: float) -> None:
        self.inference_s = inference_s

    def time(self, count: int, block: int = 1) -> list[float]:
        time.sleep(count * block * self.inference_s)
        return [self.inference_s] * count


@pytest.mark.parametrize("block", [1, 10])
def test_the_time_of_all_inferences_of_a_block_counts(block: int, tmp_path: Path) -> None:
    model: Any = SteadyModel(0.01 / block)
    plan = MeasurementSettings(warmup=0, count=1, minimum_s=0.4, block=block)
    device = Device("board", Profile("x86", {}, ""), "rpc://board:9090")
    session: Any = None
    meter = _Meter(TaskContext(tmp_path), device, Link(session, native=False), model, plan, {})
    meter.sample(model.inference_s)
    # A busy machine sleeps for longer, and takes fewer. The sum of 0.01 s may lie just below 0.4 s.
    assert len(meter.seconds) <= 41
