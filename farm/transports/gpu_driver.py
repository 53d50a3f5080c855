"""What keeps a device with a GPU's profile from being used, as far as can be told without asking it: its agent tells the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farm.types import Device

LIBRARY = "libcuda.so.1"
_CACHE = Path("/etc/ld.so.cache")  # of ldconfig(8): the libraries that the loader finds, by name
_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")  # where it looks besides


@dataclass(frozen=True, slots=True)
class Lacking:
    """In a word, why, and the cure."""

    word: str
    why: str
    fix: str


def lacking(device: Device) -> Lacking | None:
    """What stops it; None where nothing is known to, and for devices that compute on a CPU."""
    profile = device.profile
    if not profile.on_gpu:
        return None
    kind, cpu = str(profile.target["kind"]), "use a CPU profile of the board"
    if profile.agent is None:
        if kind == "cuda":
            why = f"CUDA 13, which farm builds with, has no code for {profile.target.get('arch')}"
        else:
            why = f"neither farm's agent nor TVM's packages have a runtime for {kind}: that would be a TVM built for it on the board"
        return Lacking("not supported", why, f"{cpu}; farm compile MODEL --profile {profile.name} says what can be built")
    if device.emulated:
        return Lacking("without a GPU", "qemu emulates CPUs only", cpu)
    if device.on_this_machine and not installed():
        return Lacking(
            "without a GPU",
            f"this machine has no NVIDIA driver: {LIBRARY} is nowhere that the system's loader looks",
            "install the driver, so that nvidia-smi works (in a container: start it with --gpus all), or use a CPU profile, such as x86",
        )
    return None


def installed() -> bool:
    """Whether this machine's loader finds the driver's library. It is not loaded: another of its name, for the compiler, may be."""
    if any((folder / LIBRARY).exists() for folder in _searched()):
        return True
    return _CACHE.exists() and LIBRARY.encode() in _CACHE.read_bytes()


def _searched() -> Iterator[Path]:
    for named in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield Path(named)
    yield from map(Path, _FOLDERS)
