"""Builds on a cluster: an existing engine runs tasks on its workers.

    engine       Engine: what farm asks of a cluster; tasks go through a concurrent.futures.Executor
    dask         DaskEngine: the scheduler and workers of Dask
    slurm        SlurmEngine: jobs of Slurm, by submitit
    environment  the versions that a worker must share with us

An engine moves requests and answers and knows nothing of builds: farm.pipeline.cluster does.
"""

from __future__ import annotations

from pathlib import Path

from farm.cluster.engine import ClusterEngine, ControllerChannel, Work
from farm.types import SLURM

__all__ = ["ClusterEngine", "ControllerChannel", "Work", "open_cluster"]


def open_cluster(address: str) -> ClusterEngine:
    """Return the engine at an address, which it connects to when it first has work.

    The address is the scheduler of Dask, as tcp://HOST:8786, or slurm, or slurm:/FOLDER.

    Raises UsageError if the package of the engine is not installed.
    """
    if address.partition(":")[0] == SLURM:
        from farm.cluster.slurm import SlurmEngine

        folder = address.partition(":")[2]
        return SlurmEngine(Path(folder) if folder else None)
    from farm.cluster.dask import DaskEngine

    return DaskEngine(address)
