"""Builds a model of a devices.toml for a GPU, and keeps the CUDA source of its kernels: record.py CACHE CONFIG MODEL SOURCE."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from farm.commands.common import host_profile
from farm.compiler import cuda
from farm.config import load
from farm.parallel import Desk
from farm.pipeline.tasks import build_task, prepare_task


def main() -> None:
    cache, config, source = (Path(sys.argv[place]) for place in (1, 2, 4))
    compiled = cuda._Compiler._compiled

    def recorded(compiler: cuda._Compiler, text: str) -> bytes:
        source.write_text(text)
        return compiled(compiler, text)

    cuda._Compiler._compiled = recorded  # type: ignore[method-assign]
    fleet = load(config)
    with tempfile.TemporaryDirectory() as scratch:
        desk = Desk(Path(scratch))
        prepared = prepare_task(desk, fleet.model(sys.argv[3]), host_profile(fleet), cache)
        build_task(desk, prepared, fleet.profile("cuda-sm80"), cache)


if __name__ == "__main__":
    main()
