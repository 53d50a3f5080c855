"""The sources of the agent that `farm export` writes are complete."""

from __future__ import annotations

import re
from pathlib import Path

from farm import export
from farm.agent import recipe


def test_every_header_of_the_agent_that_exported_sources_include_is_exported(
    tmp_path: Path,
) -> None:
    export._write_runtime(tmp_path / "runtime")
    own = tmp_path / "runtime" / "own"
    files = [path for path in own.rglob("*") if path.is_file()]
    included = {
        name
        for path in files
        for name in re.findall(r'#include "([^"]+)"', path.read_text())
        if (recipe.SOURCES / name).exists()
    }
    assert len(included) > 5
    assert [name for name in sorted(included) if not (own / name).exists()] == []
