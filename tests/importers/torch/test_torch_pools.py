"""Pools that return where their maxima are: values and places are torch's."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from host_build import assert_agrees

from farm import importers
from farm.errors import ModelError
from farm.types import Model

sys.path.append(str(Path(__file__).parent.parent))
from torch_regression_models import Each, in_groups, with_named_outputs

functional = torch.nn.functional
IMAGE = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(3))
IMAGE[0, 0, :3, :4], IMAGE[1, 1], IMAGE[0, 2] = -math.inf, 1.0, IMAGE[0, 2].round()
IMAGE[1, 2, 3, 3] = math.nan


def pooled(*size, rank=2, view=lambda x: x, **options):
    pool = getattr(functional, f"max_pool{rank}d")
    return lambda x: tuple(pool(view(x), *size, return_indices=True, **options))


FORMS = {
    "2 x 2": pooled(2),
    "overlapping, padded": pooled(3, 2, 1),
    "beyond the image": pooled(3, 2, ceil_mode=True),
    "padded and beyond the image": pooled(3, 2, 1, ceil_mode=True),
    "dilated": pooled((2, 3), (1, 2), (1, 1), (2, 1)),
    "of volumes": pooled((2, 3, 2), (1, 2, 2), (1, 1, 0), rank=3, view=lambda x: x[:, None]),
    "of rows": pooled(5, 2, 2, rank=1, view=lambda x: x.flatten(2)),
    "without a batch": pooled(2, view=lambda x: x[0]),
    "undone": lambda x: functional.max_unpool2d(
        *functional.max_pool2d(x[:1, 2:], 2, return_indices=True), 2
    ),
}


@in_groups(FORMS, 3)
def test_the_places_of_maxima_are_torchs_with_equal_numbers_infinities_and_nan(group, tmp_path):
    torch.export.save(torch.export.export(Each(group.values()), (IMAGE,)), tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    assert_agrees(with_named_outputs(imported, group, IMAGE), atol=0, rtol=0)


def test_the_places_of_maxima_of_integers_are_refused(tmp_path):
    network = Each([lambda x: pooled(2)((x * 9).int())[1]])
    torch.export.save(torch.export.export(network, (IMAGE[:, :, 3:],)), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="where the maxima of integers in a pool are"):
        importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)


def test_the_places_of_maxima_of_an_open_batch_are_right_at_every_size(tmp_path):
    network, batch = Each([pooled(2)]), torch.export.Dim("batch", max=16)
    program = torch.export.export(network, (IMAGE,), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    assert [spec.open for spec in imported.outputs] == [True, True]
    assert_agrees(imported, atol=0, rtol=0)
