"""Two builds that are measured interleaved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.types.artifacts import Artifact, PreparedModel
from farm.types.fleet_config import OutputErrorLimits


@dataclass(frozen=True, slots=True)
class PairedBuild:
    """One of the two builds, under a name for display.

    `prepared` is the model whose reference its answer must match, within `limits`.
    """

    name: str
    artifact: Artifact
    prepared: PreparedModel
    limits: OutputErrorLimits


@dataclass(frozen=True, slots=True)
class PairedStoppingRule:
    """The stopping rule of an interleaved measurement.

    Stop when the interval of the ratio, at this `confidence`, extends no further than `precision`
    to either side, and after `seconds` at the latest, but not before `stats.LEAST_ROUNDS` rounds.
    `loads` is how many times the builds are reloaded during the measurement.
    """

    seconds: float = 20.0
    precision: float = 0.01
    confidence: float = 0.99
    loads: int = 3


@dataclass(frozen=True, slots=True)
class PairedSamples:
    """The seconds per inference of both builds, one of each per round, by the device's clock.

    `facts` are the device's facts. Rounds of one load follow each other; `loads` are the numbers of
    rounds of the loads.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    facts: Mapping[str, str]
    loads: tuple[int, ...] = ()
