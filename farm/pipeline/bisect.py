"""The first layer whose output differs on a device: the very build that runs there, kernel by kernel, beside plain loops on this machine.

prepare ─> build ─┬─> each kernel on the device, compared with the same kernel unscheduled here ─┐
                  └─> every layer of the source by the engine it came from ─────────────────────┴─> layers with the source's names

Plain loops find what schedules, code, linking, parameters, transfer and board have done. What the import and the graph passes have done
shows in the whole answer, and in layers that the source engine does not know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import quantize, stats
from farm.parallel import Desk
from farm.pipeline.single import Show, check_usable, do, fit, prepare
from farm.pipeline.tasks import PREPARE_S, crew_of, device_at_home
from farm.store import Store
from farm.types import Artifact, Device, Dissection, Layer, Likeness, Model, Prepared, Profile, Progress, Stage

if TYPE_CHECKING:
    import numpy as np

    Fed = tuple[dict[str, np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]

Name = tuple[str, str, Likeness]  # a layer of the source, its operator, and what it gives
_KIND, _FILE = "layers", "layers.json"


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it, and the build it came of."""

    dissection: Dissection
    artifact: Artifact
    engine: str


def bisect(
    model: Model,
    device: Device,
    source: Path | None,
    *,
    host: Profile,
    store: Store,
    least_db: float | None,
    deadline_s: float,
    show: Show,
) -> Found:
    """Every layer of a model on a device, for the input in a file or the example. Raises what keeps it from being looked at."""
    check_usable(device)
    with crew_of(store) as crew:
        model, prepared = prepare(crew, model, device.profile, host, store, show)
        inputs = _read(source, prepared, model) if source else None
        fitted = fit(crew, model, prepared, device, store, show)
        names, expected = do(crew, layers_task, (model, prepared, inputs, store.root), show, PREPARE_S, f"asking {prepared.engine}")
        fed = None if inputs is None else (inputs, expected)
        arguments = (device_at_home(device, store.root), fitted, fed, least_db, deadline_s)
        dissection: Dissection = do(crew, dissect_task, arguments, show, deadline_s, f"{model.name} on {device.name}")
    return Found(replace(dissection, layers=tuple(named(dissection.layers, names))), fitted.artifact, prepared.engine)


def _read(source: Path, prepared: Prepared, model: Model) -> dict[str, np.ndarray[Any, Any]]:
    from farm.importers.feed import read_inputs

    return read_inputs(source, prepared.inputs, model.preprocess)


def layers_task(desk: Desk, model: Model, prepared: Prepared, inputs: Any, cache: Path) -> tuple[list[Name], Any]:
    """The layers of the source, and its outputs for these inputs. Without any, those of the example, which are kept; and no outputs."""
    from farm.prepare import reference

    store = Store(cache)
    if inputs is None and (kept := store.find(_KIND, prepared.digest)):
        content = json.loads((kept / _FILE).read_text())
        return [(name, operator, Likeness(**values)) for name, operator, values in content], None
    desk.note(Progress(Stage.IMPORTING, f"layers of {Path(model.source).name}"))
    imported = quantize.load_float(model, cache)
    fed = reference(prepared)[0] if inputs is None else inputs
    names = [(name, "input", stats.likeness(value)) for name, value in fed.items()]
    try:
        names += [(name, operator, stats.likeness(value)) for name, operator, value in (imported.layers(fed) if imported.layers else ())]
    except Exception as exc:  # whatever an engine raises that cannot be asked on the way: layers are found without names too
        desk.note(Progress(Stage.RUNNING, f"layers have no names of the source: {type(exc).__name__}: {exc}"[:200]))
        return names, None if inputs is None else imported.reference(fed)
    if inputs is not None:
        return names, imported.reference(fed)
    with store.publish(_KIND, prepared.digest) as folder:
        (folder / _FILE).write_text(json.dumps([(name, operator, asdict(values)) for name, operator, values in names]))
    return names, None


def dissect_task(desk: Desk, *arguments: Any) -> Dissection:
    """In the worker."""
    from farm.executor.dissecting import dissect

    return dissect(desk, *arguments)


def named(layers: Sequence[Layer], names: Sequence[Name]) -> list[Layer]:
    """The layers by the source's names: of its tensors that hold the same values, the nearest that no layer before has taken."""
    taken: set[int] = set()
    found = []
    for layer in layers:
        distances = {
            place: distance
            for place, (_, _, known) in enumerate(names)
            if place not in taken and layer.likeness and (distance := stats.apart(layer.likeness, known)) < float("inf")
        }
        if distances:
            place = min(distances, key=lambda place: (distances[place], place))
            taken.add(place)
            layer = replace(layer, name=names[place][0], operator=names[place][1])
        found.append(layer)
    return found
