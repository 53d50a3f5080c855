"""Recurrent classifiers, an encoder of torch's own layers, attention with a mask, and a network for
any batch: small ones.

What they cover is routes of import (tools/compare-import-routes), not speed.
"""

from __future__ import annotations

import torch
from torch import nn

from models.layers import initialised

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Recurrent(nn.Module):
    """1 x 20 x 16 features to five scores, from the outputs and the last state."""

    def __init__(self, cell: str, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.layers = getattr(nn, cell)(
            16, 24, num_layers=2, batch_first=True, bidirectional=bidirectional
        )
        self.head = nn.Linear(48 if bidirectional else 24, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, state = self.layers(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.head(output[:, -1]), last


class MaskedAttention(nn.Module):
    """torch's scaled_dot_product_attention with a mask: tokens that do not count."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.all = heads, nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        count, tokens, width = x.shape
        query, key, value = (
            part.view(count, tokens, self.heads, -1).transpose(1, 2)
            for part in self.all(x).chunk(3, -1)
        )
        mask = counts[:, None, None, :]
        made = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.project(made.transpose(1, 2).reshape(count, tokens, width))


class AnyBatch(nn.Module):
    """Images of 3 x 16 x 16 in a batch of any size to four scores, by shapes that are read while it
    runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.features(x)
        return self.head(made.view(made.shape[0], -1)).softmax(-1)


def gru() -> Built:
    return initialised(lambda: Recurrent("GRU"), 22), (_noise(1, 20, 16),)


def bidirectional_lstm() -> Built:
    return initialised(lambda: Recurrent("LSTM", bidirectional=True), 23), (_noise(1, 20, 16),)


def encoder() -> Built:
    layer = lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)  # noqa: E731
    return initialised(lambda: nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False), 24), (
        _noise(1, 12, 32),
    )


def masked_attention() -> Built:
    return initialised(MaskedAttention, 25), (
        _noise(2, 9, 32),
        torch.arange(9)[None] < torch.tensor([[9], [5]]),
    )


def any_batch() -> Built:
    return initialised(AnyBatch, 26), (_noise(2, 3, 16, 16),)


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(27))
