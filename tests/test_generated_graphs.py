"""A few graphs of tools/fuzz-graphs, with guard pages around each tensor."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "fuzz-graphs"


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_generated_graphs_are_right_and_stay_within_their_tensors(tmp_path):
    ran = subprocess.run([TOOL, "0:10", "--keep", tmp_path], capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stdout.strip()) == (0, "10 right"), ran.stderr
