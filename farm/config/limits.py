"""How far answers may be from the reference's: `limits` of a model, and `[limits.float32]` and its like for all models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from farm.config.table import Table
from farm.types import LIMITS, Limits


class LimitsTable(Table):
    max_abs: Annotated[float, Field(ge=0)] | None = None
    min_snr: float | None = None
    min_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    same_top1: bool | None = None

    def over(self, limits: Limits) -> Limits:
        """The limits, those that are given here replaced."""
        names = {"min_snr": "min_snr_db"}
        given: dict[str, Any] = {names.get(name, name): value for name, value in self.model_dump(exclude_none=True).items()}
        return replace(limits, **given)

    def of_model(self, every: Mapping[str, Limits]) -> dict[str, Limits]:
        """The limits of a model whose table this is, whatever it computes in."""
        return {name: self.over(limits) for name, limits in every.items()}


class AllLimitsTable(Table):
    float32: LimitsTable = LimitsTable()
    float16: LimitsTable = LimitsTable()
    int8: LimitsTable = LimitsTable()

    def made(self) -> dict[str, Limits]:
        return {name: getattr(self, name).over(limits) for name, limits in LIMITS.items()}
