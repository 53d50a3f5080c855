"""What a device can do at the most, from the times of the probes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from host_profile import HOST

from farm.compiler.diagnostics.roofline_probe import (
    ARITHMETIC,
    BLOCK_BYTES,
    MEMORY,
    build_probe_library,
)
from farm.executor import roofline
from farm.processes.workers import TaskContext
from farm.transports import Link
from farm.types import Device, Profile


def test_the_probes_of_a_cpu_compute_and_copy_as_much_as_they_say(tmp_path: Path) -> None:
    probe = build_probe_library(TaskContext(tmp_path), HOST, tmp_path / "cache")
    library, tasks = tvm.runtime.load_module(str(probe.library)), probe.tasks
    assert tasks is not None and probe.width % probe.lanes == 0
    summand = np.arange(1, probe.lanes + 1, dtype="float32")
    sums = tvm.runtime.empty((tasks, probe.width), "float32")
    library[ARITHMETIC](tvm.runtime.tensor(np.stack([np.ones_like(summand), summand])), sums)
    [steps] = np.unique(sums.numpy().reshape(-1, probe.lanes) / summand - 1)
    assert probe.operations == 2 * steps * probe.width
    blocks = np.random.default_rng(0).random((3, BLOCK_BYTES // 4), "float32")
    copy = tvm.runtime.tensor(np.zeros_like(blocks))
    library[MEMORY](tvm.runtime.tensor(blocks), copy)
    np.testing.assert_array_equal(copy.numpy(), blocks)


def test_what_is_copied_is_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []

    class Timer:
        def __init__(self, *_: object) -> None:
            pass

        def arithmetic(self, tasks: int) -> float:
            return 0.5 * tasks

        def memory(self, blocks: int) -> float:
            copied.append(blocks * BLOCK_BYTES)
            return 0.25

    monkeypatch.setattr(roofline, "_Timer", Timer)
    monkeypatch.setattr(roofline, "read_device_facts", lambda _: {})
    session: Any = None
    probe: Any = SimpleNamespace(tasks=4, operations=10**9)
    device = Device("board", Profile("x86", {}, ""), "rpc://board:9090")
    roof = roofline.measure_roofline(Link(session, native=True), device, probe)
    assert roof.gflops == pytest.approx(2.0)
    assert roof.gbytes_s == pytest.approx(2 * copied[0] / 0.25 * 1e-9)
