"""Forms of torch that TVM's importer has read wrongly, for the tests of every route that torch
takes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch


class Of(torch.nn.Module):
    """A module that computes a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Each(torch.nn.Module):
    """A module that computes several functions of its input, and returns all that they return."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, x):
        return tuple(value for function in self.functions for value in flat(function(x)))


def flat(returned):
    return returned if isinstance(returned, tuple) else (returned,)


def in_groups(forms, count):
    """Parametrize a test with `count` groups of named functions, each group for one module: an
    import costs as much as ten operators do.
    """
    groups = [list(forms)[first::count] for first in range(count)]
    return pytest.mark.parametrize(
        "group", [{name: forms[name] for name in names} for names in groups], ids=range(count)
    )


def with_named_outputs(imported, group, x):
    """An imported `Each`, whose outputs have the names of the group, for the errors of checks."""
    names = [name for name, function in group.items() for _ in flat(function(x))]
    outputs = [replace(spec, name=name) for spec, name in zip(imported.outputs, names, strict=True)]
    return replace(imported, outputs=tuple(outputs))


FIRST, LATER = torch.tensor([0, 1, 1]), torch.tensor([3, -1, 0])


def put(x, places, values):
    """A copy of x, written to."""
    copy = x.clone()
    copy[places] = values
    return copy


INDEXING = {
    "x[:, -1]": lambda x: x[:, -1],
    "x[..., -1]": lambda x: x[..., -1],
    "x[1, -2]": lambda x: x[1, -2],
    "x[:, 2]": lambda x: x[:, 2],
    "x[:, [-1, 0]]": lambda x: x[:, [-1, 0]],
    "x[[-1, 0], [1, -2]]": lambda x: x[[-1, 0], [1, -2]],
    "x[:, -3:]": lambda x: x[:, -3:],
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "x[:, :-1]": lambda x: x[:, :-1],
    "index_select": lambda x: torch.index_select(x, 1, torch.tensor([4, 0])),
    "gather": lambda x: torch.gather(x, 1, torch.tensor([[[1]], [[2]]])),
    "select_scatter": lambda x: torch.select_scatter(x, torch.zeros(2, 4), 1, -1),
    "x[:, i, j]": lambda x: x[:, LATER, LATER],
    "x[i, :, j]": lambda x: x[FIRST, :, LATER],
    "x[:, i, :, j]": lambda x: x[None][:, FIRST, :, LATER],
    "x[:, i of rows, j]": lambda x: x[:, LATER[:, None], LATER[:2]],
    "x[i of rows, j]": lambda x: x[FIRST[:, None], LATER],
    "x[i of rows, :, j]": lambda x: x[FIRST[:, None], :, LATER],
    "x[:, i of rows, j of rows]": lambda x: x[:, LATER[:, None], LATER[:, None]],
    "x[i] = rows": lambda x: put(x, FIRST[:2], x[1:] * 2),
    "x[i, j] = number": lambda x: put(x, (FIRST, LATER), 1.5),
    "x[:, i] = rows": lambda x: put(x, (slice(None), LATER), x[:, :3] * 2),
    "x[i, :, j] = row": lambda x: put(x, (FIRST, slice(None), LATER), x[0, :, 0]),
    "x[:, i, :, j] = row": lambda x: put(
        x[None], (slice(None), FIRST, slice(None), LATER), x[0, :, 0]
    ),
    "x[..., j] = number": lambda x: put(x, (..., LATER), 7.0),
    "x[i] += row": lambda x: torch.index_put(x, (FIRST,), x[:1], accumulate=True),
    "x[x > 0] = number": lambda x: put(x, x > 0, 0.5),
    "x[rows] = row": lambda x: put(x, x[:, :, 0] > 0, x[0, 0]),
    "x[rows] += row": lambda x: torch.index_put(x, (x[:, :, 0] > 0,), x[0, 0], accumulate=True),
    "index_copy": lambda x: x.index_copy(1, LATER.abs(), x[:, :3] * 3),
    "index_add": lambda x: x.index_add(1, FIRST, x[:, :3] * 3),
    "index_fill": lambda x: x.index_fill(2, LATER, 3.0),
}
