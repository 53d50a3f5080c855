"""Operands of several types, factors and types of sums: torch's answer, in torch's type."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from host_build import assert_agrees

from farm import importers
from farm.types import Model

sys.path.append(str(Path(__file__).parent.parent))
from torch_regression_models import Each, with_named_outputs

F = torch.nn.functional


def whole(x, dtype=torch.int32):
    return (x * 4).to(dtype)


def double(x):
    return x.double()


def with_nan(x):
    return torch.where(x > 1, torch.nan, x)


FORMS = {
    "a factor of a sum": lambda x: torch.add(x, x[0], alpha=-0.5),
    "a factor of a difference": lambda x: torch.sub(x, x[0], alpha=3),
    "a factor of a reversed difference": lambda x: torch.rsub(x, x[0], alpha=3),
    "a factor of a number": lambda x: torch.add(x, 2.5, alpha=3),
    "a factor of integers": lambda x: torch.add(whole(x), whole(x[0]), alpha=2),
    "not a number by a comparison": lambda x: (lambda y: y != y.clone())(with_nan(x)),
    "a number by a comparison": lambda x: (lambda y: y == y)(with_nan(x)),
    "nanmean": lambda x: torch.nanmean(with_nan(x), 1),
    "mm of doubles": lambda x: double(x[0]) @ double(x[1]).T,
    "bmm of doubles": lambda x: double(x) @ double(x).mT,
    "mm of integers": lambda x: whole(x[0]) @ whole(x[1]).T,
    "linear of doubles": lambda x: F.linear(double(x), double(x[0]), double(x[0, :, 0])),
    "addmm of doubles": lambda x: torch.addmm(
        double(x[0, :, :3]), double(x[0]), double(x[1]).T, alpha=2, beta=3
    ),
    "addmm of a product alone": lambda x: torch.addmm(
        double(x[0, 0, :3]), double(x[0]), double(x[1]).T, beta=0
    ),
    "baddbmm of integers": lambda x: torch.baddbmm(
        whole(x[:, :, :3]), whole(x), whole(x).mT, alpha=2
    ),
    "convolution of doubles": lambda x: F.conv1d(
        double(x), double(x[:, :, :2]), double(x[:, 0, 0]), padding=1, stride=2
    ),
    "transposed convolution of doubles": lambda x: F.conv_transpose1d(
        double(x), double(x[0, :, None, :2]), stride=2, output_padding=1
    ),
    "attention of doubles": lambda x: F.scaled_dot_product_attention(*[double(x)[None]] * 3),
    "an integer plus a fraction": lambda x: whole(x.abs(), torch.uint8) + 0.5,
    "integers beside floats": lambda x: torch.where(x > 0, whole(x), x),
    "integers of two types": lambda x: torch.fmod(whole(x), whole(x, torch.int8).abs() + 1),
    "a logarithm of integers": lambda x: torch.log(whole(x).abs() + 1),
    "a sigmoid of truth values": lambda x: torch.sigmoid(x > 0),
    "integers without a sign, negated": lambda x: -whole(x.abs(), torch.uint8),
    "integers clamped by tensors": lambda x: torch.clamp(whole(x), min=whole(x[0])),
    "cosh of float16": lambda x: torch.cosh(x.half()),
    "layer norm of doubles": lambda x: F.layer_norm(
        double(x), (3, 5), weight=double(x[0]), eps=0.3
    ),
    "sinh": lambda x: torch.sinh(x * 0.1),
    "sinh of doubles": lambda x: torch.sinh(double(x)),
    "cosh of integers": lambda x: torch.cosh(whole(x)),
    "the largest truth value": lambda x: torch.amax(x > 0.9, 1),
    "the least truth value": lambda x: torch.amin(x > -0.9, (0, 2), keepdim=True),
    "any of integers": lambda x: torch.any(whole(x), 1, keepdim=True),
    "any of bytes": lambda x: torch.any(whole(x.abs(), torch.uint8), 2),
    "any of numbers": lambda x: torch.any((x * 0.5).round(), (0, 1)),
    "the product of all in another type": lambda x: torch.prod(x.half(), dtype=torch.float32),
    "the product of all integers": lambda x: torch.prod(whole(x[0, 0])),
    "cosh of doubles": lambda x: torch.cosh(double(x)),
    "isinf of integers": lambda x: torch.isinf(whole(x)),
    "isfinite of integers": lambda x: torch.isfinite(whole(x)),
    "cumsum of truth values": lambda x: torch.cumsum(x > 0, 1),
    "cumprod of integers": lambda x: torch.cumprod(whole(x), 1),
    "cumsum of a number": lambda x: torch.cumsum(x[0, 0, 0], 0, dtype=torch.float64),
    "the sum of a number": lambda x: torch.sum(x[0, 0, 0], 0),
    "the largest of a number": lambda x: torch.amax(x[0, 0, 0], -1),
    "a shift to the left": lambda x: whole(x) << whole(x[0]).abs(),
    "a shift of negative numbers to the right": lambda x: whole(x, torch.int8) >> 2,
    "shifts to the left by negative numbers and by all bits": lambda x: whole(x) << whole(16 * x),
    "shifts to the right by negative numbers and by all bits": lambda x: whole(x) >> whole(16 * x),
}

# A number of a trace is a tensor of float64, which makes integers float64.
NOT_BY = {"exported": (), "traced": ("an integer plus a fraction",)}


@pytest.mark.parametrize("route", ["exported", "traced"])
def test_operands_have_the_types_and_factors_of_torch(route, tmp_path):
    forms = {name: form for name, form in FORMS.items() if name not in NOT_BY[route]}
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(4))
    module = Each(forms.values())
    if route == "exported":
        path = tmp_path / "m.pt2"
        torch.export.save(torch.export.export(module, (x,)), path)
    else:
        path = tmp_path / "m.pt"
        torch.jit.trace(module, x).save(path)
    imported = importers.import_model(Model("m", str(path)), tmp_path)
    assert_agrees(with_named_outputs(imported, forms, x))


def test_a_scatter_keeps_an_open_batch(tmp_path):
    class Scatter(torch.nn.Module):
        def forward(self, x):
            return x.scatter(1, torch.zeros_like(x, dtype=torch.int64), x)

    batch = torch.export.Dim("n", min=2, max=64)
    program = torch.export.export(Scatter(), (torch.randn(2, 6),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "open.pt2")
    made = importers.import_model(Model("open", str(tmp_path / "open.pt2")), tmp_path)
    assert not made.fixed
