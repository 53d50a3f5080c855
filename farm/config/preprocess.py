"""How images become inputs: the kinds of preprocessing by name, and the `preprocess` table of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from farm.config.table import Table
from farm.errors import did_you_mean
from farm.types import Preprocess

KINDS: Mapping[str, Preprocess] = {
    "imagenet": Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875),  # torchvision's, for its trained models
    "unit": Preprocess(),
    "grey": Preprocess(channels="L"),
    "none": Preprocess(std=(1 / 255,)),  # undoes the scaling to [0, 1]
}


def _known_kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError(f"unknown kind {text!r}, {did_you_mean(text, KINDS)}")
    return text


PositiveNumber = Annotated[float, Field(gt=0)]


class PreprocessTable(Table):
    kind: Annotated[str, AfterValidator(_known_kind)] = "unit"
    mean: list[float] | None = None
    std: list[PositiveNumber] | None = None
    layout: Literal["NCHW", "NHWC"] | None = None
    channels: Literal["RGB", "BGR", "L"] | None = None
    crop: Annotated[float, Field(gt=0, le=1)] | None = None
    range: Literal[1, 255] = 1

    @model_validator(mode="after")
    def _values_per_channel(self) -> PreprocessTable:
        made = self.made()
        count = 1 if made.channels == "L" else 3
        for name, values in (("mean", made.mean), ("std", made.std)):
            if len(values) not in (1, count):
                each = "one value" if count == 1 else "one value, or one for each of the 3 channels"
                raise ValueError(f"{name} takes {each}, got {len(values)}")
        return self

    def made(self) -> Preprocess:
        kind = KINDS[self.kind]
        return Preprocess(
            mean=kind.mean if self.mean is None else tuple(value / self.range for value in self.mean),
            std=kind.std if self.std is None else tuple(value / self.range for value in self.std),
            layout=self.layout or kind.layout,
            channels=self.channels or kind.channels,
            crop=kind.crop if self.crop is None else self.crop,
            stated=not self.model_fields_set.isdisjoint(("kind", "mean", "std")),
        )
