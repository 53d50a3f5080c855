"""Builds a model of a devices.toml, and the probes, for a GPU, and keeps the CUDA source of their
kernels:
record_kernel_sources.py CACHE CONFIG MODEL SOURCE."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from farm.commands.common import host_profile
from farm.compiler.codegen import nvrtc
from farm.config import load_fleet
from farm.pipeline.worker_tasks import (
    build_model_task,
    build_roofline_probe_task,
    prepare_model_task,
)
from farm.processes.workers import TaskContext
from farm.store import Store

_KERNEL = 'extern "C" __global__'


def main() -> None:
    cache, config, source = (Path(sys.argv[place]) for place in (1, 2, 4))
    compiled = nvrtc._Compiler._compiled

    def recorded(compiler: nvrtc._Compiler, text: str) -> bytes:
        more = text[text.index(_KERNEL) :] if source.exists() else text
        with source.open("a") as file:
            file.write(more)
        return compiled(compiler, text)

    nvrtc._Compiler._compiled = recorded  # type: ignore[method-assign]
    fleet = load_fleet(config)
    with tempfile.TemporaryDirectory() as scratch:
        context = TaskContext(Path(scratch))
        model = fleet.model(sys.argv[3])
        prepared = prepare_model_task(context, model, host_profile(fleet), Store(cache))
        # in this process, which records: in the sandbox nothing is written elsewhere
        build_model_task(
            context, replace(model, trust=True), prepared, fleet.profile("cuda-sm80"), Store(cache)
        )
        build_roofline_probe_task(context, fleet.profile("cuda-sm80"), cache)


if __name__ == "__main__":
    main()
