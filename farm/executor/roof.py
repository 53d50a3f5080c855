"""What a device can do at the most, by its own clock: the best of some tries of each of a profile's probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farm.executor.loading import facts_of, place_of, send
from farm.transports import Link
from farm.types import Device, Roof

if TYPE_CHECKING:
    from farm.compiler.probe import Probe

_MEMORY_SHARE = 8  # of what the device has free, for each of the two blocks that are copied from one to the other
_MOST_BYTES, _MOST_BYTES_ON_GPU = 128 << 20, 512 << 20  # many times what the caches hold
_REPEATS = 5
_LONG_S, _MOST_TASKS = 5e-3, 1 << 17  # of a GPU's arithmetic: what starting and ending take is little beside it
_LIBRARY = "probe.so"


def measured(link: Link, device: Device, probe: Probe) -> Roof:
    """The roof of a session's device, with the session's threads. Raises DeviceError and its kin."""
    from farm.compiler.probe import BLOCK_BYTES

    timer, facts = _Timer(link, device, probe), facts_of(link)
    tasks = probe.tasks or int(facts["gpu_multiprocessors"])
    arithmetic_s = timer.arithmetic(tasks)
    while probe.tasks is None and arithmetic_s < _LONG_S and tasks < _MOST_TASKS:
        tasks *= 2
        arithmetic_s = timer.arithmetic(tasks)
    kind, most = ("gpu_memory_free_bytes", _MOST_BYTES_ON_GPU) if device.profile.on_gpu else ("memory_available_bytes", _MOST_BYTES)
    free = int(float(facts.get(kind, 0))) or _MOST_BYTES
    blocks = max(1, min(most, free // _MEMORY_SHARE) // BLOCK_BYTES)
    memory_s = timer.memory(blocks)
    size = f"{blocks * BLOCK_BYTES / (1 << 20):.3g} MiB"
    source = f"measured on the device: multiply-adds in registers, and {size} copied"
    return Roof(1e-9 * probe.operations * tasks / arithmetic_s, 1e-9 * 2 * blocks * BLOCK_BYTES / memory_s, source)


class _Timer:
    """Seconds of the probes on a device."""

    def __init__(self, link: Link, device: Device, probe: Probe) -> None:
        send(link, probe.library, _LIBRARY)
        self._library = link.session.load_module(_LIBRARY)
        self._there = place_of(link, device)
        self._probe = probe

    def arithmetic(self, tasks: int) -> float:
        import numpy as np
        import tvm

        from farm.compiler.probe import ARITHMETIC

        factors = tvm.runtime.tensor(np.repeat([[0.5], [1.0]], self._probe.lanes, axis=1).astype("float32"), device=self._there)
        return self._best(ARITHMETIC, factors, self._empty(tasks, self._probe.width))

    def memory(self, blocks: int) -> float:
        from farm.compiler.probe import BLOCK_BYTES, MEMORY

        one, other = (self._empty(blocks, BLOCK_BYTES // 4) for _ in range(2))
        self._library[MEMORY](one, other)  # the system gives memory when it is first written; what was only read is one page of zeros
        self._library[MEMORY](other, one)
        return self._best(MEMORY, one, other)

    def _empty(self, *shape: int) -> Any:
        import tvm

        return tvm.runtime.empty(shape, "float32", self._there)

    def _best(self, name: str, *arguments: Any) -> float:
        return float(min(self._library.time_evaluator(name, self._there, number=1, repeat=_REPEATS)(*arguments).results))
