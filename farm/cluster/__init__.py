"""Builds on a cluster: an existing engine runs tasks on its workers.

    engine        Engine: what farm asks of a cluster; tasks go through a concurrent.futures.Executor
    dask          DaskEngine: the scheduler and workers of Dask
    environment   the versions that a worker must share with us

An engine moves requests and answers and knows nothing of builds: farm.pipeline.cluster_tasks does.
"""  # noqa: E501

from __future__ import annotations

from farm.cluster.engine import Engine, Line

__all__ = ["Engine", "Line", "open_cluster"]


def open_cluster(address: str) -> Engine:
    """Return the engine at an address, which it connects to when it first has work.

    Raises UsageError if the package of the engine is not installed.
    """
    from farm.cluster.dask import DaskEngine

    return DaskEngine(address)
