"""Measure a device's peak arithmetic and memory rates: the best of several runs of each probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.executor.loading import read_device_facts, tensor_device, upload_file
from farm.transports import Link
from farm.transports.agent import answer_validation as agent_answers
from farm.types import Device, Roofline

if TYPE_CHECKING:
    from farm.compiler.diagnostics.roofline_probe import ProbeLibrary
    from farm.rpc.blocking_session import Tensor

_MEMORY_SHARE = 8  # each of the two copied buffers takes at most 1/8 of the device's free memory
_MOST_BYTES, _MOST_BYTES_ON_GPU = 128 << 20, 512 << 20  # many times the size of the caches
_REPEATS = 5
_LONG_S, _MOST_TASKS = 5e-3, 1 << 17  # a GPU's arithmetic runs so long that launching is negligible
_LIBRARY = "probe.so"


def measure_roofline(link: Link, device: Device, probe: ProbeLibrary) -> Roofline:
    """Return the roofline of a session's device, with the session's threads.

    Raises DeviceError and its subclasses.
    """
    from farm.compiler.diagnostics.roofline_probe import BLOCK_BYTES

    timer, facts = _Timer(link, device, probe), read_device_facts(link)
    tasks = probe.tasks or int(facts["gpu_multiprocessors"])
    arithmetic_s = timer.arithmetic(tasks)
    while probe.tasks is None and arithmetic_s < _LONG_S and tasks < _MOST_TASKS:
        tasks *= 2
        arithmetic_s = timer.arithmetic(tasks)
    kind, most = (
        ("gpu_memory_free_bytes", _MOST_BYTES_ON_GPU)
        if device.profile.on_gpu
        else ("memory_available_bytes", _MOST_BYTES)
    )
    free = int(float(facts.get(kind, 0))) or _MOST_BYTES
    blocks = max(1, min(most, free // _MEMORY_SHARE) // BLOCK_BYTES)
    memory_s = timer.memory(blocks)
    size = f"{blocks * BLOCK_BYTES / (1 << 20):.3g} MiB"
    source = f"measured on the device: multiply-adds in registers, and {size} copied"
    return Roofline(
        1e-9 * probe.operations * tasks / arithmetic_s,
        1e-9 * 2 * blocks * BLOCK_BYTES / memory_s,
        source,
    )


class _Timer:
    """Times the probes on a device."""

    def __init__(self, link: Link, device: Device, probe: ProbeLibrary) -> None:
        upload_file(link, probe.library, _LIBRARY)
        self._library = link.session.load_module(_LIBRARY)
        self._session, self._there = link.session, tensor_device(device)
        self._probe = probe

    def arithmetic(self, tasks: int) -> float:
        """Return the least seconds of the arithmetic probe with `tasks` tasks."""
        import numpy as np

        from farm.compiler.diagnostics.roofline_probe import ARITHMETIC

        factors = np.repeat([[0.5], [1.0]], self._probe.lanes, axis=1).astype("float32")
        return self._best(
            ARITHMETIC,
            self._session.tensor(factors, self._there),
            self._empty(tasks, self._probe.width),
        )

    def memory(self, blocks: int) -> float:
        """Return the least seconds of copying `blocks` blocks of BLOCK_BYTES."""
        from farm.compiler.diagnostics.roofline_probe import BLOCK_BYTES, MEMORY

        one, other = (self._empty(blocks, BLOCK_BYTES // 4) for _ in range(2))
        # Write both buffers first: the system allocates pages on the first write, and all unwritten
        # pages are read from one page of zeros.
        copy = self._library.function(MEMORY)
        copy(one, other)
        copy(other, one)
        return self._best(MEMORY, one, other)

    def _empty(self, *shape: int) -> Tensor:
        return self._session.empty(shape, "float32", self._there)

    def _best(self, name: str, *arguments: Tensor) -> float:
        timer = self._library.timer(name, self._there, number=1, repeat=_REPEATS)
        return min(agent_answers.check_durations("the timer", timer(*arguments), _REPEATS))
