"""Reasons why a device with a GPU profile cannot be used, found without connecting to its agent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from farm.transports.device_availability import DeviceAvailability
from farm.types import Device

LIBRARY = "libcuda.so.1"
# Written by ldconfig(8): the libraries that the loader finds, by name
_CACHE = Path("/etc/ld.so.cache")
# Default folders that the loader searches in addition
_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")


def unusable_gpu_state(device: Device) -> DeviceAvailability | None:
    """Return the state of a GPU device that cannot be used, with the reason.

    Returns None if no reason is known, and for devices that compute on a CPU.
    """
    profile = device.profile
    if not profile.on_gpu:
        return None
    kind, cpu = str(profile.target["kind"]), "use a CPU profile of the board"
    if profile.agent is None:
        if kind == "cuda":
            why = f"CUDA 13, which farm builds with, has no code for {profile.target.get('arch')}"
        else:
            why = (
                f"neither farm's agent nor TVM's packages have a runtime for {kind}: that would "
                "be a TVM built for it on the board"
            )
        return DeviceAvailability(
            "not supported",
            False,
            why,
            f"{cpu}; farm compile MODEL --profile {profile.name} says what can be built",
        )
    if device.emulated:
        return DeviceAvailability("without a GPU", False, "qemu emulates CPUs only", cpu)
    if device.on_this_machine and not is_cuda_driver_installed_here():
        return DeviceAvailability(
            "without a GPU",
            False,
            (
                f"this machine has no NVIDIA driver: {LIBRARY} is nowhere that the system's "
                "loader looks"
            ),
            (
                "install the driver, so that nvidia-smi works (in a container: start it with "
                "--gpus all), or use a CPU profile, such as x86"
            ),
        )
    return None


def is_cuda_driver_installed_here() -> bool:
    """Return whether this machine's loader finds the driver's library.

    The library is not loaded: the compiler may have loaded another one of that name (see
    farm.compiler.codegen.nvrtc).
    """
    if any((folder / LIBRARY).exists() for folder in _searched()):
        return True
    return _CACHE.exists() and LIBRARY.encode() in _CACHE.read_bytes()


def _searched() -> Iterator[Path]:
    for named in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield Path(named)
    yield from map(Path, _FOLDERS)
