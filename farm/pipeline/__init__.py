"""The jobs of deploy, bench and the other commands, from models and devices to results.

    run_jobs           deploy and bench: the job graph, built and measured in worker processes
    job_dependencies   what a job depends on, and the order in which that is built
    interleaving       the models of one device measured in interleaved rounds
    operations         single steps: compile a model, run one input, query devices, get an agent
    worker_tasks       the functions that run in worker processes, and the pool that runs them
    sandboxed_tasks    run an importer in a sandbox if the model is not trusted
    build_feasibility  `farm check`: whether a model would build, and its cost
    guard_page_check   `farm check --guard`: run each kernel with its tensors against guard pages
    accuracy           `farm accuracy`: score devices and the reference on a labelled set
    layer_bisect       `farm bisect`: the first layer whose output is wrong on a device
    compare            `--in-turns` of compare and bench: the builds of two runs measured
                       interleaved
    other_engines      `farm bench --against`: ONNX Runtime, PyTorch and LiteRT on this machine
    profile            `farm profile`: the time of each kernel
    quantize           `farm quantize`: a float model to a recipe, with a report
    provision          `farm provision`: install the agent on boards, or remove it
    discover           `farm add` without a board: what there is to add
    identify           `farm add`: ask a board what it is
    doctor             `farm doctor`: the first layer that fails between this machine and a device
    tuning             `farm tune`: search for the best configuration of each kernel

Commands call `execute_jobs(expand(devices, models, plan), ...)`, or one function of the other
modules. Each of them starts a pool of worker processes (`worker_tasks.open_pool`) and ends it on
return.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.pipeline.operations import (
        compile_model,
        ensure_agent_executable_for_machine,
        infer,
        infer_deployed,
        query_device_facts,
        run_task_on_devices,
    )
    from farm.pipeline.run_jobs import JobsOutcome, WallTimes, execute_jobs, expand_jobs

__all__ = [
    "JobsOutcome",
    "WallTimes",
    "compile_model",
    "ensure_agent_executable_for_machine",
    "execute_jobs",
    "expand_jobs",
    "infer",
    "infer_deployed",
    "query_device_facts",
    "run_task_on_devices",
]

_RUN_JOBS = {"JobsOutcome", "WallTimes", "execute_jobs", "expand_jobs"}


def __getattr__(name: str) -> Any:
    """Import a job on first use: a worker process, which imports its tasks, needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "run_jobs" if name in _RUN_JOBS else "operations"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
