"""Networks that are a chain of convolutions: AlexNet, VGG-19, SqueezeNet 1.1.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014
(https://arxiv.org/abs/1404.5997) Simonyan and Zisserman, "Very deep convolutional networks", 2014
(https://arxiv.org/abs/1409.1556), configuration E Iandola et al., "SqueezeNet", 2016
(https://arxiv.org/abs/1602.07360), with the lighter stem of its version 1.1
"""

from __future__ import annotations

import torch
from torch import nn

from models.layers import image, seeded

_VGG_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def _conv(
    inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0
) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, size, stride, padding), nn.ReLU()]


def _classifier(features: int) -> list[nn.Module]:
    wide = [nn.Linear(features, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return [nn.Flatten(), *wide, nn.Linear(4096, 1000)]


def alexnet() -> tuple[nn.Module, tuple[torch.Tensor]]:
    def make() -> nn.Module:
        return nn.Sequential(
            *[*_conv(3, 64, 11, 4, 2), nn.MaxPool2d(3, 2)],
            *[*_conv(64, 192, 5, padding=2), nn.MaxPool2d(3, 2)],
            *[
                *_conv(192, 384, 3, padding=1),
                *_conv(384, 256, 3, padding=1),
                *_conv(256, 256, 3, padding=1),
                nn.MaxPool2d(3, 2),
            ],
            *_classifier(256 * 6 * 6),
        )

    return seeded(make, 11), (image(),)


def vgg19() -> tuple[nn.Module, tuple[torch.Tensor]]:
    def make() -> nn.Module:
        layers: list[nn.Module] = []
        channels = 3
        for outputs, count in _VGG_STAGES:
            for _ in range(count):
                layers += _conv(channels, outputs, 3, padding=1)
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, *_classifier(512 * 7 * 7))

    return seeded(make, 19), (image(),)


class Fire(nn.Module):
    """Squeeze by 1x1, expand by 1x1 and by 3x3, side by side."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(*_conv(inputs, squeezed, 1))
        self.narrow = nn.Sequential(*_conv(squeezed, expanded, 1))
        self.wide = nn.Sequential(*_conv(squeezed, expanded, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.squeeze(x)
        return torch.cat([self.narrow(x), self.wide(x)], 1)


def squeezenet() -> tuple[nn.Module, tuple[torch.Tensor]]:
    def make() -> nn.Module:
        return nn.Sequential(
            *[*_conv(3, 64, 3, 2), nn.MaxPool2d(3, 2, ceil_mode=True)],
            *[Fire(64, 16, 64), Fire(128, 16, 64), nn.MaxPool2d(3, 2, ceil_mode=True)],
            *[Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True)],
            *[Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)],
            *[*_conv(512, 1000, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()],
        )

    return seeded(make, 7), (image(),)
