"""A classifier of sequences: a two-layer LSTM and a dense layer."""

from __future__ import annotations

import torch
from torch import nn

from models.layers import seeded


class Classifier(nn.Module):
    """1 x 64 x 40 features to ten scores, from the state after the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 128, num_layers=2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm_classifier() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return seeded(Classifier, 10), (
        torch.randn(1, 64, 40, generator=torch.Generator().manual_seed(10)),
    )
