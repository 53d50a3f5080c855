"""Other engines and farm's build on this machine, as a worker measures them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from host_profile import HOST

from farm import zoo
from farm.checked_model_import import prepare_model
from farm.compiler.build import find_or_build_model
from farm.pipeline import worker_tasks
from farm.processes.workers import TaskContext
from farm.types import BuildWithAgent, Device


def test_the_build_that_is_measured_beside_other_engines_stays_in_the_devices_store(
    agents: Callable[[str], Path], tmp_path: Path
) -> None:
    context, model, cache = TaskContext(tmp_path / "scratch"), zoo.digits(), tmp_path / "cache"
    prepared = prepare_model(context, model, HOST, cache)
    built = find_or_build_model(context, prepared, HOST, cache)
    fitted = BuildWithAgent(model, prepared, built, agents("x86_64"))
    compared = worker_tasks.measure_engines_interleaved_task(
        context, Device("here", HOST, "local:"), fitted, ("onnxruntime",), 3, 120.0, cache
    )
    [rival] = compared.rivals
    assert len(compared.seconds) == len(rival.seconds) == 3
    assert compared.seconds != rival.seconds and rival.agreement.right
    library = built.library.read_bytes()
    kept = [path for path in (cache / "devices" / "here").rglob("*") if path.is_file()]
    assert any(path.read_bytes() == library for path in kept)
