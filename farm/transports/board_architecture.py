"""Detect a board's architecture from its kernel and shell, and compare it with a profile's.

The shell's ELF header gives the architecture of the board's programs.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from farm import this_machine
from farm.config import profiles
from farm.errors import DeviceError
from farm.transports.board_scripts import parse_whole_number
from farm.types import Device

_KERNELS = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
    "riscv64": "riscv64",
    "armv7l": "armv7",
    "armv8l": "armv7",
}
# Most 64-bit ARM kernels run 32-bit programs, too. The agent needs nothing but the kernel, and its
# first start shows whether it runs.
_RUNS = {
    "x86_64": ("x86_64",),
    "aarch64": ("aarch64", "armv7"),
    "armv7": ("armv7",),
    "riscv64": ("riscv64",),
}
# (e_machine, EI_CLASS) and two bits of e_flags, from the ELF specification and its supplements for
# ARM and RISC-V.
_ELF_MACHINES = {
    (62, 2): "x86_64",
    (3, 1): "i386",
    (183, 2): "aarch64",
    (40, 1): "armv7",
    (243, 2): "riscv64",
    (243, 1): "riscv32",
}
_ELF_BYTES = 40
_FLOAT_ABIS = {0x400: "hard", 0x200: "soft"}
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class BoardArchitecture:
    """The architecture of a board.

    `machine` is the kernel's own name (uname -m). `programs` is the architecture of the board's
    programs, `bits` their word size, `float_abi` is `hard` or `soft`, `libc` the C library and its
    version; each is empty or 0 if the board does not report it.
    """

    machine: str
    programs: str = ""
    bits: int = 0
    float_abi: str = ""
    libc: str = ""

    @property
    def words(self) -> str:
        """Describe the board in one phrase for messages."""
        float_abi = f" {self.float_abi}-float" if self.float_abi else ""
        programs = (
            f"{self.bits or '?'}-bit{float_abi} "
            f"programs{f' ({self.programs})' if self.programs else ''}"
        )
        return f"{self.machine} kernel, {programs}, {self.libc or 'an unknown C library'}"


def architecture_from_probe_output(seen: Mapping[str, str]) -> BoardArchitecture:
    """Return the kind of a board from what it reported.

    `seen` has the keys machine, bits, shell (the first bytes of /bin/sh in hexadecimal) and libc.
    """
    told = parse_whole_number(seen.get("bits", "")) or 0
    programs, bits, float_abi = _of_header(seen.get("shell", ""))
    return BoardArchitecture(
        seen["machine"], programs, bits or told, float_abi, seen.get("libc", "")
    )


def _of_header(digits: str) -> tuple[str, int, str]:
    """Return the architecture, bits and float ABI of an ELF file; all empty if it is not one.

    `digits` are the first bytes of the file in hexadecimal.
    """
    try:
        header = bytes.fromhex(digits)
    except ValueError:
        return "", 0, ""
    if len(header) < _ELF_BYTES or header[:4] != b"\x7fELF":
        return "", 0, ""
    elf_class, order = header[4], "<" if header[5] == 1 else ">"
    (machine,), (flags,) = (
        struct.unpack_from(f"{order}H", header, 18),
        struct.unpack_from(f"{order}I", header, 36),
    )
    programs = _ELF_MACHINES.get((machine, elf_class), f"machine {machine}")
    abis = [name for bit, name in _FLOAT_ABIS.items() if programs == "armv7" and flags & bit]
    return programs, 64 if elf_class == 2 else 32, "".join(abis[:1])


def agent_architecture(kind: BoardArchitecture) -> str:
    """Return the architecture of the agent for a board, that of its programs.

    Empty if there is none.
    """
    runs = _RUNS.get(_KERNELS.get(kind.machine, ""), ())
    return (
        kind.programs
        if kind.programs in runs
        else runs[-1]
        if runs and kind.bits == 32
        else "".join(runs[:1])
    )


def check_agent_runs(device: Device, kind: BoardArchitecture) -> None:
    """Raise DeviceError if the agent of the device's profile cannot run on a board of this kind.

    The error names the profiles that fit.
    """
    name, profile = device.name, device.profile
    kernel = _KERNELS.get(kind.machine)
    why = f"it is one with {kind.words}; the profile {profile.name} is for {profile.machine}"
    if kernel is None:
        raise DeviceError(
            f"there is no agent for the {kind.machine} kernel of {name}",
            why,
            "reach the board by rpc:// or tracker://",
        )
    if profile.machine not in _RUNS[kernel]:
        right = kind.programs if kind.programs in _RUNS[kernel] else kernel
        # An agent with GPU support, if the profile has one
        of_its_kind = right + (profile.agent or "").removeprefix(profile.machine or "")
        # For some CPUs there is no GPU agent
        named = fitting_profiles(of_its_kind, profile.name) or fitting_profiles(right, profile.name)
        fix = f"correct `profile` of {name}; for {right} there are: {', '.join(named)}"
        raise DeviceError(f"{name} is another kind of board than its profile says", why, fix)
    narrow = next((one for one in _RUNS[kernel] if one != kernel), "")
    if (
        kind.bits == 32
        and profile.machine == kernel
        and narrow
        and device.options.get("userland") != "any"
    ):
        raise DeviceError(
            f"{name} has 32-bit programs on a 64-bit kernel, and a 64-bit profile",
            why,
            f"correct `profile` of {name}: {', '.join(fitting_profiles(narrow, profile.name))}; "
            "or, if 64-bit code is what you want there, "
            'say so: options = { userland = "any" }',
        )


def fitting_profiles(agent: str, like: str) -> list[str]:
    """Return the built-in profiles for an agent, those with names most similar to `like` first.

    A profile for the CPU of a controller of another architecture is none.
    """
    elsewhere = set(this_machine.NATIVE_PROFILES.values()) - {this_machine.native_profile_name()}
    names = [
        name
        for name, table in profiles.built_in_profile_tables().items()
        if table.get("agent") == agent and name not in elsewhere
    ]
    return sorted(names, key=lambda name: -difflib.SequenceMatcher(None, name, like).ratio())[
        :_MOST_NAMED
    ]
