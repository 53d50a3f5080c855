"""The `preprocess` table of a model, and the named kinds of preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from farm.config.table import Table
from farm.errors import did_you_mean
from farm.types import PreprocessSettings

KINDS: Mapping[str, PreprocessSettings] = {
    # torchvision's, for its trained models
    "imagenet": PreprocessSettings(
        mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875
    ),
    "unit": PreprocessSettings(),
    "grey": PreprocessSettings(channels="L"),
    "none": PreprocessSettings(std=(1 / 255,)),  # undoes the scaling to [0, 1]
}


def _known_kind(text: str) -> str:
    if text not in KINDS:
        raise ValueError(f"unknown kind {text!r}, {did_you_mean(text, KINDS)}")
    return text


PositiveNumber = Annotated[float, Field(gt=0)]


class PreprocessTable(Table):
    """The table `preprocess` of a model: the conversion of images to inputs."""

    kind: Annotated[str, AfterValidator(_known_kind)] = "unit"
    """The kind that the other keys change: `imagenet`, `unit` (0 to 1), `grey` (0 to 1, one
    channel) or `none` (0 to 255)."""
    mean: list[float] | None = None
    """The numbers to subtract: one, or one for each channel."""
    std: list[PositiveNumber] | None = None
    """The numbers to divide the difference by: one, or one for each channel."""
    layout: Literal["NCHW", "NHWC"] | None = None
    """The order of the input's axes. An input whose shape only fits NHWC is NHWC."""
    channels: Literal["RGB", "BGR", "L"] | None = None
    """The order of the channels, or one grey channel."""
    crop: Annotated[float, Field(gt=0, le=1)] | None = None
    """The share of an image that is kept, in the middle. Without it the image is stretched to the
    input's size."""
    range: Literal[1, 255] = 1
    """The range of the pixels that `mean` and `std` are for: 0 to 1, or 0 to 255."""

    @model_validator(mode="after")
    def _values_per_channel(self) -> PreprocessTable:
        made = self.made()
        count = 1 if made.channels == "L" else 3
        for name, values in (("mean", made.mean), ("std", made.std)):
            if len(values) not in (1, count):
                each = "one value" if count == 1 else "one value, or one for each of the 3 channels"
                raise ValueError(f"{name} takes {each}, got {len(values)}")
        return self

    def made(self) -> PreprocessSettings:
        """Return the preprocessing: the named kind, with the given keys replaced."""
        kind = KINDS[self.kind]
        return PreprocessSettings(
            mean=kind.mean
            if self.mean is None
            else tuple(value / self.range for value in self.mean),
            std=kind.std if self.std is None else tuple(value / self.range for value in self.std),
            layout=self.layout or kind.layout,
            channels=self.channels or kind.channels,
            crop=kind.crop if self.crop is None else self.crop,
            stated=not self.model_fields_set.isdisjoint(("kind", "mean", "std")),
        )
