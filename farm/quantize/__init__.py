"""Float models become models of integers: what `quantize` of a model asks for, and what the recipe files of `farm quantize` say.

imported = load(model, cache, host, note)     # as importers.load, and quantized where the model says so
key = fingerprint(model, cache)               # as importers.fingerprint
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from farm import data, importers
from farm.compiler.build import compiler_digest, compiling
from farm.compiler.parameters import raw
from farm.errors import ModelError
from farm.quantize import recipe as recipes
from farm.store import digest_of
from farm.types import Model, Profile, Quantize

if TYPE_CHECKING:
    from farm.importers import Imported
    from farm.quantize.calibrating import Floating, Inputs, Note
    from farm.quantize.recipe import Recipe


def is_asked(model: Model) -> bool:
    """Whether a model is quantized by farm."""
    return model.quantize is not None or recipes.is_recipe(model)


def fingerprint(model: Model, cache: Path) -> str | None:
    """The digest of all that what `load` returns depends on; None where only importing can tell."""
    if not is_asked(model):
        return importers.fingerprint(model, cache)
    own = digest_of(compiler_digest(), *sorted(Path(__file__).parent.glob("*.py")))
    if recipes.is_recipe(model):
        base = importers.fingerprint(float_of(model), cache)
        return base and digest_of(base, Path(model.source), own)
    base = importers.fingerprint(model, cache)
    assert model.quantize is not None
    path = _data_of(model)
    try:
        samples = data.digest(path)
    except OSError as exc:
        what = f"{model.name}: its calibration data cannot be read"
        raise ModelError(what, f"{exc.strerror}: {path}", "correct `calibration_data`") from exc
    return base and digest_of(base, asdict(model.quantize), asdict(model.preprocess), samples, own)


def load(model: Model, cache: Path, host: Profile, note: Note) -> Imported:
    """Import a model, and quantize it where that is asked for. `host` is the profile of this machine.

    Raises ModelError for what keeps it from being imported or quantized.
    """
    if not is_asked(model):
        return importers.load(model, cache)
    recipe = recipes.read(Path(model.source)) if recipes.is_recipe(model) else None
    imported = load_float(model, cache)
    with compiling(model.name, host):
        return applied(imported, recipe or calibrated(model, imported, host, note), Path(model.source).name)


def load_float(model: Model, cache: Path) -> Imported:
    """Import a model for its reference: of a quantized one, the float model."""
    return importers.load(float_of(model), cache)


def float_of(model: Model) -> Model:
    """The float model that a recipe is for; any other model as it is."""
    return recipes.float_model(model, recipes.read(Path(model.source))) if recipes.is_recipe(model) else model


def calibrated(model: Model, imported: Imported, host: Profile, note: Note) -> Recipe:
    """The recipe for a float model, by its `quantize` and the samples of its `calibration_data`."""
    from farm.quantize import calibrating
    from farm.quantize.ranges import needs_histogram, scale_of

    settings, what = model.quantize or Quantize(), Path(model.source).name
    floating = calibrating.floating(imported, what)
    path = _data_of(model)
    samples = data.opened(path, imported.inputs, model.preprocess)
    chosen = samples.spread(settings.samples)

    def inputs() -> Iterable[Inputs]:
        return (sample.inputs for sample in samples.read(chosen))

    names = [spec.name for spec in imported.inputs]
    seen = calibrating.observed(floating, names, inputs, len(chosen), host, note, needs_histogram(settings))
    note(f"choosing ranges by {settings.calibration}", None)
    scales = [scale_of(one, settings) for one in seen]
    [first] = samples.read(chosen[:1])
    return recipes.Recipe(
        source=model.source,
        shapes=model.shapes,
        dtypes=model.dtypes,
        module=model.module,
        weights=_weights(floating),
        settings=settings,
        data=f"{path.name}, {len(chosen)} samples",
        names=tuple(floating.names),
        scales=tuple(scales),
        example=first.inputs,
    )


def applied(imported: Imported, recipe: Recipe, what: str) -> Imported:
    """A float model quantized by a recipe. The reference stays the float model."""
    from farm.quantize import calibrating

    floating = calibrating.floating(imported, what)
    recipes.check_fits(recipe, floating.names, _weights(floating), imported.inputs, what)
    import numpy as np

    example = {spec.name: np.resize(recipe.example[spec.name], spec.shape) for spec in imported.inputs}
    module, weights = calibrating.quantized(floating, recipe.scales, recipe.settings, len(imported.inputs))
    return replace(imported, module=module, weights=weights, example=example)


def _weights(floating: Floating) -> str:
    """The digest of the constants of a float model, in order."""
    from farm.compiler.passes import lifted

    return digest_of(*(bytes(raw(value)) for value in lifted(floating.module.clone())[1]))


def _data_of(model: Model) -> Path:
    if model.calibration_data is None:
        fix = 'name samples of what it will be fed: calibration_data = "DIR" beside quantize, or farm quantize MODEL --data DIR'
        raise ModelError(f"{model.name}: there is no data to quantize it by", "the ranges of its tensors are found by running it", fix)
    return model.calibration_data
