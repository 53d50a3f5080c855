"""What the search for better choices tries next, and what it takes for a gain: pure functions of measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm import stats
from farm.pipeline.search import Kernel, Search
from farm.pipeline.tuning import Tuned
from farm.types import Batch, Candidate, Paired, Task, Variant


def candidate(pixels: int, predicted: float = 1.0) -> Candidate:
    return Candidate({"method": "direct", "tile": [pixels, 1, 16], "order": "pixels"}, f"direct {pixels}", predicted)


def search(**counts: int) -> Search:
    """Kernels by name with so many candidates, of which the first is the default."""
    tasks = [Task(name, 1, tuple(candidate(number, number) for number in range(1, count + 1)), candidate(1), candidate(1))
             for name, count in counts.items()]  # fmt: skip
    return Search([Kernel(task) for task in tasks])


def batch(wanted: tuple[tuple[str, Candidate], ...]) -> Batch:
    variants = tuple(Variant(key, one, f"variant_{index}", ()) for index, (key, one) in enumerate(wanted))
    return Batch(Path("library.so"), Path("arrays.npz"), variants)


def measure(work: Search, seconds: dict[tuple[str, str], float], rounds: int = 10) -> list[str]:
    """One batch measured without any noise; the names of its kernels."""
    wanted = work.next()
    one = {index: seconds.get((key, choice.words), 1.0) for index, (key, choice) in enumerate(wanted)}
    work.take(batch(wanted), [one] * rounds, {})
    return list(dict.fromkeys(key for key, _ in wanted))


def test_first_all_defaults_are_measured_then_the_hardest_kernel_and_what_promises_most():
    work = search(small=3, large=20)
    assert measure(work, {("large", "direct 1"): 9.0}) == ["small", "large"]
    wanted = work.next()
    assert [key for key, _ in wanted] == ["large"] * 8
    assert [choice.words for _, choice in wanted] == [f"direct {number}" for number in range(1, 9)]


def test_a_gain_is_taken_and_the_search_goes_on_from_there():
    work = search(one=20)
    measure(work, {})
    measure(work, {("one", "direct 5"): 0.5})
    (kernel,) = work.kernels
    assert (kernel.best.words, kernel.speedup, kernel.fruitless) == ("direct 5", 2.0, 0)
    assert work.next()[0][1].words == "direct 5"


def test_less_than_the_noise_is_no_gain_and_a_kernel_without_gains_is_left():
    work = search(one=60)
    measure(work, {})
    for _ in range(3):
        assert measure(work, {("one", f"direct {number}"): 0.99 for number in range(2, 61)}) == ["one"]
    assert work.next() == ()
    assert work.kernels[0].best.words == "direct 1"


def test_a_gain_in_too_few_rounds_is_none():
    work = search(one=5)
    measure(work, {})
    measure(work, {("one", "direct 2"): 0.5}, rounds=2)
    assert work.kernels[0].speedup == 1.0 and not work.kernels[0].busy


def test_a_wrong_answer_is_never_tried_again():
    work = search(one=4)
    measure(work, {})
    wanted = work.next()
    work.take(batch(wanted), [{0: 1.0, 2: 1.0, 3: 1.0}] * 9, {1: "its answer is off by 1"})
    assert work.kernels[0].skipped == {"direct 2": "its answer is off by 1"}
    assert work.next() == ()


def test_what_kills_a_device_twice_is_skipped_and_named():
    work = search(one=4)
    measure(work, {})
    wanted = work.next()
    assert work.strike(batch(wanted), 2, "it died") == ""
    assert work.strike(batch(wanted), 2, "it died") == "direct 3 of one"
    work.take(batch(wanted), [], {})
    assert "direct 3" not in [choice.words for _, choice in work.next()]


def test_a_model_that_is_slower_as_a_whole_is_told_from_one_that_is_not(artifact=None):
    slower = Tuned(artifact, artifact, Paired((1.0,) * 9, (1.1,) * 9, {}))  # type: ignore[arg-type]
    same = Tuned(artifact, artifact, Paired((1.0, 1.1, 1.0), (1.0, 1.0, 1.1), {}))  # type: ignore[arg-type]
    assert slower.slower and not same.slower
    assert not Tuned(artifact, artifact, None).slower  # type: ignore[arg-type]


def test_the_interval_of_a_median_lies_between_order_statistics():
    values = [float(number) for number in range(1, 22)]
    assert stats.median_interval(values) == (6.0, 16.0)  # ranks 6 and 16 of 21: the tables' for 95 %
    assert stats.median_interval([1.0, 2.0]) == (1.0, 2.0)
    with pytest.raises(ValueError, match="no values"):
        stats.median_interval([])
