"""What a board says about itself, as values.

A board is not trusted: texts are cut, numbers are bounded, and what cannot be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from farm import sanitize

_MOST_TEXT = 200
_MOST_CORES = 4096
_CORE = re.compile(r"\s*(\d+)\s+(0x[0-9a-fA-F]{1,2})\s+(0x[0-9a-fA-F]{1,3})\s*")


@dataclass(frozen=True, slots=True)
class CoreGroup:
    """Cores of one kind: two fields of ARM's MIDR, and how many the board has."""

    implementer: int
    part: int
    count: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU: its name, and its architecture as `sm_90`."""

    name: str
    architecture: str


@dataclass(frozen=True, slots=True)
class DetectedHardware:
    """What is known of a board; what it did not say is empty or 0.

    `architecture` is that of its programs: x86_64, aarch64, armv7 or riscv64; empty for another.
    `machine` is the kernel's name of it. `board` is the name in the device tree, `compatible` the
    device tree's list of what it is compatible with, `cpu` the name of the CPU. `features` are the
    kernel's names of the CPU's extensions. `android` is the version of Android, if the board has
    it.
    """

    architecture: str
    machine: str = ""
    board: str = ""
    compatible: tuple[str, ...] = ()
    cpu: str = ""
    cores: tuple[CoreGroup, ...] = ()
    core_count: int = 0
    features: frozenset[str] = frozenset()
    memory_bytes: int = 0
    gpus: tuple[Gpu, ...] = ()
    android: str = ""


def hardware_from_report(architecture: str, report: Mapping[str, str]) -> DetectedHardware:
    """Return the evidence in the report of the script that inspects a board.

    The report's names are machine, board, compatible, cpu, arm_cores (`4 0x41 0xd08,...`), cores,
    features, memory_kib, gpus (`9.0, NVIDIA H200;...`) and android.
    """
    return DetectedHardware(
        architecture,
        machine=_text(report.get("machine", "")),
        board=_text(report.get("board", "")),
        compatible=tuple(_text(report.get("compatible", "")).split()),
        cpu=_text(report.get("cpu", "")),
        cores=tuple(_core_kinds(report.get("arm_cores", ""))),
        core_count=_number(report.get("cores", ""), _MOST_CORES),
        features=frozenset(report.get("features", "")[:8192].lower().split()),
        memory_bytes=_number(report.get("memory_kib", ""), 1 << 50) * 1024,
        gpus=tuple(_gpus(report.get("gpus", ""))),
        android=_text(report.get("android", "")),
    )


def hardware_from_facts(facts: Mapping[str, str]) -> DetectedHardware:
    """Return the evidence in the facts of an agent.

    They name the board or the CPU, not the cores.
    """
    machine, name = facts.get("machine", ""), _text(facts.get("cpu", ""))
    gpus = (
        (Gpu(_text(facts.get("gpu", "")), _text(facts["gpu_architecture"])),)
        if "gpu_architecture" in facts
        else ()
    )
    return DetectedHardware(
        machine,
        machine=_text(machine),
        board="" if machine == "x86_64" else name,
        cpu=name if machine == "x86_64" else "",
        core_count=_number(facts.get("cores", ""), _MOST_CORES),
        memory_bytes=_number(facts.get("memory_total_bytes", ""), 1 << 60),
        gpus=gpus,
    )


def _text(text: str) -> str:
    return sanitize.sanitized_line(text.strip())[:_MOST_TEXT]


def _number(text: str, most: int) -> int:
    text = text.strip()
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) <= 20 else 0


def _core_kinds(text: str) -> list[CoreGroup]:
    found = (_CORE.fullmatch(one) for one in text[:4096].split(","))
    return [
        CoreGroup(int(one[2], 16), int(one[3], 16), _number(one[1], _MOST_CORES))
        for one in found
        if one
    ]


def _gpus(text: str) -> list[Gpu]:
    found = (re.fullmatch(r"\s*(\d{1,2})\.(\d)\s*,\s*(.+)", one) for one in text[:4096].split(";"))
    return [Gpu(_text(one[3]), f"sm_{one[1]}{one[2]}") for one in found if one]
