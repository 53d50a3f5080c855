"""The machine that farm runs on: its architecture, the profile of its CPU, and what farm needs.

farm runs on Linux. The list in `LINUX_ONLY` says what elsewhere has no counterpart.
"""

from __future__ import annotations

import platform
import sys

from farm.errors import FarmError

# By platform.machine(), which is uname -m, in lower case
_ARCHITECTURES = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "armv7l": "armv7",
    "riscv64": "riscv64",
}
NATIVE_PROFILES = {"x86_64": "x86", "aarch64": "arm64"}
"""The built-in profiles whose mcpu is `native`, by architecture."""

LINUX_ONLY = (
    "the agent and the libraries of models are Linux executables, for local: and qemu: too",
    "worker processes end with farm by prctl, and find each other in /proc",
    "models of strangers are imported under Landlock and seccomp",
)
"""The parts of farm that depend on Linux, in words."""


def agent_architecture() -> str | None:
    """Return the architecture by the agents' names, None if there is no agent for this machine."""
    return _ARCHITECTURES.get(platform.machine().lower())


def native_profile_name() -> str | None:
    """Return the built-in profile of this machine's own CPU; None if there is none."""
    return NATIVE_PROFILES.get(agent_architecture() or "")


def check_system() -> None:
    """Raise FarmError if this is no Linux system."""
    if sys.platform == "linux":
        return
    system = platform.system() or sys.platform
    raise FarmError(
        f"farm does not run on {'macOS' if system == 'Darwin' else system}",
        "\n".join(LINUX_ONLY),
        "use it in a Linux virtual machine or container here, on x86-64 or ARM64, or on a Linux "
        "machine that you reach by ssh",
    )
