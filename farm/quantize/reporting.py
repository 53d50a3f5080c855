"""What quantizing a model cost and gained: layer by layer, in accuracy, and in time on this machine."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from farm import data
from farm.compiler import here, passes
from farm.errors import ModelError
from farm.importers.imported import Imported
from farm.quantize import calibrating, inserting
from farm.quantize.calibrating import Floating, Note, Run
from farm.quantize.recipe import Recipe
from farm.turns import block_of, in_turns, so_often
from farm.types import LayerError, Model, Profile, Quantized

Array = np.ndarray[Any, Any]
_LAYER_SAMPLES = 16
_ROUNDS = 9


def report(model: Model, floating: Floating, recipe: Recipe, host: Profile, note: Note) -> Quantized:
    """Float against integers, by the samples of `calibration_data`, and the accuracy by `dataset` where the model has one."""
    imported = floating.imported
    module, weights = calibrating.quantized(floating, recipe.scales, recipe.settings)
    layers, output = _layers(model, floating, passes.folded(passes.bind(module, weights)), host, note)
    note("building both models", None)
    ours, theirs = here.built(module, weights, host), here.built(floating.module, [], host)
    names = [spec.name for spec in imported.inputs]
    example = [recipe.example[name] for name in names]
    correct, total, why = _accuracy(model, imported, (theirs, ours), note)
    note("timing both models", None)
    seconds = in_turns({"float": block_of(lambda: theirs(example)), "int8": block_of(lambda: ours(example))}, so_often(_ROUNDS))
    float_ms, int8_ms = (1e3 * statistics.median(medians) for medians in seconds.values())
    return Quantized(layers, output, correct[0], correct[1], total, why, float_ms, int8_ms)


def _layers(model: Model, floating: Floating, quantized: Any, host: Profile, note: Note) -> tuple[tuple[LayerError, ...], float]:
    """The signal-to-noise ratio of each quantized tensor, the worst first, and that of the outputs."""
    assert model.calibration_data is not None
    note("building the quantized model to compare its layers", None)
    imported, theirs = floating.imported, floating.observer(host)
    ours = here.built(inserting.observing(quantized, inserting.dequantized(quantized)), [], host)
    samples = data.opened(model.calibration_data, imported.inputs, model.preprocess)
    chosen = samples.spread(_LAYER_SAMPLES)
    count = len(floating.points)
    signal, noise = np.zeros(count + 1), np.zeros(count + 1)
    for done, sample in enumerate(samples.read(chosen)):
        given = [sample.inputs[spec.name] for spec in imported.inputs]
        for index, (one, other) in enumerate(zip(theirs(given), ours(given), strict=True)):
            if one.dtype.kind == "f":
                place = min(index, count)
                signal[place] += float(np.sum(np.square(one, dtype=np.float64)))
                noise[place] += float(np.sum(np.square(one.astype(np.float64) - other)))
        note(f"comparing layers: {done + 1} of {len(chosen)} samples", (done + 1) / len(chosen))
    *ratios, output = (_decibels(*pair) for pair in zip(signal, noise, strict=True))
    found = [LayerError(index, name, ratio) for index, (name, ratio) in enumerate(zip(floating.names, ratios, strict=True))]
    return tuple(sorted(found, key=lambda layer: layer.snr_db)), output


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _accuracy(model: Model, imported: Imported, runs: tuple[Run, Run], note: Note) -> tuple[tuple[int, int], int, str]:
    """How many labelled samples float and integers get right, of how many; why there are none."""
    path = model.dataset or model.calibration_data
    assert path is not None
    try:
        samples = data.labelled(path, model, imported.inputs, imported.outputs)
    except ModelError as error:
        return (0, 0), 0, f"{error.what}" if not error.why else f"{error.what}: {error.why}"
    correct = [0, 0]
    for done, sample in enumerate(samples.read()):
        given = [sample.inputs[spec.name] for spec in imported.inputs]
        for which, run in enumerate(runs):
            correct[which] += int(run(given)[0].argmax() == sample.label)
        note(f"{Path(path).name}: {done + 1} of {len(samples)} labelled samples", (done + 1) / len(samples))
    return (correct[0], correct[1]), len(samples), ""
