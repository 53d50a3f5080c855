"""Run farm's commands with a configuration, a cache and data of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked_commands

BOARD = '[devices.here]\nprofile = "x86-v3"\nurl = "local:"\n'


def begin(*words: str, folder: Path) -> subprocess.Popen[str]:
    """Start farm with its configuration, cache and data in a folder."""
    command = [sys.executable, "-m", "farm", *words]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def farm(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return forked_commands.run(words, _environment(folder), folder)


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FARM_CONFIG": str(folder / "devices.toml"),
        "FARM_CACHE": str(folder / "cache"),
        "FARM_DATA": str(folder / "data"),
    }
