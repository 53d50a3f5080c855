"""The limits of answers' differences: `limits` of a model, `[limits.float32]` and the like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from farm.config.table import Table
from farm.types import LIMITS, OutputErrorLimits


class TolerancesTable(Table):
    """The table `limits` of a model, or of a precision."""

    max_abs: Annotated[float, Field(ge=0)] | None = None
    """The largest allowed absolute difference. It is multiplied by the largest value of the
    reference if that is above 1."""
    min_snr: float | None = None
    """The smallest allowed signal-to-noise ratio, in dB."""
    min_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    """The smallest allowed cosine similarity."""
    same_top1: bool | None = None
    """Require the reference's best class in each row."""

    def over(self, limits: OutputErrorLimits) -> OutputErrorLimits:
        """Return the limits with those given in this table replaced."""
        names = {"min_snr": "min_snr_db"}
        given: dict[str, Any] = {
            names.get(name, name): value
            for name, value in self.model_dump(exclude_none=True).items()
        }
        return replace(limits, **given)

    def of_model(self, every: Mapping[str, OutputErrorLimits]) -> dict[str, OutputErrorLimits]:
        """Return the limits, by precision, of the model whose table this is."""
        return {name: self.over(limits) for name, limits in every.items()}


class TolerancesByDtypeTable(Table):
    """The table `[limits]`: limits for all models, by the type in which they compute."""

    float32: TolerancesTable = TolerancesTable()
    """For models that compute in float32."""
    float16: TolerancesTable = TolerancesTable()
    """For models in half precision."""
    int8: TolerancesTable = TolerancesTable()
    """For models with 8-bit integers."""

    def made(self) -> dict[str, OutputErrorLimits]:
        """Return the limits by precision, with defaults for those that are not given."""
        return {name: getattr(self, name).over(limits) for name, limits in LIMITS.items()}
