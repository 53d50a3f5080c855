"""The answers of a device, or of the reference engine, to many samples; told on the way, so that nothing is lost when it ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import data, quantize, stats
from farm.deadline import Deadline
from farm.executor.loading import open_and_load
from farm.parallel import Desk
from farm.types import Answered, Artifact, Device, Model, Prepared, Progress, Stage

if TYPE_CHECKING:
    import numpy as np

    Scores = Callable[[dict[str, np.ndarray[Any, Any]]], np.ndarray[Any, Any]]

BEST = 5
_CHUNK, _CHUNK_S = 256, 1.0  # samples or seconds, at the most, between two notes


def classify_on(
    desk: Desk,
    device: Device,
    artifact: Artifact,
    agent: Path | None,
    sitting: tuple[Path, Model, Prepared, Sequence[int]],
    sitting_s: float,
    deadline_s: float,
) -> None:
    """Samples of a set on a device: those of the indices, in order, as far as the time of a sitting goes."""
    with ExitStack() as stack:
        loaded, _, _ = open_and_load(stack, desk, device, artifact, agent, deadline_s, {})
        desk.note(Progress(Stage.ACCURACY))

        def scores(inputs: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
            loaded.feed(inputs)
            loaded.record()
            loaded.run()
            return loaded.outputs()[0]

        _answer(desk, sitting, scores, Deadline(sitting_s))


def classify_here(desk: Desk, sitting: tuple[Path, Model, Prepared, Sequence[int]], cache: Path, sitting_s: float) -> None:
    """The same by the engine that the model came from, on this machine."""
    model = sitting[1]
    desk.note(Progress(Stage.IMPORTING, f"reading {Path(model.source).name}"))
    imported = quantize.load_float(model, cache)
    desk.note(Progress(Stage.ACCURACY))
    _answer(desk, sitting, lambda inputs: imported.reference(inputs)[0], Deadline(sitting_s))


def _answer(desk: Desk, sitting: tuple[Path, Model, Prepared, Sequence[int]], scores: Scores, deadline: Deadline) -> None:
    """Raises ModelError for a sample that cannot be fed; the answers before it are told."""
    path, model, prepared, indices = sitting
    samples = data.labelled(path, model, prepared.inputs, prepared.outputs)
    best: dict[str, tuple[int, ...]] = {}
    converted, told = Counter[str](), time.monotonic()

    def tell() -> None:
        nonlocal best, converted, told
        now = Counter(samples.converted)
        desk.note(Answered(best, dict(now - converted)))
        best, converted, told = {}, now, time.monotonic()

    try:
        for sample in samples.read(indices):
            best[samples.key(sample.index)] = _best(scores(sample.inputs))
            if len(best) == _CHUNK or time.monotonic() - told > _CHUNK_S:
                tell()
            if deadline.expired:
                break
    finally:
        tell()


def _best(scores: np.ndarray[Any, Any]) -> tuple[int, ...]:
    import numpy as np

    return () if scores.dtype.kind == "f" and np.isnan(scores).any() else tuple(stats.best(scores, BEST))
