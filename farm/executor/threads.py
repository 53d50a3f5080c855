"""Set the number of threads of a session and their cores, by the device's options.

Without options the device decides.
"""

from __future__ import annotations

from farm.errors import DeviceError
from farm.executor.session_gpu import use_gpu_in_session
from farm.transports import Link
from farm.types import Device

_BIG, _LITTLE = 1, -1  # threading::ThreadGroup::AffinityMode


def configure_threads_and_gpu(link: Link, device: Device) -> None:
    """Set the session's threads and cores and open its GPU; call this before a library is loaded.

    Raises DeviceError if the device cannot do it: TVM's own server has fewer options than our
    agent.
    """
    if device.profile.on_gpu:
        use_gpu_in_session(link, device)
    threads, cores = int(device.options.get("threads", 0)), str(device.options.get("cores", ""))
    pinned = bool(device.options.get("pinned"))
    if not (threads or cores or pinned):
        return
    if link.native:
        link.call("farm.agent.threads", threads, cores, pinned)
    elif pinned or cores not in ("", "big", "little") or (cores == "little" and not threads):
        why = (
            "TVM's own RPC server answers there: it takes a number of threads, on big cores or on "
            "little ones"
        )
        fix = f"--threads N --cores big, or start farm's agent there: farm agent, for {device.url}"
        raise DeviceError(f"{device.name} cannot compute with these threads and cores", why, fix)
    else:
        link.call("runtime.config_threadpool", _LITTLE if cores == "little" else _BIG, threads)


def parse_core_ranges(cores: str) -> list[int]:
    """Return the numbers in a list of ranges such as 0,2-3."""
    ranges = [part.partition("-") for part in cores.split(",")]
    return [
        number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)
    ]
