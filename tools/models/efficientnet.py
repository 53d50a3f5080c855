"""EfficientNet-B0. Tan and Le, "EfficientNet", 2019 (https://arxiv.org/abs/1905.11946), table 1."""

from __future__ import annotations

import torch
from torch import nn

from models.layers import ConvNorm, image, seeded

# Expansion, kernel, output channels, blocks, stride of the first.
_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)


class Excite(nn.Module):
    """A weight for each channel, from the mean of all of them."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weigh(x)


class Block(nn.Module):
    """Expand, filter each channel, excite, project; add the input where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        self.branch = nn.Sequential(
            *([ConvNorm(inputs, hidden, 1, then=nn.SiLU)] if expansion > 1 else []),
            ConvNorm(hidden, hidden, size, stride=stride, groups=hidden, then=nn.SiLU),
            Excite(hidden, inputs // 4),
            ConvNorm(hidden, outputs, 1, then=None),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x) if self.adds else self.branch(x)


def efficientnet_b0() -> tuple[nn.Module, tuple[torch.Tensor]]:
    def make() -> nn.Module:
        layers: list[nn.Module] = [ConvNorm(3, 32, 3, stride=2, then=nn.SiLU)]
        channels = 32
        for expansion, size, outputs, count, stride in _STAGES:
            for index in range(count):
                layers.append(
                    Block(channels, outputs, size, stride if index == 0 else 1, expansion)
                )
                channels = outputs
        tail = [
            ConvNorm(channels, 1280, 1, then=nn.SiLU),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(1280, 1000),
        ]
        return nn.Sequential(*layers, *tail)

    return seeded(make, 5), (image(),)
