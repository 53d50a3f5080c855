"""A few graphs of tools/fuzz-graphs, with guard pages around each tensor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz-graphs"


# Seeds of graphs that once left their tensors, by what they have.
ONCE_WRONG = {
    "the first columns of a product of one row": "100003",
    "the first columns of a product of many rows": "103579",
}


def ran(folder: Path, seeds: str, *options: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [TOOL, seeds, "--keep", folder, *options], capture_output=True, text=True, timeout=600
    )
    return done.returncode, done.stdout.strip(), done.stderr


def test_generated_graphs_are_right_and_stay_within_their_tensors(tmp_path: Path) -> None:
    code, said, complaints = ran(tmp_path, "0:10")
    assert (code, said) == (0, "10 right"), complaints


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_graphs_that_once_left_their_tensors_no_longer_do(name: str, tmp_path: Path) -> None:
    code, said, complaints = ran(tmp_path, ONCE_WRONG[name], "--cpu", "x86-64-v3")
    assert (code, said) == (0, "1 right"), complaints
