"""What kind of board this is: the profile that fits what a board says about itself.

    evidence        Evidence: architecture, cores, features, memory, GPUs, read from /proc and facts
    arm_cores       ARM's part numbers, LLVM's names of the cores, and what each core can do
    profile_choice  choose(): a built-in profile, or a profile of the board's own with its reasons

Nothing here talks to a board: `farm.transports` asks, and these are functions of the answers.
"""

from __future__ import annotations

from farm.boards.evidence import Evidence, Gpu, evidence_from_facts, evidence_from_report
from farm.boards.profile_choice import SOURCE, ProfileChoice, choose_profile

__all__ = [
    "SOURCE",
    "Evidence",
    "Gpu",
    "ProfileChoice",
    "choose_profile",
    "evidence_from_facts",
    "evidence_from_report",
]
