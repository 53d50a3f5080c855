"""A cluster of Dask, and a folder in which farm runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dask_processes import DaskCluster, dask_cluster
from farm_commands import BOARD


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with dask_cluster(folder) as cluster:
        yield cluster


@pytest.fixture
def home(tmp_path: Path, agents: Callable[[str], Path]) -> Path:
    """A folder with a devices.toml, and a cache in which the agent is built already."""
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "agents").symlink_to(agents("x86_64").parent.parent)
    (tmp_path / "devices.toml").write_text(BOARD)
    return tmp_path
