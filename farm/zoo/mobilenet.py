"""MobileNetV2, as in table 2 of the paper.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018
(https://arxiv.org/abs/1801.04381)
"""

from __future__ import annotations

import torch
from torch import nn

from farm.zoo.weights import ResidualBranchBatchNorm, build_with_seeded_weights, example_image

# Expansion factor, output channels, number of blocks, stride of the first block.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):  # type: ignore[misc]
    """Expansion by 1x1, depthwise 3x3 convolution, projection by 1x1.

    The input is added to the output if their shapes allow it.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        expand = _convolution(inputs, hidden, 1) if expansion != 1 else []
        self.branch = nn.Sequential(
            *expand,
            *_convolution(hidden, hidden, 3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            ResidualBranchBatchNorm(outputs) if self.adds else nn.BatchNorm2d(outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output; with the residual it has the shape of `x`."""
        y: torch.Tensor = self.branch(x)
        return x + y if self.adds else y


class MobileNetV2(nn.Module):  # type: ignore[misc]
    """Network from 1x3x224x224 images to 1x1000 scores, at width 1.0."""

    def __init__(self) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = _convolution(3, channels, 3, stride=2)
        for expansion, outputs, count, stride in _STAGES:
            for index in range(count):
                layers.append(
                    InvertedResidual(channels, outputs, stride if index == 0 else 1, expansion)
                )
                channels = outputs
        layers += _convolution(channels, 1280, 1)
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(1280, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the scores, N x 1000, of N images."""
        scores: torch.Tensor = self.classifier(torch.flatten(self.pool(self.features(image)), 1))
        return scores


def _convolution(
    inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU6()]


def build_mobilenet_v2() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the network with its seeded weights, and an example image."""
    return build_with_seeded_weights(MobileNetV2, seed=2), (example_image(),)
