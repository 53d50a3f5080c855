"""Libraries that the agent cannot load are refused with words that say why, and never end the
agent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agent_models import SmallModel
from agent_processes import Agent, client

Start = Callable[..., Agent]
Models = Callable[[str], SmallModel]


@pytest.mark.parametrize(
    ("arch", "kind", "words"),
    [
        ("x86_64", "aarch64", "library is for aarch64, this device is x86_64"),
        ("x86_64", "armv7", "library is for armv7 (hard-float), this device is x86_64"),
        ("armv7", "aarch64", "library is for aarch64, this device is armv7 (hard-float)"),
        (
            "armv7",
            "armv7-soft",
            "library is for armv7 (soft-float), this device is armv7 (hard-float)",
        ),
        ("aarch64", "x86_64", "library is for x86_64, this device is aarch64"),
    ],
)
def test_a_library_for_another_machine_is_refused_by_name(
    arch: str, kind: str, words: str, start: Start, models: Models
) -> None:
    agent = start(arch)
    (error,) = client("load_errors", port=agent.port, paths=[str(models(kind).library)])
    assert words in error
    assert ('"mfloat-abi": "hard"' in error) == (kind == "armv7-soft")


def test_files_that_are_no_whole_library_are_refused(
    start: Start, models: Models, agents: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = models("x86_64").library.read_bytes()
    cases = {
        "empty": (b"", "the file is empty"),
        "text": (b"#!/bin/sh\n" * 100, "not an ELF library"),
        "head": (whole[:40], "truncated"),
        "half": (whole[: len(whole) // 2], "truncated"),
        "program": (agents("x86_64").read_bytes(), "not a shared library"),
    }
    for name, (content, _) in cases.items():
        (tmp_path / name).write_bytes(content)
    agent = start()
    errors = client(
        "load_errors",
        port=agent.port,
        paths=[str(tmp_path / name) for name in cases] + [str(models("x86_64").library)],
    )
    for (_, words), error in zip(cases.values(), errors, strict=False):
        assert words in error
    assert errors[-1] == "", "the same session still loads a good library"


@pytest.mark.parametrize("arch", ["x86_64", "armv7"])
def test_damaged_libraries_give_errors_and_the_agent_lives(
    arch: str, start: Start, models: Models
) -> None:
    agent = start(arch)
    counts = client("load_corrupted", port=agent.port, library=str(models(arch).library), count=300)
    assert sum(counts.values()) == 300
    assert counts["died"] <= 6
    assert counts["refused"] > 20
    assert agent.child.poll() is None
    assert client("list_files", port=agent.port) == ""
