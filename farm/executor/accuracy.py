"""Classify many samples on a device or with the reference engine.

Predictions are reported in chunks on the way, so that none is lost if the session ends early.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import data, importers, quantize, stats
from farm.data import Sample
from farm.executor.batches import run_samples_in_batches
from farm.executor.loading import connect_and_load_model
from farm.processes.deadline import Deadline
from farm.processes.workers import TaskContext
from farm.types import Artifact, Device, Model, PredictionsReported, PreparedModel, Progress, Stage

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Answering = Callable[[Iterable[Sample]], Iterator[tuple[Sample, Array]]]

TOP_K = 5  # classes per prediction
_CHUNK, _CHUNK_S = 256, 1.0  # at most so many samples or seconds between two notes


def stream_device_predictions(
    context: TaskContext,
    device: Device,
    artifact: Artifact,
    agent: Path | None,
    sitting: tuple[Path, Model, PreparedModel, Sequence[int]],
    sitting_s: float,
    deadline_s: float,
) -> None:
    """Classify samples of a set on a device, in the order of their indices.

    `sitting` holds the path of the set, the model, the prepared model and the indices.
    Classification stops after `sitting_s` seconds.
    """
    with ExitStack() as stack:
        loaded, _, _ = connect_and_load_model(
            stack, context, device, artifact, agent, deadline_s, {}
        )
        context.note(Progress(Stage.ACCURACY))
        _answer(context, sitting, partial(run_samples_in_batches, loaded), Deadline(sitting_s))


def stream_reference_predictions(
    context: TaskContext,
    sitting: tuple[Path, Model, PreparedModel, Sequence[int]],
    cache: Path,
    sitting_s: float,
) -> None:
    """Classify samples with the reference engine here; see `stream_device_predictions`."""
    model = sitting[1]
    context.note(Progress(Stage.IMPORTING, f"reading {Path(model.source).name}"))
    imported = importers.import_model(quantize.float_model(model), cache)
    context.note(Progress(Stage.ACCURACY))

    def answered(samples: Iterable[Sample]) -> Iterator[tuple[Sample, Array]]:
        for sample in samples:
            yield sample, imported.reference(sample.inputs)[0]

    _answer(context, sitting, answered, Deadline(sitting_s))


def _answer(
    context: TaskContext,
    sitting: tuple[Path, Model, PreparedModel, Sequence[int]],
    answered: Answering,
    deadline: Deadline,
) -> None:
    """Classify samples and report the predictions until all are done or the deadline has expired.

    Raises ModelError for a sample that cannot be fed; earlier predictions are reported before.
    """
    path, model, prepared, indices = sitting
    samples = data.open_labelled_data_set(path, model, prepared.inputs, prepared.outputs)
    best: dict[str, tuple[int, ...]] = {}
    converted, told = Counter[str](), time.monotonic()

    def tell() -> None:
        nonlocal best, converted, told
        now = Counter(samples.converted)
        context.note(PredictionsReported(best, dict(now - converted)))
        best, converted, told = {}, now, time.monotonic()

    try:
        for sample, scores in answered(samples.read(indices)):
            best[samples.key(sample.index)] = _best(scores)
            if len(best) == _CHUNK or time.monotonic() - told > _CHUNK_S:
                tell()
            if deadline.expired:
                break
    finally:
        tell()


def _best(scores: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Return the best classes, the best first; none if a score is NaN."""
    import numpy as np

    return (
        ()
        if scores.dtype.kind == "f" and np.isnan(scores).any()
        else tuple(stats.top_indices(scores, TOP_K))
    )
