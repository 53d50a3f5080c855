"""What a device can do at the most, from the times of the probes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farm.compiler.diagnostics.roofline_probe import BLOCK_BYTES
from farm.executor import roofline
from farm.transports import Link
from farm.types import Device, Profile


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
