"""Float models become models of integers, or of halved weights: what `quantize` of a model and the recipes of `farm quantize` say.

imported = load(model, cache, host, note)     # as importers.load, and quantized where the model says so
key = fingerprint(model, cache)               # as importers.fingerprint
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import data, importers
from farm.compiler.build import compiler_digest, compiling
from farm.compiler.parameters import raw
from farm.errors import ModelError
from farm.quantize import recipe as recipes
from farm.store import digest_of
from farm.types import Model, Profile, Quantize, TensorSpec

if TYPE_CHECKING:
    from farm.importers import Imported
    from farm.quantize.calibrating import Floating, Inputs, Note
    from farm.quantize.recipe import Recipe


def is_asked(model: Model) -> bool:
    """Whether a model is quantized by farm."""
    return model.quantize is not None or recipes.is_recipe(model)


def settings_of(model: Model) -> Quantize:
    """How a model that is quantized by farm is."""
    return recipes.read(Path(model.source)).settings if recipes.is_recipe(model) else model.quantize or Quantize()


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
    if not model.quantize.calibrates:
        return base and digest_of(base, asdict(model.quantize), own)
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
    recipe, what = recipes.read(Path(model.source)) if recipes.is_recipe(model) else None, Path(model.source).name
    imported = load_float(model, cache)
    with compiling(model.name, host):
        floating = floating_of(settings_of(model), imported, what)
        return applied(floating, recipe or calibrated(model, floating, host, note), what)


def floating_of(settings: Quantize, imported: Imported, what: str) -> Floating:
    """An imported model as it is before it is quantized so. Raises ModelError for one that cannot be."""
    from farm.quantize import calibrating, halving

    return calibrating.floating(imported, what) if settings.calibrates else halving.floating(imported, what)


def load_float(model: Model, cache: Path) -> Imported:
    """Import a model for its reference: of a quantized one, the float model."""
    return importers.load(float_of(model), cache)


def float_of(model: Model) -> Model:
    """The float model that a recipe is for; any other model as it is."""
    return recipes.float_model(model, recipes.read(Path(model.source))) if recipes.is_recipe(model) else model


def calibrated(model: Model, floating: Floating, host: Profile, note: Note) -> Recipe:
    """The recipe for a float model, by its `quantize` and the samples of its `calibration_data`."""
    from farm.importers.batches import one_each
    from farm.quantize import calibrating
    from farm.quantize.ranges import needs_histogram, scale_of

    settings, specs = model.quantize or Quantize(), floating.imported.inputs
    if not settings.calibrates:
        return _recipe(model, floating, settings, f"no data: {settings.dtype} needs none", (), {})
    path = _data_of(model)
    samples = data.opened(path, one_each(specs) if model.batch else specs, model.preprocess)
    chosen = samples.spread(settings.samples)

    def inputs() -> Iterable[Inputs]:
        return (_filled(sample.inputs, specs) for sample in samples.read(chosen))

    seen = calibrating.observed(floating, inputs, len(chosen), host, note, needs_histogram(settings))
    note(f"choosing ranges by {settings.calibration}", None)
    scales = [scale_of(one, settings) for one in seen]
    [first] = samples.read(chosen[:1])
    return _recipe(model, floating, settings, f"{path.name}, {len(chosen)} samples", scales, first.inputs)


def _filled(sample: Mapping[str, Any], specs: Sequence[TensorSpec]) -> Inputs:
    """A sample as often as a batch of these inputs wants it: the ranges are those of one."""
    import numpy as np

    return {spec.name: np.resize(sample[spec.name], spec.shape) for spec in specs}


def _recipe(
    model: Model, floating: Floating, settings: Quantize, data: str, scales: Sequence[tuple[float, int]], example: Inputs
) -> Recipe:
    return recipes.Recipe(
        source=model.source,
        shapes=model.shapes,
        dtypes=model.dtypes,
        module=model.module,
        weights=_weights(floating),
        settings=settings,
        data=data,
        names=tuple(floating.names) if scales else (),
        scales=tuple(scales),
        example=example,
    )


def applied(floating: Floating, recipe: Recipe, what: str) -> Imported:
    """A float model quantized by a recipe. The reference stays the float model."""
    from farm.quantize import calibrating, halving

    imported, calibrates = floating.imported, recipe.settings.calibrates
    inputs, names = (imported.inputs, floating.names) if calibrates else ((), [])
    recipes.check_fits(recipe, names, _weights(floating), inputs, what)
    if not calibrates:
        module, weights = halving.detached(floating)
        return replace(imported, module=module, weights=weights)
    example = _filled(recipe.example, imported.inputs)
    module, weights = calibrating.quantized(floating, recipe.scales, recipe.settings)
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
