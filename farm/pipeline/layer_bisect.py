"""Find the first layer whose output is wrong on a device.

prepare ─> build ─┬─> run each kernel on the device, compare with the unscheduled kernel ─┐
                  └─> run every layer of the source with the source engine ───────────────┴─> names

The kernels are those of the build that runs on the device; the references are plain loop nests on
this machine. The comparison therefore finds errors of schedules, code generation, linking,
parameters, transfer and board. Errors of the import and of the graph passes show in the whole
model's answer, and in layers that match no tensor of the source engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import importers, quantize, stats
from farm.pipeline.operations import (
    Show,
    build_model_and_agent_for_device,
    check_device_usable,
    prepare_model,
    run_task,
)
from farm.pipeline.sandboxed_tasks import (
    run_build_sandboxed_if_untrusted,
    run_sandboxed_if_untrusted,
)
from farm.pipeline.worker_tasks import PREPARE_S, device_with_default_store, open_pool
from farm.processes.workers import TaskContext
from farm.store import Store
from farm.types import (
    Artifact,
    BisectedLayer,
    BuildWithAgent,
    Device,
    KernelBisection,
    Model,
    PreparedModel,
    Profile,
    Progress,
    Stage,
    TensorFingerprint,
)

if TYPE_CHECKING:
    import numpy as np

    Fed = tuple[dict[str, np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]

Name = tuple[
    str, str, TensorFingerprint
]  # a layer of the source, its operator, its output's fingerprint
_KIND, _FILE = "layers", "layers.json"


@dataclass(frozen=True, slots=True)
class LayerBisectResult:
    """The result of a bisection: the layers, the build they belong to, and the reference engine."""

    dissection: KernelBisection
    artifact: Artifact
    engine: str


def bisect_model(
    model: Model,
    device: Device,
    source: Path | None,
    *,
    host: Profile,
    store: Store,
    least_db: float | None,
    deadline_s: float,
    show: Show,
) -> LayerBisectResult:
    """Compare every layer of a model on a device with the reference.

    The input is read from the file `source`; if that is None, the example input is taken.
    `least_db` is the signal-to-noise ratio in dB below which a layer is bad; None takes the default
    of its dtype. Raises FarmError if the model cannot be built or the device cannot be used.
    """
    check_device_usable(device)
    with open_pool(store) as pool:
        model, prepared = prepare_model(pool, model, device.profile, host, store, show)
        inputs = _read(source, prepared, model) if source else None
        fitted = build_model_and_agent_for_device(pool, model, prepared, device, store, show)
        names, expected = run_task(
            pool,
            source_layers_and_reference_outputs_task,
            (model, prepared, inputs, store.root),
            show,
            PREPARE_S,
            f"asking {prepared.engine}",
        )
        fed = None if inputs is None else (inputs, expected)
        arguments = (
            model,
            device_with_default_store(device, store.root),
            fitted,
            fed,
            least_db,
            deadline_s,
        )
        dissection: KernelBisection = run_task(
            pool,
            compare_kernels_task,
            arguments,
            show,
            deadline_s,
            f"{model.name} on {device.name}",
        )
    return LayerBisectResult(
        replace(dissection, layers=tuple(name_layers_by_source(dissection.layers, names))),
        fitted.artifact,
        prepared.engine,
    )


def _read(source: Path, prepared: PreparedModel, model: Model) -> dict[str, np.ndarray[Any, Any]]:
    from farm.inputs.read import read_inputs

    return read_inputs(source, prepared.inputs, model.preprocess)


def source_layers_and_reference_outputs_task(
    context: TaskContext, model: Model, prepared: PreparedModel, inputs: Any, cache: Path
) -> tuple[list[Name], Any]:
    """Return the layers of the source and, for given `inputs`, the reference's outputs.

    Without `inputs` the layers are those of the example input, which are cached in the store, and
    the outputs are None.
    """
    from farm.checked_model_import import read_reference_inputs_and_outputs

    store = Store(cache)
    if inputs is None and (kept := store.find(_KIND, prepared.digest)):
        content = json.loads((kept / _FILE).read_text())
        return [
            (name, operator, TensorFingerprint(**values)) for name, operator, values in content
        ], None
    fed = read_reference_inputs_and_outputs(prepared)[0] if inputs is None else inputs
    layers: _Layers = run_sandboxed_if_untrusted(
        context, model, _layers, model, fed, inputs is not None, cache, types=(_Layers,)
    )
    if inputs is None and layers.complete:
        with store.publish(_KIND, prepared.digest) as folder:
            (folder / _FILE).write_text(
                json.dumps(
                    [(name, operator, asdict(values)) for name, operator, values in layers.names]
                )
            )
    return layers.names, layers.outputs


@dataclass(frozen=True, slots=True)
class _Layers:
    """The layers of the source, and its outputs if they were requested.

    `complete` is False if the engine failed on the way, so that some or all layers are missing.
    """

    names: list[Name]
    complete: bool
    outputs: list[Any] | None


def _layers(
    context: TaskContext,
    model: Model,
    fed: dict[str, np.ndarray[Any, Any]],
    with_outputs: bool,
    cache: Path,
) -> _Layers:
    """Run the source engine layer by layer; called in the sandbox."""
    context.note(Progress(Stage.IMPORTING, f"layers of {Path(model.source).name}"))
    imported = importers.import_model(quantize.float_model(model), cache)
    names = [(name, "input", stats.fingerprint(value)) for name, value in fed.items()]
    complete = True
    try:
        names += [
            (name, operator, stats.fingerprint(value))
            for name, operator, value in (imported.layers(fed) if imported.layers else ())
        ]
    except Exception as exc:  # an engine may raise anything here; names are optional
        context.note(
            Progress(
                Stage.RUNNING,
                f"layers have no names of the source: {type(exc).__name__}: {exc}"[:200],
            )
        )
        complete = False
    return _Layers(names, complete, imported.reference(fed) if with_outputs else None)


def compare_kernels_task(
    context: TaskContext,
    model: Model,
    device: Device,
    fitted: BuildWithAgent,
    fed: Fed | None,
    least_db: float | None,
    deadline_s: float,
) -> KernelBisection:
    """Compare the kernels of a build one by one; called in a worker process.

    The reference is computed in a sandbox if the model needs one.
    """
    from farm.compiler.diagnostics.reference_run import compute_reference_steps
    from farm.compiler.diagnostics.reference_steps import ReferenceStep, ReferenceSteps
    from farm.executor.kernel_bisect import compare_kernels_with_reference

    def computer(
        context: TaskContext, prepared: PreparedModel, artifact: Artifact, *others: Any
    ) -> ReferenceSteps:
        computed: ReferenceSteps = run_build_sandboxed_if_untrusted(
            *(context, model, compute_reference_steps, prepared, artifact, *others),
            read=(prepared.directory, artifact.library.parent),
            write=(others[-1],),
            types=(ReferenceSteps, ReferenceStep),
            modules=("farm.compiler.diagnostics.reference_kernels",),
        )
        return computed

    return compare_kernels_with_reference(
        context, device, fitted, fed, least_db, deadline_s, computer
    )


def name_layers_by_source(
    layers: Sequence[BisectedLayer], names: Sequence[Name]
) -> list[BisectedLayer]:
    """Return the layers with the names and operators of the source's tensors of the same values.

    Each layer takes the source tensor with the nearest fingerprint that no earlier layer has taken;
    it stays unnamed if none matches.
    """
    taken: set[int] = set()
    found = []
    for layer in layers:
        distances = {
            place: distance
            for place, (_, _, known) in enumerate(names)
            if place not in taken
            and layer.likeness
            and (distance := stats.relative_distance(layer.likeness, known)) < float("inf")
        }
        if distances:
            place = min(distances, key=lambda place: (distances[place], place))
            taken.add(place)
            layer = replace(layer, name=names[place][0], operator=names[place][1])
        found.append(layer)
    return found
