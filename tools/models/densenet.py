"""DenseNet-121. Huang et al., "Densely connected convolutional networks", 2016 (https://arxiv.org/abs/1608.06993)."""

from __future__ import annotations

import torch
from torch import nn

from models.layers import ConvNorm, image, seeded

_GROWTH = 32
_STAGES = (6, 12, 24, 16)


class Layer(nn.Module):
    """Norm, 1x1, norm, 3x3; the result joins the channels of the input."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.narrow = ConvNorm(inputs, 4 * _GROWTH, 1)
        self.wide = nn.Conv2d(4 * _GROWTH, _GROWTH, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.wide(self.narrow(torch.relu(self.norm(x))))], 1)


def densenet121() -> tuple[nn.Module, tuple[torch.Tensor]]:
    def make() -> nn.Module:
        channels = 2 * _GROWTH
        layers: list[nn.Module] = [ConvNorm(3, channels, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
        for stage, count in enumerate(_STAGES):
            for _ in range(count):
                layers.append(Layer(channels))
                channels += _GROWTH
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            if stage < len(_STAGES) - 1:
                layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)
        )

    return seeded(make, 121), (image(),)
