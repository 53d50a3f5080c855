"""Forms of torch that TVM's importer has read wrongly, for the tests of every route that torch takes."""

from __future__ import annotations

import pytest
import torch


class Of(torch.nn.Module):
    """A module that computes a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


INDEXING = pytest.mark.parametrize(
    "select",
    [
        lambda x: x[:, -1],
        lambda x: x[..., -1],
        lambda x: x[1, -2],
        lambda x: x[:, 2],
        lambda x: x[:, [-1, 0]],
        lambda x: x[[-1, 0], [1, -2]],
        lambda x: x[:, -3:],
        lambda x: x.flip(1),
        lambda x: x.roll(1, 1),
        lambda x: x[:, :-1],
        lambda x: torch.index_select(x, 1, torch.tensor([4, 0])),
        lambda x: torch.gather(x, 1, torch.tensor([[[1]], [[2]]])),
        lambda x: torch.select_scatter(x, torch.zeros(2, 4), 1, -1),
    ],
    ids=[
        *("x[:, -1]", "x[..., -1]", "x[1, -2]", "x[:, 2]", "x[:, [-1, 0]]", "x[[-1, 0], [1, -2]]", "x[:, -3:]", "flip", "roll"),
        *("x[:, :-1]", "index_select", "gather", "select_scatter"),
    ],
)
