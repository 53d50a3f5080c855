"""Open the GPU of a session before anything is loaded, and explain in plain words if that fails."""

from __future__ import annotations

import re
from typing import Any

from farm.config import profiles
from farm.errors import DeviceError, FarmError
from farm.transports import Link
from farm.transports.agent import version as agent_version
from farm.transports.agent.answer_validation import AgentAnswerError
from farm.types import Device

# What is wrong and how to fix it, by the kind of problem that the agent reports
# (farm/agent/src/execution/gpu.h).
_PROBLEMS = {
    "cpu agent": (
        "{name} has the agent for CPUs",
        "end it there, and start the one for GPUs: {start}",
    ),
    "no driver": (
        "{name} has no NVIDIA driver",
        (
            "install it there, so that nvidia-smi works (in a container: start it with --gpus "
            "all), or use a CPU profile of the board"
        ),
    ),
    "old driver": (
        "the NVIDIA driver of {name} is too old",
        "install driver 580 or newer there, or NVIDIA's package cuda-compat-13-0",
    ),
    "no gpu": (
        "{name} has no GPU that its driver can use",
        (
            "see there that nvidia-smi -L lists one, and that CUDA_VISIBLE_DEVICES hides none (in "
            "a container: start it with --gpus all)"
        ),
    ),
    "no such gpu": (
        "{name} has no GPU {gpu}",
        "correct `gpu` in its options: a number that nvidia-smi -L lists there",
    ),
    "unusable gpu": (
        "the GPU of {name} cannot be used",
        "look there with nvidia-smi; end what holds the GPU, or restart the machine",
    ),
}


def use_gpu_in_session(link: Link, device: Device) -> str:
    """Make the session compute on the device's GPU; return the GPU's name and architecture.

    Raises DeviceError if the GPU cannot be used or is of another kind than the profile says.
    """
    if not link.native:
        why, fix = (
            "TVM's own RPC server answers there, which says nothing of its GPU",
            f"on the board: {agent_version.agent_start_command(device)}",
        )
        raise DeviceError(f"{device.name} is not asked to compute on a GPU", why, fix)
    found = link.document("farm.agent.gpu", device.gpu)
    wanted = (
        ("problem", "why")
        if isinstance(found, dict) and "problem" in found
        else ("name", "architecture")
    )
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in wanted):
        raise AgentAnswerError("farm.agent.gpu describes no GPU")
    if "problem" in found:
        raise _problem(device, found)
    profile, architecture = device.profile, str(found["architecture"])
    if not can_gpu_run_architecture(str(profile.target["arch"]), architecture):
        fitting = [
            name
            for name, table in profiles.built_in_profile_tables().items()
            if table["target"].get("arch") == architecture
        ]
        raise DeviceError(
            f"the GPU of {device.name} is another kind than its profile says",
            (
                f"{found['name']} is {architecture}; the profile {profile.name} builds for "
                f"{profile.target['arch']}"
            ),
            (
                "correct `profile` of "
                f"{device.name}{f': {fitting[0]}' if fitting else f', with target.arch = {architecture!r}'}"  # noqa: E501
            ),
        )
    return f"{found['name']}, {architecture}"


def can_gpu_run_architecture(built_for: str, architecture: str) -> bool:
    """Return True if a GPU runs machine code of an architecture: of its generation and no newer.

    CUDA C++ Programming Guide, "Binary Compatibility". Code with the suffix a runs on that
    architecture alone, code with the suffix f on its family: the later architectures of the
    generation.
    """
    built, there = (
        re.fullmatch(r"sm_(\d+)(\d)([af]?)", text) for text in (built_for, architecture)
    )
    if not built or not there:
        return built_for == architecture
    return built[1] == there[1] and (
        built[2] == there[2] if built[3] == "a" else int(built[2]) <= int(there[2])
    )


def _problem(device: Device, found: dict[str, Any]) -> FarmError:
    what, fix = _PROBLEMS.get(
        found["problem"], ("the GPU of {name} cannot be used", "farm doctor --device {name}")
    )
    names = {
        "name": device.name,
        "gpu": device.gpu,
        "start": agent_version.agent_start_command(device),
    }
    return DeviceError(what.format(**names), str(found["why"]), fix.format(**names))
