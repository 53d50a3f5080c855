"""ResNet-18 and ResNet-50.

He et al., "Deep Residual Learning for Image Recognition", 2015, table 1
(https://arxiv.org/abs/1512.03385). As in nearly all implementations since, a bottleneck block has
its stride in the 3x3 convolution; the paper has it in the first 1x1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from farm.zoo.weights import ResidualBranchBatchNorm, build_with_seeded_weights, example_image

_WIDTHS = (64, 128, 256, 512)


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """Residual block: relu(branch(x) + shortcut(x)).

    The shortcut is the identity, or a 1x1 convolution if the shapes differ.
    """

    def __init__(self, branch: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.branch(x) + self.shortcut(x))


def basic_block(inputs: int, width: int, stride: int) -> ResidualBlock:
    """Return a block of two 3x3 convolutions with `width` output channels."""
    branch = nn.Sequential(
        *_convolution(inputs, width, 3, stride),
        nn.Conv2d(width, width, 3, 1, 1, bias=False),
        ResidualBranchBatchNorm(width),
    )
    return ResidualBlock(branch, inputs, width, stride)


def bottleneck_block(inputs: int, width: int, stride: int) -> ResidualBlock:
    """Return a block of 1x1, 3x3 and 1x1 convolutions with 4 x `width` output channels."""
    outputs = 4 * width
    branch = nn.Sequential(
        *_convolution(inputs, width, 1),
        *_convolution(width, width, 3, stride),
        nn.Conv2d(width, outputs, 1, bias=False),
        ResidualBranchBatchNorm(outputs),
    )
    return ResidualBlock(branch, inputs, outputs, stride)


class ResNet(nn.Module):  # type: ignore[misc]
    """Network from 1x3x224x224 images to 1x1000 scores.

    `counts` holds the number of blocks of each of the four stages.
    """

    def __init__(
        self,
        block: Callable[[int, int, int], ResidualBlock],
        expansion: int,
        counts: tuple[int, int, int, int],
    ) -> None:
        super().__init__()
        channels = 64
        layers: list[nn.Module] = [*_convolution(3, channels, 7, 2), nn.MaxPool2d(3, 2, 1)]
        for stage, (width, count) in enumerate(zip(_WIDTHS, counts, strict=True)):
            for index in range(count):
                layers.append(block(channels, width, 2 if stage > 0 and index == 0 else 1))
                channels = width * expansion
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the scores, N x 1000, of N images."""
        scores: torch.Tensor = self.classifier(torch.flatten(self.pool(self.features(image)), 1))
        return scores


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


def build_resnet18() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the network with its seeded weights, and an example image."""
    return build_with_seeded_weights(partial(ResNet, basic_block, 1, (2, 2, 2, 2)), seed=18), (
        example_image(),
    )


def build_resnet50() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the network with its seeded weights, and an example image."""
    return build_with_seeded_weights(partial(ResNet, bottleneck_block, 4, (3, 4, 6, 3)), seed=50), (
        example_image(),
    )
