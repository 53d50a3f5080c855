"""Accuracy of classification over a set of labelled samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.types.runs import Failure


@dataclass(frozen=True, slots=True)
class PredictionsReported:
    """Predictions that a worker process reports while it runs.

    `best` maps a sample's key to its best classes, the best first; empty if a score was NaN.
    `converted` counts the conversions applied to images since the previous report, by description.
    """

    best: Mapping[str, tuple[int, ...]]
    converted: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of one device, or of the reference engine, over `total` labelled samples.

    `answered` samples have a prediction. `top1` counts those whose label was the best class, and
    `top5` those whose label was among the five best. `same` counts those whose best class was the
    reference's, among the `compared` samples that both have answered. `nan` counts answers with
    NaN. `kept` counts answers stored by an earlier run.
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
