"""Measure a model in farm's build and in other engines on this machine, interleaved."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from farm import checked_model_import, quantize, stats
from farm.errors import ModelError
from farm.executor import other_engines
from farm.executor.loading import connect_and_load_model, pause_other_workers, read_device_facts
from farm.interleaved_measurement import (
    Block,
    continue_for_rounds,
    make_in_process_inference_timer,
    measure_interleaved,
)
from farm.processes.workers import TaskContext
from farm.types import BuildWithAgent, Device, EngineComparison, EngineResult, Progress, Stage


def measure_engines_interleaved(
    context: TaskContext,
    device: Device,
    fitted: BuildWithAgent,
    names: tuple[str, ...],
    rounds: int,
    deadline_s: float,
    cache: Path,
) -> EngineComparison:
    """Measure `rounds` rounds of farm's build, in the agent, and of each engine, in this process.

    The engines use as many threads as the agent's session. An engine that cannot run the model is
    listed in `missing` with the reason.
    """
    context.note(Progress(Stage.IMPORTING, f"for {', '.join(names)}"))
    inputs, expected = checked_model_import.read_reference_inputs_and_outputs(fitted.prepared)
    source = quantize.float_model(fitted.model)
    imported = other_engines.import_for_engines(source, names, cache)
    with ExitStack() as stack:
        loaded, link, _ = connect_and_load_model(
            stack, context, device, fitted.artifact, fitted.agent, deadline_s, {}
        )
        loaded.feed(inputs)
        loaded.record()
        threads = int(read_device_facts(link)["threads"])
        blocks: dict[str, Block] = {"farm": loaded.time}
        versions, agreements, missing = {}, {}, {}
        for name in names:
            try:
                version, run = other_engines.load_model_in_engine(
                    name, source, imported, inputs, threads, context.scratch
                )
                agreements[name] = stats.compare_outputs_with_reference(
                    run(), expected, fitted.limits
                )
            except ModelError as error:
                missing[name] = f"{error.what}: {error.why}"
                continue
            versions[name], blocks[name] = version, make_in_process_inference_timer(run)
        stack.enter_context(pause_other_workers(context, device))
        goes_on = continue_for_rounds(
            rounds,
            lambda index: context.note(
                Progress(Stage.MEASURING, f"round {index + 1} of {rounds}", index / rounds)
            ),
        )
        medians = measure_interleaved(blocks, goes_on)
    rivals = tuple(
        EngineResult(name, versions[name], tuple(medians[name]), agreements[name])
        for name in versions
    )
    return EngineComparison(
        device.name, fitted.model.name, threads, tuple(medians["farm"]), rivals, missing
    )
