"""A model in farm's code and in other engines on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.types.made import Agreement

ENGINES = ("onnxruntime", "torch")


@dataclass(frozen=True, slots=True)
class Rival:
    """Another engine that ran the same model on the same input: the median seconds of an inference in each round, and its answer beside
    the reference's."""

    engine: str
    version: str
    seconds: tuple[float, ...]
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Contest:
    """Farm's code and other engines in turns, round by round, with so many `threads` each. `missing` says why an engine did not run it."""

    device: str
    model: str
    threads: int
    seconds: tuple[float, ...]
    rivals: tuple[Rival, ...]
    missing: Mapping[str, str]
