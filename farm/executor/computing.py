"""With how many threads a session computes, and on which cores: as the device's options say; where they say nothing, as it likes best."""

from __future__ import annotations

from farm.transports import Link
from farm.types import Device

_BIG, _LITTLE, _ONE_CORE_A_THREAD, _SHARED_CORES = 1, -1, -2, -3  # threading::ThreadGroup::AffinityMode


def compute_as_asked(link: Link, device: Device) -> None:
    """Tell the device, before a library is loaded. Our agent refuses what it has not the cores for; TVM's own server does what it can."""
    threads, cores = int(device.options.get("threads", 0)), str(device.options.get("cores", ""))
    pinned = bool(device.options.get("pinned"))
    if not (threads or cores or pinned):
        return
    if link.native:
        link.call("farm.agent.threads", threads, cores, pinned)
    elif cores in ("", "big", "little", "all"):
        link.call("runtime.config_threadpool", _LITTLE if cores == "little" else _BIG, threads)
    else:
        numbers = numbers_of(cores)
        mode = _ONE_CORE_A_THREAD if pinned else _SHARED_CORES
        link.call("runtime.config_threadpool", mode, threads or len(numbers), [str(number) for number in numbers])


def numbers_of(cores: str) -> list[int]:
    """The numbers in a text such as 0,2-3."""
    ranges = [part.partition("-") for part in cores.split(",")]
    return [number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)]
