"""Compare a quantized model with its float model: layers, accuracy, and time on this machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from farm import data
from farm.compiler import host_run, relax_pipeline
from farm.errors import ModelError
from farm.importers.imported_model import ImportedModel
from farm.interleaved_measurement import (
    continue_for_rounds,
    make_in_process_inference_timer,
    measure_interleaved,
)
from farm.quantize import calibration, fp16_weights, insert_qdq
from farm.quantize.calibration import FoldedModel, Inputs, Note, Run
from farm.quantize.recipe import QuantizedModelRecipe
from farm.types import Model, Profile, QuantizationComparison, QuantizedTensorSnr

Array = np.ndarray[Any, Any]
_LAYER_SAMPLES = 16
_ROUNDS = 9


def compare_with_float(
    model: Model, floating: FoldedModel, recipe: QuantizedModelRecipe, host: Profile, note: Note
) -> QuantizationComparison:
    """Compare a float model with its quantized form.

    Layers are compared on samples of `calibration_data`, accuracy on the labelled samples of
    `dataset`, or else of `calibration_data`.
    """
    imported, dtype = floating.imported, recipe.settings.dtype
    if recipe.settings.calibrates:
        module, weights = calibration.quantize_with_given_scales(
            floating, recipe.scales, recipe.settings
        )
        bound = relax_pipeline.fold_norms_and_constants(
            relax_pipeline.bind_weights(module, weights)
        )
        observed, remarks = (
            insert_qdq.add_observed_outputs(bound, insert_qdq.dequantized_points(bound)),
            list[str](),
        )
    else:
        module, weights = fp16_weights.detach_weights(floating)
        observed, remarks = (
            fp16_weights.cast_weights_to_fp16(floating.observed),
            fp16_weights.conversion_remarks(floating.module),
        )
    layers, output = _layers(model, floating, observed, host, note)
    note("building both models", None)
    ours, theirs = (
        host_run.compile_host_runner(module, weights, host),
        host_run.compile_host_runner(floating.module, [], host),
    )
    names = [spec.name for spec in imported.inputs]
    example = [(recipe.example or imported.example)[name] for name in names]
    correct, total, why = _accuracy(model, imported, (theirs, ours), note)
    note("timing both models", None)
    seconds = measure_interleaved(
        {
            "float": make_in_process_inference_timer(lambda: theirs(example)),
            dtype: make_in_process_inference_timer(lambda: ours(example)),
        },
        continue_for_rounds(_ROUNDS),
    )
    float_ms, ms = (1e3 * statistics.median(medians) for medians in seconds.values())
    return QuantizationComparison(
        layers, output, correct[0], correct[1], total, why, float_ms, ms, dtype, tuple(remarks)
    )


def _layers(
    model: Model, floating: FoldedModel, observed: Any, host: Profile, note: Note
) -> tuple[tuple[QuantizedTensorSnr, ...], float]:
    """Return the signal-to-noise ratios in dB of the points, the worst first, and of the outputs.

    `observed` is the quantized module with the points as additional outputs.
    """
    note("building the quantized model to compare its layers", None)
    imported, theirs = floating.imported, floating.observer(host)
    ours = host_run.compile_host_runner(observed, [], host)
    total, samples = _samples(model, imported)
    count = len(floating.points)
    signal, noise = np.zeros(count + 1), np.zeros(count + 1)
    for done, inputs in enumerate(samples):
        given = [inputs[spec.name] for spec in imported.inputs]
        for index, (one, other) in enumerate(zip(theirs(given), ours(given), strict=True)):
            if one.dtype.kind == "f":
                place = min(index, count)
                signal[place] += float(np.sum(np.square(one, dtype=np.float64)))
                noise[place] += float(np.sum(np.square(one.astype(np.float64) - other)))
        note(f"comparing layers: {done + 1} of {total} samples", (done + 1) / total)
    *ratios, output = (_decibels(*pair) for pair in zip(signal, noise, strict=True))
    found = [
        QuantizedTensorSnr(index, name, ratio)
        for index, (name, ratio) in enumerate(zip(floating.names, ratios, strict=True))
    ]
    return tuple(sorted(found, key=lambda layer: layer.snr_db)), output


def _samples(model: Model, imported: ImportedModel) -> tuple[int, Iterable[Inputs]]:
    """Return how many samples layers are compared on, and these samples.

    Without calibration data that is the import's example.
    """
    if model.calibration_data is None:
        return 1, [imported.example]
    samples = data.open_data_set(model.calibration_data, imported.inputs, model.preprocess)
    chosen = samples.spread(_LAYER_SAMPLES)
    return len(chosen), (sample.inputs for sample in samples.read(chosen))


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _accuracy(
    model: Model, imported: ImportedModel, runs: tuple[Run, Run], note: Note
) -> tuple[tuple[int, int], int, str]:
    """Return how many labelled samples the float and the quantized model get right.

    The second value is the number of labelled samples; the third is the reason if there are none.
    """
    path = model.dataset or model.calibration_data
    if path is None:
        return (0, 0), 0, "there are no labelled samples (--data)"
    try:
        samples = data.open_labelled_data_set(path, model, imported.inputs, imported.outputs)
    except ModelError as error:
        return (0, 0), 0, f"{error.what}" if not error.why else f"{error.what}: {error.why}"
    correct = [0, 0]
    for done, sample in enumerate(samples.read()):
        given = [sample.inputs[spec.name] for spec in imported.inputs]
        for which, run in enumerate(runs):
            correct[which] += int(run(given)[0].argmax() == sample.label)
        note(
            f"{Path(path).name}: {done + 1} of {len(samples)} labelled samples",
            (done + 1) / len(samples),
        )
    return (correct[0], correct[1]), len(samples), ""
