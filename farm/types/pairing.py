"""Two builds that are measured in turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.types.fleet import Limits
from farm.types.made import Artifact, Prepared


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two, under a name for people: what is built, the model that it has to answer as, and the limits of that."""

    name: str
    artifact: Artifact
    prepared: Prepared
    limits: Limits


@dataclass(frozen=True, slots=True)
class Until:
    """How long to measure: until the interval of the ratio, at this `confidence`, reaches no further than `precision` to either side, and
    for `seconds` at the most. The builds are loaded anew so many times on the way."""

    seconds: float = 20.0
    precision: float = 0.01
    confidence: float = 0.99
    loads: int = 3


@dataclass(frozen=True, slots=True)
class Paired:
    """Seconds per inference of both builds, one of each a round, by the device's own clock, and what the device says of itself. Rounds of
    one load follow each other; `loads` says how many each had."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    facts: Mapping[str, str]
    loads: tuple[int, ...] = ()
