"""Inputs that differ in their last bit."""

from __future__ import annotations

import numpy as np
import pytest

from farm.stats import inputs_changed_in_the_last_bit


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_number_is_replaced_by_a_neighbour(dtype: str) -> None:
    given = np.random.default_rng(1).standard_normal((5, 7)).astype(dtype)
    changed = [one["x"] for one in inputs_changed_in_the_last_bit({"x": given})]
    assert len({one.tobytes() for one in changed}) == len(changed) == 3
    for one in changed:
        assert one.dtype == given.dtype
        up, down = (np.nextafter(given, np.array(to, dtype)) for to in (np.inf, -np.inf))
        assert ((one == up) | (one == down)).all() and (one == up).any() and (one == down).any()


def test_integers_stay_and_the_changes_are_the_same_each_time() -> None:
    given = {"x": np.ones(9, "float32"), "tokens": np.arange(4)}
    first, again = (list(inputs_changed_in_the_last_bit(given)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one["tokens"].tobytes() == given["tokens"].tobytes()
        assert one["x"].tobytes() == other["x"].tobytes()
