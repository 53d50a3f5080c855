"""ShuffleNet v2 at width 1.0. Ma et al., "ShuffleNet V2", 2018 (https://arxiv.org/abs/1807.11164);
and the first ShuffleNet.
"""

from __future__ import annotations

import torch
from torch import nn

from models.layers import ConvNorm, image, seeded

_STAGES = ((116, 4), (232, 8), (464, 4))


def shuffled(x: torch.Tensor, groups: int = 2) -> torch.Tensor:
    """The channels of two halves, or of more groups, taken in turn."""
    count, channels, height, width = x.shape
    return (
        x.view(count, groups, channels // groups, height, width)
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


class GroupedUnit(nn.Module):
    """A unit of ShuffleNet v1: grouped 1 x 1 convolutions with a shuffle between them."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, first: int) -> None:
        super().__init__()
        self.stride, self.groups, middle = stride, groups, outputs // 4
        made = outputs - inputs if stride > 1 else outputs
        self.narrow = ConvNorm(inputs, middle, 1, groups=first)
        self.spatial = ConvNorm(middle, middle, 3, stride=stride, groups=middle, then=None)
        self.wide = ConvNorm(middle, made, 1, groups=groups, then=None)
        self.pool = nn.AvgPool2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        worked = shuffled(self.narrow(x), self.groups)
        worked = self.wide(self.spatial(worked))
        if self.stride > 1:
            return torch.relu(torch.cat([self.pool(x), worked], 1))
        return torch.relu(x + worked)


def shufflenet_v1() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """ShuffleNet with 4 groups. Zhang et al., 2018 (https://arxiv.org/abs/1707.01083)."""

    def make() -> nn.Module:
        layers: list[nn.Module] = [ConvNorm(3, 24, 3, stride=2), nn.MaxPool2d(3, 2, 1)]
        channels, groups = 24, 4
        for outputs, count in ((272, 4), (544, 8), (1088, 4)):
            for index in range(count):
                first = 1 if channels == 24 else groups
                layers.append(GroupedUnit(channels, outputs, 2 if index == 0 else 1, groups, first))
                channels = outputs
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)
        )

    return seeded(make, 2), (image(),)
