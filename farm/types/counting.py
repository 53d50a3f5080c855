"""How many labelled samples of a set are classified right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.types.runs import Failure


@dataclass(frozen=True, slots=True)
class Answered:
    """What a lane says on the way: the best classes of samples, the best first, by the samples' keys; none where a score was NaN.

    `converted` counts, in words, what was done to images since the last of these.
    """

    best: Mapping[str, tuple[int, ...]]
    converted: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What one device, or the reference engine, made of a set of `total` labelled samples, `answered` of them.

    `top1` and `top5` count those whose class was the best, and among the five best; `same` those whose best class was the
    reference's, of `compared` which both have answered. `nan` counts answers with NaN. `kept` are answers of an earlier time.
    """

    name: str
    total: int
    answered: int
    top1: int
    top5: int
    same: int
    compared: int
    nan: int
    kept: int
    converted: Mapping[str, int]
    failure: Failure | None = None
