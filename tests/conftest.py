"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from farm.agent.build import ensure
from farm.deadline import Deadline

_BUILD_S = 1200.0

# Hypothesis calls an example a failure that takes 0.2 s, which a busy machine may need for any.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Under nohup, the programs under test would inherit that hang-ups are ignored, for which some wait. What is handled is not inherited.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(scope="session")
def agents() -> Callable[[str], Path]:
    """Architecture -> the path of its agent, built at the first use and kept in the farm's cache."""
    cache = Path(os.environ.get("FARM_CACHE") or Path.home() / ".cache" / "farm")

    def executable(arch: str) -> Path:
        return ensure(arch, cache, lambda _text, _fraction: None, Deadline(_BUILD_S))

    return executable
