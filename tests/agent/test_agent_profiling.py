"""The agent records the calls of a model's inferences, plain ones and recorded ones in turns, and
is as before when it has done so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agent_models import SmallModel
from agent_processes import Agent, client

Start = Callable[..., Agent]
Models = Callable[[str], SmallModel]


def profiled(agent: Agent, model: SmallModel, pairs: int, seconds: float) -> dict[str, Any]:
    paths = {name: str(getattr(model, name)) for name in ("library", "parameters", "x", "expected")}
    found: dict[str, Any] = client(
        "profiled", port=agent.port, pairs=pairs, seconds=seconds, **paths
    )
    return found


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "armv7"])
def test_calls_lie_within_their_inference_and_add_up_to_no_more_than_it(
    arch: str, start: Start, models: Models
) -> None:
    found = profiled(start(arch), models(arch), pairs=4, seconds=60)
    assert len(found["plain"]) == len(found["recorded"]) == 4 and all(
        seconds > 0 for seconds in found["plain"]
    )
    for inference in found["recorded"]:
        spans = inference["spans"]
        names = [span["name"] for span in spans]
        assert any("matmul" in name for name in names) and any("softmax" in name for name in names)
        assert [span["begin_s"] for span in spans] == sorted(span["begin_s"] for span in spans)
        assert all(
            span["begin_s"] >= 0 and span["begin_s"] + span["seconds"] <= inference["seconds"]
            for span in spans
        )
        assert 0 < sum(inference["own_s"]) <= inference["seconds"]
        outermost = [
            span["seconds"]
            for span in spans
            if span["depth"] == min(span["depth"] for span in spans)
        ]
        assert sum(inference["own_s"]) == pytest.approx(sum(outermost))
    assert found["max_abs"] < 1e-5, "an inference that is not recorded, after that"
    assert "no_such_function" in found["wrong"]
    assert found["memory_peak_bytes"] > 1 << 20


@pytest.mark.parametrize(("pairs", "seconds"), [(0, 60.0), (10**9, 0.0)])
def test_a_profile_ends_with_its_pairs_or_its_time_and_has_one_pair_at_the_least(
    pairs: int, seconds: float, start: Start, models: Models
) -> None:
    found = profiled(start(), models("x86_64"), pairs=pairs, seconds=seconds)
    assert len(found["plain"]) == len(found["recorded"]) == 1
