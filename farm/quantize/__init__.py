"""Quantize float models to int8 or float16 weights, by a model's `quantize` or a recipe file.

    calibration   run the float model over samples and collect the ranges of its tensors
    ranges        choose scales and zero points from the ranges
    insert_qdq    insert quantize and dequantize operators (QDQ)
    fp16_weights  store weights as float16
    recipe        read and write the recipe files of `farm quantize`
    report        compare the quantized model with the float model

    if applies_to(model):
        imported = importers.import_model(float_model(model), cache)
        imported = apply(model, imported, host, note)
    key = fingerprint(model, cache)  # of the import and of the quantization, if there is one

`farm.checked_model_import.import_and_quantize` does this for every model.

The reference of a quantized model is its float model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import data, importers
from farm.compiler.build import tvm_errors_as_build_errors
from farm.compiler.build_digests import compiler_sources_digest
from farm.compiler.parameter_files import array_bytes
from farm.errors import ModelError
from farm.quantize import recipe as recipes
from farm.store import digest_of_parts, source_digest
from farm.types import Model, Profile, QuantizeSettings, TensorSpec

if TYPE_CHECKING:
    from farm.importers import ImportedModel
    from farm.quantize.calibration import FoldedModel, Inputs, Note
    from farm.quantize.recipe import QuantizedModelRecipe


def is_quantized_by_farm(model: Model) -> bool:
    """Return True if farm quantizes this model."""
    return model.quantize is not None or recipes.is_recipe(model)


def quantize_settings(model: Model) -> QuantizeSettings:
    """Return the quantization settings of a model that farm quantizes."""
    return (
        recipes.read_recipe(Path(model.source)).settings
        if recipes.is_recipe(model)
        else model.quantize or QuantizeSettings()
    )


def quantized_import_fingerprint(model: Model, cache: Path) -> str | None:
    """Return the digest of everything that an imported, and maybe quantized, model depends on.

    Returns None if only importing the model can tell. Raises ModelError if the calibration data
    cannot be read.
    """
    if not is_quantized_by_farm(model):
        return importers.import_fingerprint(model, cache)
    own = digest_of_parts(compiler_sources_digest(), source_digest(["quantize"]))
    if recipes.is_recipe(model):
        base = importers.import_fingerprint(float_model(model), cache)
        return base and digest_of_parts(base, Path(model.source), own)
    base = importers.import_fingerprint(model, cache)
    assert model.quantize is not None
    if not model.quantize.calibrates:
        return base and digest_of_parts(base, asdict(model.quantize), own)
    path = _data_of(model)
    try:
        samples = data.data_set_digest(path)
    except OSError as exc:
        what = f"{model.name}: its calibration data cannot be read"
        raise ModelError(what, f"{exc.strerror}: {path}", "correct `calibration_data`") from exc
    return base and digest_of_parts(
        base, asdict(model.quantize), asdict(model.preprocess), samples, own
    )


def quantize_imported(
    model: Model, imported: ImportedModel, host: Profile, note: Note
) -> ImportedModel:
    """Return an imported float model quantized by its recipe, or else by its `quantize`.

    `host` is the profile of this machine. Raises ModelError if the model cannot be quantized.
    """
    recipe, label = (
        recipes.read_recipe(Path(model.source)) if recipes.is_recipe(model) else None,
        Path(model.source).name,
    )
    with tvm_errors_as_build_errors(model.name, host):
        floating = fold_for_quantization(quantize_settings(model), imported, label)
        return apply_recipe(floating, recipe or make_recipe(model, floating, host, note), label)


def fold_for_quantization(
    settings: QuantizeSettings, imported: ImportedModel, label: str
) -> FoldedModel:
    """Return an imported model simplified for quantization with these settings.

    `label` names the model in errors. Raises ModelError if it cannot be quantized.
    """
    from farm.quantize import calibration, fp16_weights

    return (
        calibration.fold_for_int8(imported, label)
        if settings.calibrates
        else fp16_weights.fold_for_fp16_weights(imported, label)
    )


def float_model(model: Model) -> Model:
    """Return the float model of a recipe; return any other model unchanged."""
    return (
        recipes.float_model(model, recipes.read_recipe(Path(model.source)))
        if recipes.is_recipe(model)
        else model
    )


def make_recipe(
    model: Model, floating: FoldedModel, host: Profile, note: Note
) -> QuantizedModelRecipe:
    """Return the recipe for a float model, calibrated if its `quantize` says so.

    The samples are read from its `calibration_data`. Raises ModelError if these are missing.
    """
    from farm.importers.fixed_batch import inputs_at_batch_one
    from farm.quantize import calibration
    from farm.quantize.ranges import needs_histogram, scale_and_zero_point

    settings, specs = model.quantize or QuantizeSettings(), floating.imported.inputs
    if not settings.calibrates:
        return _recipe(model, floating, settings, f"no data: {settings.dtype} needs none", (), {})
    path = _data_of(model)
    samples = data.open_data_set(
        path, inputs_at_batch_one(specs) if model.batch else specs, model.preprocess
    )
    chosen = samples.spread(settings.samples)

    def inputs() -> Iterable[Inputs]:
        return (_filled(sample.inputs, specs) for sample in samples.read(chosen))

    seen = calibration.observe_ranges(
        floating, inputs, len(chosen), host, note, needs_histogram(settings)
    )
    note(f"choosing ranges by {settings.calibration}", None)
    scales = [scale_and_zero_point(one, settings) for one in seen]
    [first] = samples.read(chosen[:1])
    return _recipe(
        model, floating, settings, f"{path.name}, {len(chosen)} samples", scales, first.inputs
    )


def _filled(sample: Mapping[str, Any], specs: Sequence[TensorSpec]) -> Inputs:
    """Repeat one sample to fill the batch; calibration ranges do not change by repetition."""
    import numpy as np

    return {spec.name: np.resize(sample[spec.name], spec.shape) for spec in specs}


def _recipe(
    model: Model,
    floating: FoldedModel,
    settings: QuantizeSettings,
    data: str,
    scales: Sequence[tuple[float, int]],
    example: Inputs,
) -> QuantizedModelRecipe:
    return recipes.QuantizedModelRecipe(
        source=model.source,
        shapes=model.shapes,
        dtypes=model.dtypes,
        values=model.values,
        module=model.module,
        weights=_weights(floating),
        settings=settings,
        data=data,
        names=tuple(floating.names) if scales else (),
        scales=tuple(scales),
        example=example,
    )


def apply_recipe(floating: FoldedModel, recipe: QuantizedModelRecipe, label: str) -> ImportedModel:
    """Return a float model quantized by a recipe. The reference remains that of the float model."""
    from farm.quantize import calibration, fp16_weights

    imported, calibrates = floating.imported, recipe.settings.calibrates
    inputs, names = (imported.inputs, floating.names) if calibrates else ((), [])
    recipes.check_recipe_fits(recipe, names, _weights(floating), inputs, label)
    if not calibrates:
        module, weights = fp16_weights.detach_weights(floating)
        return replace(imported, module=module, weights=weights)
    example = _filled(recipe.example, imported.inputs)
    module, weights = calibration.quantize_with_given_scales(
        floating, recipe.scales, recipe.settings
    )
    return replace(imported, module=module, weights=weights, example=example)


def _weights(floating: FoldedModel) -> str:
    """Return the digest of the constants of a float model, in order."""
    from farm.compiler.relax_pipeline import lift_constants_into_parameters

    return digest_of_parts(
        *(
            bytes(array_bytes(value))
            for value in lift_constants_into_parameters(floating.module.clone())[1]
        )
    )


def _data_of(model: Model) -> Path:
    """Return the path of a model's calibration data; raise ModelError if it has none."""
    if model.calibration_data is None:
        fix = (
            'name samples of what it will be fed: calibration_data = "DIR" beside quantize, or '
            "farm quantize MODEL --data DIR"
        )
        raise ModelError(
            f"{model.name}: there is no data to quantize it by",
            "the ranges of its tensors are found by running it",
            fix,
        )
    return model.calibration_data
