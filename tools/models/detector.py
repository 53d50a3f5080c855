"""A small detector of one stage: features of three sizes, and a head with several outputs.

Boxes are made as in YOLOv8 (https://github.com/ultralytics/ultralytics describes the head):
distances from anchors to the four sides, as the expectation of a distribution. The overlapping
boxes are left to whoever reads the outputs: how many stay depends on their values.
"""

from __future__ import annotations

import torch
from torch import nn

from models.layers import ConvNorm, image, initialised

_STEPS, _CLASSES, _SIZE = 8, 6, 64
_STRIDES = (8, 16, 32)


class Detector(nn.Module):
    """1 x 3 x 64 x 64 images to boxes [1, 84, 4], scores [1, 84, 6], and the ten best with their
    places.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 24, 32)
        self.stem = nn.Sequential(
            ConvNorm(3, 8, 3, stride=2, then=nn.SiLU), ConvNorm(8, 16, 3, stride=2, then=nn.SiLU)
        )
        self.stages = nn.ModuleList(
            ConvNorm(inputs, outputs, 3, stride=2, then=nn.SiLU)
            for inputs, outputs in zip((16, *widths), widths, strict=False)
        )
        self.laterals = nn.ModuleList(nn.Conv2d(width, 16, 1) for width in widths)
        self.sides = nn.ModuleList(nn.Conv2d(16, 4 * _STEPS, 3, padding=1) for _ in widths)
        self.classes = nn.ModuleList(nn.Conv2d(16, _CLASSES, 3, padding=1) for _ in widths)
        self.register_buffer("steps", torch.arange(float(_STEPS)))
        grids = [
            torch.stack(
                torch.meshgrid(*(torch.arange(_SIZE // stride) + 0.5,) * 2, indexing="xy"), -1
            )
            for stride in _STRIDES
        ]
        self.register_buffer(
            "anchors",
            torch.cat(
                [
                    (grid * stride).reshape(-1, 2)
                    for grid, stride in zip(grids, _STRIDES, strict=True)
                ]
            ),
        )
        self.register_buffer(
            "scales",
            torch.cat(
                [
                    torch.full((grid.shape[0] ** 2, 1), float(stride))
                    for grid, stride in zip(grids, _STRIDES, strict=True)
                ]
            ),
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x, kept = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            kept.append(x)
        upper = None
        for index in reversed(range(len(kept))):
            lateral = self.laterals[index](kept[index])
            upper = (
                lateral
                if upper is None
                else lateral + nn.functional.interpolate(upper, scale_factor=2.0, mode="nearest")
            )
            kept[index] = upper
        sides = torch.cat(
            [side(level).flatten(2) for side, level in zip(self.sides, kept, strict=True)], 2
        ).transpose(1, 2)
        scores = (
            torch.cat(
                [one(level).flatten(2) for one, level in zip(self.classes, kept, strict=True)], 2
            )
            .transpose(1, 2)
            .sigmoid()
        )
        distances = (sides.unflatten(-1, (4, _STEPS)).softmax(-1) * self.steps).sum(
            -1
        ) * self.scales
        boxes = torch.cat(
            [self.anchors - distances[..., :2], self.anchors + distances[..., 2:]], -1
        )
        best, places = scores.amax(-1).topk(10)
        return {"boxes": boxes, "scores": scores, "best": best, "places": places}


def detector() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return initialised(Detector, 31), (image(_SIZE),)
