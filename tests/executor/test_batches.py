"""Samples run in batches: each has its own answer, and those before a bad one have theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from farm.data import Sample
from farm.errors import ModelError
from farm.executor.accuracy import _best
from farm.executor.batches import run_samples_in_batches


class Doubling:
    """A loaded model whose answer is twice its input."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def first_outputs(self, samples: Sequence[Mapping[str, Any]]) -> list[Any]:
        self.sizes.append(len(samples))
        return [2 * sample["x"] for sample in samples]


def samples(count: int, nbytes: int = 4, bad: int | None = None) -> Iterator[Sample]:
    for number in range(count):
        if number == bad:
            raise ModelError("sample is corrupt", "", "")
        yield Sample(number, f"{number}", {"x": np.full(nbytes // 4, number, "float32")}, None)


def test_batches_grow_and_each_sample_has_its_own_answer() -> None:
    loaded: Any = Doubling()
    found = [
        (sample.index, output[0]) for sample, output in run_samples_in_batches(loaded, samples(100))
    ]
    assert found == [(number, 2.0 * number) for number in range(100)]
    assert loaded.sizes == [1, 4, 16, 64, 15]


def test_a_batch_has_at_most_so_many_bytes_and_at_least_one_sample() -> None:
    for nbytes, sizes in ((1 << 20, [1, 4, 4, 1]), (8 << 20, [1] * 10)):
        loaded: Any = Doubling()
        assert len(list(run_samples_in_batches(loaded, samples(10, nbytes)))) == 10
        assert loaded.sizes == sizes


def test_the_samples_before_one_that_cannot_be_read_have_their_answers() -> None:
    loaded: Any = Doubling()
    found = run_samples_in_batches(loaded, samples(10, bad=7))
    read = []
    with pytest.raises(ModelError, match="corrupt"):
        for sample, _ in found:
            read.append(sample.index)
    assert read == list(range(7))


def test_an_answer_has_its_five_best_classes_and_none_where_a_score_is_nan() -> None:
    scores = np.array([[0.1, 0.7, 0.2, 0.9, 0.0, 0.3, 0.6]], np.float32)
    assert _best(scores) == (3, 1, 6, 5, 2)
    assert _best((100 * scores).astype(np.uint8)) == (3, 1, 6, 5, 2)
    scores[0, 4] = np.nan
    assert _best(scores) == ()
