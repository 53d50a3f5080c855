"""Inception v3 without its auxiliary classifier, for 299 x 299 images.

Szegedy et al., "Rethinking the Inception architecture for computer vision", 2015 (https://arxiv.org/abs/1512.00567)
"""

from __future__ import annotations

import torch
from torch import nn

from models.layers import ConvNorm, image, seeded


class Side(nn.Module):
    """Branches of one input, their channels joined."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _chain(
    inputs: int, *steps: tuple[int, int | tuple[int, int]], last_stride: int = 1
) -> nn.Sequential:
    """Convolutions of (channels, kernel); with a stride the last has no padding."""
    layers: list[nn.Module] = []
    for index, (outputs, size) in enumerate(steps):
        ends = index == len(steps) - 1 and last_stride > 1
        layers.append(
            ConvNorm(
                inputs,
                outputs,
                size,
                stride=last_stride if ends else 1,
                padding=0 if ends else None,
            )
        )
        inputs = outputs
    return nn.Sequential(*layers)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(inputs, outputs, 1))


def _figure_5(inputs: int, pooled: int) -> Side:
    five, three = _chain(inputs, (48, 1), (64, 5)), _chain(inputs, (64, 1), (96, 3), (96, 3))
    return Side(ConvNorm(inputs, 64, 1), five, three, _pooled(inputs, pooled))


def _figure_6(inner: int) -> Side:
    one = _chain(768, (inner, 1), (inner, (1, 7)), (192, (7, 1)))
    two = _chain(768, (inner, 1), (inner, (7, 1)), (inner, (1, 7)), (inner, (7, 1)), (192, (1, 7)))
    return Side(ConvNorm(768, 192, 1), one, two, _pooled(768, 192))


def _figure_7(inputs: int) -> Side:
    def fork() -> Side:
        return Side(ConvNorm(384, 384, (1, 3)), ConvNorm(384, 384, (3, 1)))

    one = nn.Sequential(ConvNorm(inputs, 384, 1), fork())
    two = nn.Sequential(*_chain(inputs, (448, 1), (384, 3)), fork())
    return Side(ConvNorm(inputs, 320, 1), one, two, _pooled(inputs, 192))


def inception_v3() -> tuple[nn.Module, tuple[torch.Tensor]]:
    def make() -> nn.Module:
        stem = [
            ConvNorm(3, 32, 3, stride=2, padding=0),
            ConvNorm(32, 32, 3, padding=0),
            ConvNorm(32, 64, 3),
            nn.MaxPool2d(3, 2),
        ]
        stem += [ConvNorm(64, 80, 1), ConvNorm(80, 192, 3, padding=0), nn.MaxPool2d(3, 2)]
        shrink = Side(
            _chain(288, (384, 3), last_stride=2),
            _chain(288, (64, 1), (96, 3), (96, 3), last_stride=2),
            nn.MaxPool2d(3, 2),
        )
        seven = _chain(768, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), last_stride=2)
        shrink_again = Side(
            _chain(768, (192, 1), (320, 3), last_stride=2), seven, nn.MaxPool2d(3, 2)
        )
        return nn.Sequential(
            *[*stem, _figure_5(192, 32), _figure_5(256, 64), _figure_5(288, 64), shrink],
            *[_figure_6(128), _figure_6(160), _figure_6(160), _figure_6(192), shrink_again],
            *[
                _figure_7(1280),
                _figure_7(2048),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(2048, 1000),
            ],
        )

    return seeded(make, 3), (image(299),)
