"""What kind of board this is: the profile that fits what a board says about itself.

    detected_hardware  DetectedHardware: architecture, cores, memory, GPUs, from /proc and facts
    arm_cores          ARM's part numbers, LLVM's names of the cores, and what each core can do
    profile_choice     a built-in profile, or a profile of the board's own with its reasons

Nothing here talks to a board: `farm.transports` asks, and these are functions of the answers.
"""

from __future__ import annotations

from farm.boards.detected_hardware import (
    DetectedHardware,
    Gpu,
    hardware_from_facts,
    hardware_from_report,
)
from farm.boards.profile_choice import SOURCE, ProfileChoice, choose_profile

__all__ = [
    "SOURCE",
    "DetectedHardware",
    "Gpu",
    "ProfileChoice",
    "choose_profile",
    "hardware_from_facts",
    "hardware_from_report",
]
