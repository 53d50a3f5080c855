"""How long a test waits: for what is sure to come, and for a deadline that is to pass."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from farm.processes.deadline import Deadline

LIMIT_S = 300.0  # for what comes by itself on any machine: only a test that fails waits so long
_WORK = (
    "from farm.tvm_import_without_torch import hide_torch_from_now_on; hide_torch_from_now_on(); "
    "import tvm"
)
_QUIET_S = 1.0  # what this takes on a core of today that has nothing else to do


def wait_until(condition: Callable[[], Any], what: str, seconds: float = LIMIT_S) -> Any:
    """What the condition returns once it is true.

    A condition that takes long, such as a command, is asked less often: it leaves most of a
    processor to what it waits for.
    """
    deadline = Deadline(seconds)
    while True:
        begin = time.monotonic()
        if found := condition():
            return found
        assert not deadline.expired, f"{what}: not within {seconds:.0f} s"
        time.sleep(max(0.02, 3 * (time.monotonic() - begin)))


def patient(seconds: float) -> float:
    """Whole seconds for a deadline beside which healthy work has to be done: more on a machine that
    is slow, or busy with other tests.
    """
    return float(round(seconds * _slowness()))


@functools.cache
def _slowness() -> float:
    """How many times longer `_WORK` takes here, beside the other tests; 1 at the least."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", _WORK], check=True, timeout=LIMIT_S)
    return max(1.0, (time.monotonic() - begin) / _QUIET_S)
