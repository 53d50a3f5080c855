"""A run takes the samples that its plan requires, and no more of them."""

from __future__ import annotations

from farm_processes import Farm


def test_a_run_ends_with_the_sample_that_completes_it(farm: Farm) -> None:
    done = farm.run(
        "bench", "--device", "host", "digits", "--count", "12", "--minimum", "0", "--json"
    )
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert len(run["samples"]["seconds"]) == 12
