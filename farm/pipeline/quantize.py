"""Quantize a float model into a recipe file and report on the result (`farm quantize`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from farm import importers
from farm.errors import ModelError
from farm.pipeline.operations import Show, compile_model, run_task
from farm.pipeline.sandboxed_tasks import run_sandboxed_if_untrusted
from farm.pipeline.worker_tasks import open_pool
from farm.processes.workers import TaskContext
from farm.store import Store
from farm.types import Artifact, Model, Profile, Progress, QuantizationComparison, Stage

if TYPE_CHECKING:
    from farm.quantize.recipe import QuantizedModelRecipe

QUANTIZE_S = 6 * 3600.0  # deadline: data may be large


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """The report on a quantization, and the builds of the float and the quantized model."""

    quantized: QuantizationComparison
    float_artifact: Artifact
    artifact: Artifact


def quantize_to_recipe(
    model: Model, profile: Profile, output: Path, *, host: Profile, store: Store, show: Show
) -> QuantizationReport:
    """Quantize a model by its `quantize` table and `calibration_data`; write a recipe to `output`.

    `host` is the profile of this machine. Raises ModelError if the model cannot be quantized;
    nothing is written then.
    """
    with open_pool(store) as pool:
        arguments = (model, host, store.root, output.absolute())
        found: QuantizationComparison = run_task(
            pool, quantize_to_recipe_task, arguments, show, QUANTIZE_S, f"quantizing {model.name}"
        )
    plain = replace(model, quantize=None, calibration_data=None, dataset=None)
    trust = (
        plain.trust or importers.python_function_reference_of_model(plain) is not None
    )  # then the recipe names the user's own code
    made = replace(
        plain,
        name=output.name,
        source=str(output.absolute()),
        shapes={},
        dtypes={},
        module=None,
        trust=trust,
        values={},
    )
    profile = replace(profile, quantize=None)  # the float model must be built as float, too
    artifacts = [
        compile_model(one, profile, host=host, store=store, show=show)[1] for one in (plain, made)
    ]
    return QuantizationReport(found, *artifacts)


def quantize_to_recipe_task(
    context: TaskContext, model: Model, host: Profile, cache: Path, output: Path
) -> QuantizationComparison:
    """Quantize a model and write the recipe; called in a worker process.

    The model is read in a sandbox if it needs one.
    """
    from farm.quantize import recipe

    if recipe.is_recipe(model):
        raise ModelError(
            f"{Path(model.source).name} is quantized already",
            "it is a recipe of farm quantize",
            "name the float model",
        )
    found, made = run_sandboxed_if_untrusted(
        context, model, _quantize, model, host, cache, types=(recipe.QuantizedModelRecipe,)
    )
    recipe.write_recipe(
        output, replace(made, source=model.source, module=model.module)
    )  # as asked, whatever a hostile model says
    quantized: QuantizationComparison = found
    return quantized


def _quantize(
    context: TaskContext, model: Model, host: Profile, cache: Path
) -> tuple[QuantizationComparison, QuantizedModelRecipe]:
    """Quantize a model and report on the result; called in the sandbox."""
    from farm import importers
    from farm.compiler.build import tvm_errors_as_build_errors
    from farm.quantize import fold_for_quantization, make_recipe, quantize_settings
    from farm.quantize.report import compare_with_float

    def note(text: str, fraction: float | None) -> None:
        context.note(Progress(Stage.IMPORTING, text, fraction))

    note(f"reading {Path(model.source).name}", None)
    imported = importers.import_model(model, cache)
    with tvm_errors_as_build_errors(model.name, host):
        floating = fold_for_quantization(
            quantize_settings(model), imported, Path(model.source).name
        )
        made = make_recipe(model, floating, host, note)
        return compare_with_float(model, floating, made, host, note), made
