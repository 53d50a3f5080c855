"""What boards say of themselves: files of /proc, and the report of the script that reads them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from farm.transports import board_scripts


def cpuinfo(parts: list[tuple[int, int]], features: str) -> str:
    """The file /proc/cpuinfo of an ARM board, by the implementer and part of each core."""
    cores = (
        f"processor\t: {number}\nBogoMIPS\t: 108.00\nFeatures\t: {features}\nCPU implementer\t: "
        f"{implementer:#x}\nCPU architecture: 8\n"
        f"CPU variant\t: 0x4\nCPU part\t: {part:#x}\nCPU revision\t: 1\n"
        for number, (implementer, part) in enumerate(parts)
    )
    return "\n".join(cores)


def report(
    folder: Path,
    cpu: str,
    board: str = "",
    compatible: str = "",
    properties: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What the script that inspects a board prints, run over the files of a folder instead of
    /proc, with `properties` for getprop.
    """
    (folder / "device-tree").mkdir()
    (folder / "device-tree/model").write_bytes(board.encode() + b"\0")
    (folder / "device-tree/compatible").write_bytes(compatible.replace(" ", "\0").encode() + b"\0")
    (folder / "cpuinfo").write_text(cpu)
    (folder / "meminfo").write_text("MemTotal:        8131912 kB\nMemFree:         100 kB\n")
    script = (board_scripts.HEAD + board_scripts.IDENTIFY).replace("/proc/", f"{folder}/")
    if properties is not None:
        branches = "".join(f"{name}) echo '{value}';;\n" for name, value in properties.items())
        (folder / "getprop").write_text(f'#!/bin/sh\ncase "$1" in\n{branches}*) echo;;\nesac\n')
        (folder / "getprop").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", script, "farm", "", ""], check=True, capture_output=True, text=True, env=env
    )
    return board_scripts.parse_report(done.stdout)
