"""`farm quantize`: a float model into a recipe file, and what that made of it; and which models a profile wants quantized."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from farm.errors import ModelError
from farm.parallel import Desk
from farm.pipeline.single import Show, compile_model, do
from farm.pipeline.tasks import crew_of
from farm.store import Store
from farm.types import Artifact, Model, Profile, Progress, Quantized, Stage

QUANTIZE_S = 6 * 3600.0  # deadline: data may be large


@dataclass(frozen=True, slots=True)
class Report:
    """What quantizing made of a model, and both as they are built for a profile."""

    quantized: Quantized
    float_artifact: Artifact
    artifact: Artifact


def quantize(model: Model, profile: Profile, output: Path, *, host: Profile, store: Store, show: Show) -> Report:
    """Quantize a model as its `quantize` and `calibration_data` say, and write the recipe to a file.

    Raises ModelError for what keeps it from being quantized; nothing is written then.
    """
    with crew_of(store) as crew:
        arguments = (model, host, store.root, output.absolute())
        found: Quantized = do(crew, quantize_task, arguments, show, QUANTIZE_S, f"quantizing {model.name}")
    plain = replace(model, quantize=None, calibration_data=None, dataset=None)
    made = replace(plain, name=output.name, source=str(output.absolute()), shapes={}, dtypes={}, module=None)
    profile = replace(profile, quantize=None)  # the float one, too, as it is
    artifacts = [compile_model(one, profile, host=host, store=store, show=show)[1] for one in (plain, made)]
    return Report(found, *artifacts)


def quantize_task(desk: Desk, model: Model, host: Profile, cache: Path, output: Path) -> Quantized:
    """In the worker."""
    from farm import importers
    from farm.compiler.build import compiling
    from farm.quantize import calibrated, floating_of, recipe, settings_of
    from farm.quantize.reporting import report

    def note(text: str, fraction: float | None) -> None:
        desk.note(Progress(Stage.IMPORTING, text, fraction))

    note(f"reading {Path(model.source).name}", None)
    if recipe.is_recipe(model):
        raise ModelError(f"{Path(model.source).name} is quantized already", "it is a recipe of farm quantize", "name the float model")
    imported = importers.load(model, cache)
    with compiling(model.name, host):
        floating = floating_of(settings_of(model), imported, Path(model.source).name)
        made = calibrated(model, floating, host, note)
        found = report(model, floating, made, host, note)
    recipe.write(output, made)
    return found
