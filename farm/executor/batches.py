"""Run a model on a device for many samples, several of them a call."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from farm.data import Sample
from farm.executor.loading import LoadedModel

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_BATCH_S = 0.25  # of a call: progress stays visible, and a round trip costs little beside it
_MOST_BYTES = 4 << 20  # of the inputs of a call
_GROWTH = 4


def run_samples_in_batches(
    loaded: LoadedModel, samples: Iterable[Sample]
) -> Iterator[tuple[Sample, Array]]:
    """Yield each sample with the model's first output for it.

    If reading a sample fails, the outputs for those before it are yielded first.
    """
    iterator, most = iter(samples), 1
    failure: Exception | None = None
    while not failure:
        batch: list[Sample] = []
        try:
            while len(batch) < most and (sample := next(iterator, None)):
                batch.append(sample)
        except Exception as error:
            failure = error
        if not batch:
            break
        begin = time.perf_counter()
        answers = loaded.first_outputs([sample.inputs for sample in batch])
        each_s = (time.perf_counter() - begin) / len(batch)
        yield from zip(batch, answers, strict=True)
        size = max(1, sum(value.nbytes for value in batch[0].inputs.values()))
        wanted = min(int(_BATCH_S / max(each_s, 1e-6)), _MOST_BYTES // size, _GROWTH * most)
        most = max(1, wanted)
    if failure:
        raise failure
