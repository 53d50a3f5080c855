"""ShuffleNet v2 at width 1.0. Ma et al., "ShuffleNet V2", 2018 (https://arxiv.org/abs/1807.11164)."""

from __future__ import annotations

import torch
from torch import nn

from models.layers import ConvNorm, image, seeded

_STAGES = ((116, 4), (232, 8), (464, 4))


def shuffled(x: torch.Tensor) -> torch.Tensor:
    """The channels of two halves, taken in turn."""
    count, channels, height, width = x.shape
    return (
        x.view(count, 2, channels // 2, height, width)
        .transpose(1, 2)
        .reshape(count, channels, height, width)
    )


class Unit(nn.Module):
    """Half of the channels pass, half go through a branch; with a stride both halves are branches
    of all channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half, self.stride = outputs // 2, stride
        source = inputs if stride > 1 else half
        self.branch = nn.Sequential(
            ConvNorm(source, half, 1), self._spatial(half, stride), ConvNorm(half, half, 1)
        )
        self.shortcut = (
            nn.Sequential(self._spatial(inputs, stride), ConvNorm(inputs, half, 1))
            if stride > 1
            else nn.Identity()
        )

    @staticmethod
    def _spatial(channels: int, stride: int) -> ConvNorm:
        return ConvNorm(channels, channels, 3, stride=stride, groups=channels, then=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, worked = (x, x) if self.stride > 1 else x.chunk(2, 1)
        return shuffled(torch.cat([self.shortcut(kept), self.branch(worked)], 1))


def shufflenet_v2() -> tuple[nn.Module, tuple[torch.Tensor]]:
    def make() -> nn.Module:
        layers: list[nn.Module] = [ConvNorm(3, 24, 3, stride=2), nn.MaxPool2d(3, 2, 1)]
        channels = 24
        for outputs, count in _STAGES:
            for index in range(count):
                layers.append(Unit(channels, outputs, 2 if index == 0 else 1))
                channels = outputs
        return nn.Sequential(
            *layers,
            ConvNorm(channels, 1024, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(1024, 1000),
        )

    return seeded(make, 2), (image(),)
