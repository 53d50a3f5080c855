"""A cluster of Dask, and a folder in which farm runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dask_processes import DaskCluster, cluster_of, dask_cluster
from farm_commands import BOARD


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("scheduler")) as scheduler:
        yield scheduler


@pytest.fixture
def cluster(scheduler: DaskCluster, tmp_path: Path) -> Iterator[DaskCluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with cluster_of(scheduler, folder) as cluster:
        yield cluster


@pytest.fixture
def home(tmp_path: Path, agents: Callable[[str], Path]) -> Path:
    """A folder with a devices.toml, and a cache in which the agent is built already."""
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "agents").symlink_to(agents("x86_64").parent.parent)
    (tmp_path / "devices.toml").write_text(BOARD)
    return tmp_path
