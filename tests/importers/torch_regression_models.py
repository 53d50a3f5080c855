"""Forms of torch that TVM's importer has read wrongly, for the tests of every route that torch
takes.
"""

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


FIRST, LATER = torch.tensor([0, 1, 1]), torch.tensor([3, -1, 0])


def put(x, places, values):
    """A copy of x, written to."""
    copy = x.clone()
    copy[places] = values
    return copy


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
        lambda x: x[:, LATER, LATER],
        lambda x: x[FIRST, :, LATER],
        lambda x: x[:, LATER[:, None], LATER[:2]],
        lambda x: x[FIRST[:, None], LATER],
        lambda x: x[:, LATER[:, None], LATER[:, None]],
        lambda x: put(x, FIRST[:2], x[1:] * 2),
        lambda x: put(x, (FIRST, LATER), 1.5),
        lambda x: put(x, (slice(None), LATER), x[:, :3] * 2),
        lambda x: put(x, (FIRST, slice(None), LATER), x[0, :, 0]),
        lambda x: put(x, (..., LATER), 7.0),
        lambda x: torch.index_put(x, (FIRST,), x[:1], accumulate=True),
        lambda x: put(x, x > 0, 0.5),
        lambda x: put(x, x[:, :, 0] > 0, x[0, 0]),
        lambda x: x.index_copy(1, LATER.abs(), x[:, :3] * 3),
        lambda x: x.index_add(1, FIRST, x[:, :3] * 3),
        lambda x: x.index_fill(2, LATER, 3.0),
    ],
    ids=[
        *(
            "x[:, -1]",
            "x[..., -1]",
            "x[1, -2]",
            "x[:, 2]",
            "x[:, [-1, 0]]",
            "x[[-1, 0], [1, -2]]",
            "x[:, -3:]",
            "flip",
            "roll",
        ),
        *("x[:, :-1]", "index_select", "gather", "select_scatter"),
        *(
            "x[:, i, j]",
            "x[i, :, j]",
            "x[:, i of rows, j]",
            "x[i of rows, j]",
            "x[:, i of rows, j of rows]",
            "x[i] = rows",
        ),
        *(
            "x[i, j] = number",
            "x[:, i] = rows",
            "x[i, :, j] = row",
            "x[..., j] = number",
            "x[i] += row",
            "x[x > 0] = number",
            "x[rows] = row",
        ),
        *("index_copy", "index_add", "index_fill"),
    ],
)
