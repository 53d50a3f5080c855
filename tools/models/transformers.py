"""Transformer encoders: ViT-Tiny for 224 x 224 images, and four layers as in BERT for 128 tokens.

Dosovitskiy et al., "An image is worth 16x16 words", 2020 (https://arxiv.org/abs/2010.11929); the
tiny size is of DeiT (arXiv 2012.12877) Devlin et al., "BERT", 2018
(https://arxiv.org/abs/1810.04805)
"""

from __future__ import annotations

import math

import torch
from torch import nn

from models.layers import image, seeded


class Attention(nn.Module):
    """Scaled dot products of several heads, written out, so that the exported graph is the plain
    one.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(width // heads)
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, tokens, width = x.shape
        q, k, v = (
            linear(x).view(count, tokens, self.heads, width // self.heads).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-1, -2) * self.scale).softmax(-1)
        return self.project((weights @ v).transpose(1, 2).reshape(count, tokens, width))


class Layer(nn.Module):
    """Attention and a feed-forward network, each with its norm before (ViT) or after (BERT) and a
    residual.
    """

    def __init__(self, width: int, heads: int, *, norm_first: bool) -> None:
        super().__init__()
        self.attention, self.norm_first = Attention(width, heads), norm_first
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, branch in zip(self.norms, (self.attention, self.feed), strict=True):
            x = x + branch(norm(x)) if self.norm_first else norm(x + branch(x))
        return x


class VisionTransformer(nn.Module):
    """1 x 3 x 224 x 224 images to 1000 scores."""

    def __init__(self, width: int = 192, heads: int = 3, layers: int = 12, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, (224 // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(
            *(Layer(width, heads, norm_first=True) for _ in range(layers)), nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.token, self.patches(x).flatten(2).transpose(1, 2)], 1) + self.position
        return self.head(self.layers(x)[:, 0])


class TextEncoder(nn.Module):
    """1 x 128 tokens (int64) to two scores."""

    def __init__(
        self,
        width: int = 256,
        heads: int = 4,
        layers: int = 4,
        words: int = 5000,
        tokens: int = 128,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.position = nn.Parameter(torch.empty(1, tokens, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(Layer(width, heads, norm_first=False) for _ in range(layers)))
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.norm(self.words(tokens) + self.position))
        return self.head(torch.tanh(self.pool(x[:, 0])))


def vit_tiny() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return seeded(VisionTransformer, 6), (image(),)


def bert_like() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return seeded(TextEncoder, 8), (
        torch.randint(0, 5000, (1, 128), generator=torch.Generator().manual_seed(8)),
    )
