"""A U-Net for segmentation with transposed convolutions, at half the paper's width, for 192 x 192
images.

Ronneberger et al., "U-Net", 2015 (https://arxiv.org/abs/1505.04597), with padded convolutions and
batch norms
"""

from __future__ import annotations

import torch
from torch import nn

from models.layers import ConvNorm, image, seeded

_WIDTHS = (32, 64, 128, 256, 512)
_CLASSES = 2


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(ConvNorm(inputs, outputs, 3), ConvNorm(outputs, outputs, 3))


class UNet(nn.Module):
    """1 x 3 x H x W images to scores of each pixel; H and W are multiples of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _pair(inputs, outputs) for inputs, outputs in zip((3, *_WIDTHS), _WIDTHS, strict=False)
        )
        widths = list(zip(_WIDTHS[:0:-1], _WIDTHS[-2::-1], strict=True))
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(inputs, outputs, 2, 2) for inputs, outputs in widths
        )
        self.up = nn.ModuleList(_pair(inputs, outputs) for inputs, outputs in widths)
        self.head = nn.Conv2d(_WIDTHS[0], _CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for index, stage in enumerate(self.down):
            x = stage(nn.functional.max_pool2d(x, 2) if index else x)
            kept.append(x)
        for rise, stage, skipped in zip(self.rise, self.up, kept[-2::-1], strict=True):
            x = stage(torch.cat([skipped, rise(x)], 1))
        return self.head(x)


def unet() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return seeded(UNet, 4), (image(192),)
