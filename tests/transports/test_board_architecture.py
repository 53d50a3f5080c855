"""What a board is, by its kernel and the ELF header of its shell, and which profiles are for it."""

from __future__ import annotations

import struct

import pytest

from farm.config import load_fleet
from farm.config.locate import SHIPPED
from farm.errors import DeviceError
from farm.transports.board_architecture import (
    BoardArchitecture,
    architecture_from_probe_output,
    check_agent_runs,
    fitting_profiles,
)
from farm.transports.board_scripts import parse_whole_number
from farm.types import Device


def header(machine: int, bits: int, flags: int = 0, order: str = "<") -> str:
    """The first bytes of an ELF file, as `od` gives them."""
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1 if order == "<" else 2, 1]).ljust(
        12, b"\0"
    )
    rest = (
        struct.pack(f"{order}HHI", 3, machine, 1)
        + (bytes(24) if bits == 64 else bytes(12))
        + struct.pack(f"{order}I", flags)
    )
    return (ident + rest).ljust(52, b"\0").hex()


def device(profile: str, options: dict[str, str] | None = None) -> Device:
    return Device("pi", load_fleet(SHIPPED).profiles[profile], "ssh://pi@pi", options=options or {})


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ({"shell": header(62, 64)}, ("x86_64", 64, "")),
        ({"shell": header(183, 64)}, ("aarch64", 64, "")),
        ({"shell": header(243, 64)}, ("riscv64", 64, "")),
        ({"shell": header(40, 32, 0x05000400)}, ("armv7", 32, "hard")),
        ({"shell": header(40, 32, 0x05000200)}, ("armv7", 32, "soft")),
        ({"shell": header(40, 32, 0x05000000)}, ("armv7", 32, "")),
        ({"shell": header(3, 32)}, ("i386", 32, "")),
        ({"shell": header(8, 32, order=">")}, ("machine 8", 32, "")),
        ({"shell": "", "bits": "32"}, ("", 32, "")),
        ({"shell": "od: not found", "bits": ""}, ("", 0, "")),
        ({"bits": "²"}, ("", 0, "")),
        ({"bits": "9" * 5000}, ("", 0, "")),
        ({"shell": "7f454c46"}, ("", 0, "")),
    ],
)
def test_the_shell_tells_what_the_programs_are(
    seen: dict[str, str], kind: tuple[str, int, str]
) -> None:
    found = architecture_from_probe_output({"machine": "x", **seen})
    assert (found.programs, found.bits, found.float_abi) == kind


@pytest.mark.parametrize(
    ("told", "number"),
    [("12\n", 12), ("", None), ("-1", None), ("²", None), ("٣", None), ("9" * 5000, None)],
)
def test_a_number_that_a_board_reports_is_one_or_none(told: str, number: int | None) -> None:
    assert parse_whole_number(told) == number


def test_a_kind_in_words() -> None:
    assert (
        BoardArchitecture("aarch64", "armv7", 32, "hard", "glibc 2.36").words
        == "aarch64 kernel, 32-bit hard-float programs (armv7), glibc 2.36"
    )
    assert (
        BoardArchitecture("armv7l").words == "armv7l kernel, ?-bit programs, an unknown C library"
    )


@pytest.mark.parametrize(
    ("kind", "profile"),
    [
        (BoardArchitecture("aarch64", "aarch64", 64), "rasp4-64"),
        (
            BoardArchitecture("aarch64", "aarch64", 64),
            "rasp4",
        ),  # such a kernel mostly runs them too
        (BoardArchitecture("aarch64", "armv7", 32, "hard"), "rasp4"),
        (
            BoardArchitecture("armv7l", "armv7", 32, "soft"),
            "pynq",
        ),  # the agent brings its own C library
        (BoardArchitecture("armv8l"), "rasp3b"),
        (
            BoardArchitecture("x86_64", "i386", 32),
            "x86-v3",
        ),  # there is no 32-bit agent that would be meant
        (BoardArchitecture("riscv64", "riscv64", 64), "riscv64"),
        (BoardArchitecture("aarch64", "aarch64", 64), "jetson-orin-nano"),
        (BoardArchitecture("x86_64", "x86_64", 64), "cuda-sm80"),
    ],
)
def test_a_profile_that_fits(kind: BoardArchitecture, profile: str) -> None:
    check_agent_runs(device(profile), kind)


@pytest.mark.parametrize(
    ("kind", "profile", "words", "named"),
    [
        (BoardArchitecture("x86_64", "x86_64", 64), "rasp3b", "another kind of board", "x86"),
        (
            BoardArchitecture("armv7l", "armv7", 32, "hard"),
            "rasp4-64",
            "another kind of board",
            "rasp4",
        ),
        (
            BoardArchitecture("aarch64", "armv7", 32, "hard"),
            "x86",
            "another kind of board",
            "rasp3b",
        ),
        (BoardArchitecture("aarch64", "aarch64", 64), "x86", "another kind of board", "rasp3b-64"),
        (
            BoardArchitecture("aarch64", "armv7", 32, "hard"),
            "rasp3b-64",
            "32-bit programs on a 64-bit kernel",
            "rasp3b",
        ),
        (
            BoardArchitecture("aarch64", "", 32),
            "rk3399",
            "32-bit programs on a 64-bit kernel",
            "rasp3b",
        ),
        (
            BoardArchitecture("aarch64", "armv7", 32, "hard"),
            "jetson-orin-nano",
            "32-bit programs on a 64-bit kernel",
            "rasp3b",
        ),
        (
            BoardArchitecture("aarch64", "aarch64", 64),
            "cuda-sm80",
            "another kind of board",
            "jetson-orin-nano",
        ),
        (
            BoardArchitecture("x86_64", "x86_64", 64),
            "jetson-orin-nano",
            "another kind of board",
            "cuda-sm86",
        ),
        (
            BoardArchitecture("armv7l", "armv7", 32, "hard"),
            "cuda-sm80",
            "another kind of board",
            "rasp3b",
        ),
        (
            BoardArchitecture("riscv64", "riscv64", 64),
            "cuda-sm80",
            "another kind of board",
            "riscv64",
        ),
        (
            BoardArchitecture("armv6l", "armv7", 32, "hard"),
            "rasp3b",
            "no agent for the armv6l kernel",
            "",
        ),
    ],
)
def test_a_profile_that_does_not_fit_and_those_that_would(
    kind: BoardArchitecture, profile: str, words: str, named: str
) -> None:
    with pytest.raises(DeviceError, match=words) as raised:
        check_agent_runs(device(profile), kind)
    assert named in raised.value.fix.replace(",", "").replace(";", "").split() or not named
    assert "-cuda" not in raised.value.why, "a word of farm's own"


def test_64_bit_code_on_a_32_bit_system_can_be_meant() -> None:
    kind = BoardArchitecture("aarch64", "armv7", 32, "hard")
    check_agent_runs(device("rasp3b-64", {"userland": "any"}), kind)
    with pytest.raises(DeviceError, match="32-bit programs"):
        check_agent_runs(device("rasp3b-64", {"userland": "own"}), kind)


def test_profiles_are_named_by_likeness() -> None:
    assert fitting_profiles("armv7", "rasp4-64")[0] == "rasp4"
    assert fitting_profiles("aarch64", "rasp3b")[0] == "rasp3b-64"
    assert not {"cuda-sm80", "mali"} & set(
        fitting_profiles("x86_64", "cuda-sm80") + fitting_profiles("aarch64", "mali")
    )
