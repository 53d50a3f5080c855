"""Comparison of farm's code with other inference engines on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.types.artifacts import Agreement

ENGINES = ("onnxruntime", "torch", "litert")


@dataclass(frozen=True, slots=True)
class EngineResult:
    """Another engine that ran the same model on the same input.

    `seconds` are the median seconds of an inference in each round. `agreement` compares its answer
    with the reference's.
    """

    engine: str
    version: str
    seconds: tuple[float, ...]
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """Farm's code and other engines measured interleaved, with `threads` threads each.

    `seconds` are those of farm's code, by round. `missing` is, by engine, the reason why it did not
    run.
    """

    device: str
    model: str
    threads: int
    seconds: tuple[float, ...]
    rivals: tuple[EngineResult, ...]
    missing: Mapping[str, str]
