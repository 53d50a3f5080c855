"""Operators of torch that TVM's importer lacks: each is torch's answer on farm's own build."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from host_build import answers, assert_agrees
from host_profile import HOST

from farm import importers
from farm.compiler.lower import lower_module, resolve_target
from farm.types import Model

sys.path.append(str(Path(__file__).parent.parent))
from torch_regression_models import Each, in_groups, with_named_outputs

INDEX = torch.tensor([[0, 2, 2], [1, 0, 2]])


def bags(x, mode, offsets=torch.tensor([0, 2, 2]), **how):  # noqa: B008
    return torch.nn.functional.embedding_bag(
        torch.tensor([2, 0, 1, 1, 2]), x[0], offsets, mode=mode, **how
    )


FORMS = {
    "amax": lambda x: x.amax((1, 2)),
    "amax of all": lambda x: x.amax(),
    "amin": lambda x: x.amin(-1, keepdim=True),
    "min": lambda x: tuple(x.min(1)),
    "min whose axis stays": lambda x: tuple(x.min(-1, keepdim=True)),
    "prod": lambda x: x.prod(1),
    "prod whose axis stays": lambda x: x.prod(0, keepdim=True),
    "any": lambda x: (x > 2).any(),
    "cat along the first axis": lambda x: torch.cat([x, x + 1]),
    "cat with a cache of nothing": lambda x: torch.cat([torch.zeros(0), x, x + 1], -2),
    "floor": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "trunc": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "floor of integers": lambda x: torch.div((x * 9).to(torch.int64), -4, rounding_mode="floor"),
    "floor of tensors": lambda x: torch.div(
        (x * 9).to(torch.int64), torch.tensor(4), rounding_mode="floor"
    ),
    "scatter_add": lambda x: torch.zeros(3, 4).scatter_add(0, INDEX, x[0]),
    "scatter_add along rows": lambda x: x[0].scatter_add(1, INDEX, x[1]),
    "the greatest by scatter_reduce": lambda x: x[0].scatter_reduce(0, INDEX, x[1], "amax"),
    "the greatest along rows by scatter_reduce": lambda x: x[0].scatter_reduce(
        1, INDEX, x[1], "amax"
    ),
    "products by scatter_reduce": lambda x: x[0].scatter_reduce(
        0, INDEX, x[1], "prod", include_self=False
    ),
    "means by scatter_reduce": lambda x: x[0].scatter_reduce(0, INDEX, x[1], "mean"),
    "the least of others by scatter_reduce": lambda x: x[0].scatter_reduce(
        0, INDEX, x[1], "amin", include_self=False
    ),
    "means of others by scatter_reduce": lambda x: x[0].scatter_reduce(
        0, INDEX, x[1], "mean", include_self=False
    ),
    "the least of integers by scatter_reduce": lambda x: (
        (x[0] * 9).int().scatter_reduce(0, INDEX, (x[1] * 9).int(), "amin")
    ),
    "the least of others, long, by scatter_reduce": lambda x: (
        (x[0] * 9).long().scatter_reduce(0, INDEX, (x[1] * 9).long(), "amin", include_self=False)
    ),
    "nothing but infinities by scatter_reduce": lambda x: x[0].scatter_reduce(
        0, INDEX, torch.full_like(x[1], -torch.inf), "amax", include_self=False
    ),
    "adaptive_max_pool1d": lambda x: torch.nn.functional.adaptive_max_pool1d(x, 2),
    "adaptive_max_pool2d": lambda x: torch.nn.functional.adaptive_max_pool2d(x, (1, 3)),
    "adaptive_max_pool2d of all": lambda x: torch.nn.functional.adaptive_max_pool2d(x, 1),
    "adaptive_max_pool3d": lambda x: torch.nn.functional.adaptive_max_pool3d(x[None], (None, 2, 4)),
    "upsample_nearest2d": lambda x: torch.ops.aten.upsample_nearest2d.default(x[None], [6, 7]),
    "clamp of integers from above": lambda x: (x * 9).long().clamp(max=2),
    "clamp of integers from below": lambda x: (x * 9).int().clamp(min=-3),
    "clamp of integers between floats": lambda x: (x * 9).long().clamp(-1.5, 2.5),
    "clamp of integers": lambda x: (x * 9).long().clamp(-2, 4),
    "nearest twice as large": lambda x: torch.nn.functional.interpolate(x[None], scale_factor=2),
    "nearest to a size": lambda x: torch.nn.functional.interpolate(x[None], (6, 7)),
    "nearest by a factor": lambda x: torch.nn.functional.interpolate(x[None], scale_factor=1.5),
    "nearest by two factors": lambda x: torch.nn.functional.interpolate(
        x[None].repeat(1, 1, 2, 2), scale_factor=(1.5, 1.7)
    ),
    "upsample_bilinear2d": lambda x: torch.ops.aten.upsample_bilinear2d.default(
        x[None], [6, 7], True
    ),
    "upsample_bicubic2d": lambda x: torch.ops.aten.upsample_bicubic2d.default(
        x[None], [6, 10], False, 2.0, 2.0
    ),
    "bicubic to a size": lambda x: torch.nn.functional.interpolate(x[None], (7, 3), mode="bicubic"),
    "bicubic by two factors": lambda x: torch.nn.functional.interpolate(
        x[None].repeat(1, 1, 2, 2), scale_factor=(1.3, 0.7), mode="bicubic"
    ),
    "bicubic by a factor, corners aligned": lambda x: torch.nn.functional.interpolate(
        x[None], scale_factor=1.7, mode="bicubic", align_corners=True
    ),
    "upsampling to a row, corners aligned": lambda x: torch.nn.functional.interpolate(
        x[None], (1, 7), mode="bilinear", align_corners=True
    ),
    "upsample_bilinear2d to a column": lambda x: torch.ops.aten.upsample_bilinear2d.default(
        x[None], [4, 1], True
    ),
    "upsample_bicubic2d to a point": lambda x: torch.nn.functional.interpolate(
        x[None], (1, 1), mode="bicubic", align_corners=True
    ),
    "upsampling of a row, corners aligned": lambda x: torch.nn.functional.interpolate(
        x[None, :, :1], (1, 9), mode="bilinear", align_corners=True
    ),
    "one element of each row, of a batch of one": lambda x: x[:1][
        torch.arange(1), (x[:1, :, 0] * 9).long().argmax(-1)
    ],
    "one element of each of two rows": lambda x: x[torch.arange(2), x[:, :, 0].argmax(-1)],
    "a product of one number, times a number": lambda x: x[0, :1] @ x[1, 1:2].mT * x.sum().exp(),
    "group norm": lambda x: torch.nn.functional.group_norm(x[None].repeat(1, 2, 1, 1), 2, eps=0.3),
    "group norm of doubles": lambda x: torch.nn.functional.group_norm(
        x.double(), 1, (x[0, 0, :3] + 2).double()
    ),
    "group norm with a weight": lambda x: torch.nn.functional.group_norm(x, 1, x[0, 0, :3] + 2),
    "an empty slice that is written": lambda x: torch.slice_scatter(x * 2, x[:, 3:], 1, 3),
    "a slice that is written": lambda x: torch.slice_scatter(x * 2, x[:, 1:], 1, 1),
    "a slice that is written, with steps": lambda x: torch.slice_scatter(
        x, x[:, :, :3] * 2, 2, 0, 5, 2
    ),
    "a slice that is written, with steps, from the second": lambda x: torch.slice_scatter(
        x, x[:, :, :2] * 2, -1, 1, None, 2
    ),
    "scatter of a part of the source": lambda x: x[0].scatter(0, torch.tensor([[1, 0]]), x[1]),
    "products by scatter": lambda x: x[0].scatter(0, INDEX, x[1], reduce="multiply"),
    "sums by scatter": lambda x: x[0].scatter(0, INDEX, x[1], reduce="add"),
    "var_mean": lambda x: torch.var_mean(x, (0, 2), correction=0, keepdim=True),
    "std_mean": lambda x: torch.std_mean(x, -1),
    "sort, stable": lambda x: torch.sort((x * 2).round(), dim=2, descending=True, stable=True),
    "sort of truth values": lambda x: torch.sort(x > 0, 1),
    "sort of truth values, stable": lambda x: torch.sort(
        x > 0, dim=-1, descending=True, stable=True
    ),
    "instance norm of doubles": lambda x: torch.nn.functional.instance_norm(
        x.double(), weight=(x[0, :, 0] + 2).double(), bias=x[1, :, 0].double()
    ),
    "norm of doubles by the statistics of the batch": lambda x: torch.nn.functional.batch_norm(
        x.double(), None, None, training=True
    ),
    "topk in any order": lambda x: torch.topk(x, 5, sorted=False)[0].sum(-1),
    "an average pool with a divisor": lambda x: torch.nn.functional.avg_pool2d(
        x, 2, 1, padding=1, count_include_pad=False, divisor_override=3
    ),
    "bilinear by factors that give no whole lengths": lambda x: torch.nn.functional.interpolate(
        x[None], scale_factor=(1.5, 2.7), mode="bilinear"
    ),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "unfold with steps": lambda x: x.unfold(-1, 2, 3),
    "bags of rows, added": lambda x: bags(x, "sum"),
    "bags of rows, weighted": lambda x: torch.nn.functional.embedding_bag(
        INDEX, x[0], mode="sum", per_sample_weights=x[0, :2, :3]
    ),
    "bags of rows, their means": lambda x: bags(x, "mean"),
    "bags of rows, the greatest of each": lambda x: bags(x, "max"),
    "bags with their end": lambda x: bags(
        x, "sum", torch.tensor([0, 3, 5]), include_last_offset=True
    ),
    "reflection_pad1d": lambda x: torch.nn.functional.pad(x, (1, 3), mode="reflect"),
    "reflection_pad2d": lambda x: torch.nn.functional.pad(x, (1, 3, 2, 0), mode="reflect"),
    "replication_pad2d": lambda x: torch.nn.functional.pad(x[None], (1, 0, 2, 3), mode="replicate"),
    "circular padding": lambda x: torch.nn.functional.pad(x, (1, 2), mode="circular"),
    "one_hot": lambda x: torch.nn.functional.one_hot((x > 0).long(), 3),
}


def agree(path, tmp_path):
    model = Model("m", str(path))
    assert_agrees(importers.import_model(model, tmp_path))


@in_groups(FORMS, 4)
def test_an_operator_is_right(group, tmp_path):
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(8))
    torch.export.save(torch.export.export(Each(group.values()), (x,)), tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    assert_agrees(with_named_outputs(imported, group, x))


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)
@pytest.mark.parametrize("how", [{}, {"norm_first": True, "activation": "gelu"}], ids=str)
def test_a_traced_transformer_layer_is_written_out(how, tmp_path):
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **how).eval()
    with torch.no_grad():
        script = torch.jit.trace(layer, torch.randn(2, 5, 16))
    assert "_transformer_encoder_layer_fwd" in str(script.graph)
    script.save(tmp_path / "m.pt")
    agree(tmp_path / "m.pt", tmp_path)


def test_a_network_in_half_precision_is_torchs_in_half_precision(tmp_path):
    torch.manual_seed(1)
    layers = (
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 10),
    )
    network = torch.nn.Sequential(*layers).half().eval()
    torch.export.save(
        torch.export.export(network, (torch.rand(1, 3, 8, 8).half(),)), tmp_path / "m.pt2"
    )
    model = Model("m", str(tmp_path / "m.pt2"))
    made = importers.import_model(model, tmp_path)
    assert made.inputs[0].dtype == made.outputs[0].dtype == "float16"
    np.testing.assert_allclose(answers(made)[0], made.reference(made.example)[0], atol=3e-3)


QUOTIENTS = {
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "truncated by a number": lambda a, b: torch.div(a, -3, rounding_mode="trunc"),
    "rounded down": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "true": lambda a, b: a / b,
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_integers_are_divided_as_torch_does(name, tmp_path):
    class Dividing(torch.nn.Module):
        def forward(self, a, b):
            return QUOTIENTS[name](a, b)

    dividends, divisors = (
        torch.arange(-8, 8).reshape(4, 4),
        torch.tensor([[-3, 3, 1, -1]]).repeat(4, 1),
    )
    torch.export.save(torch.export.export(Dividing(), (dividends, divisors)), tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    imported.example.update(
        zip(imported.example, (dividends.numpy(), divisors.numpy()), strict=True)
    )
    assert_agrees(imported)


@pytest.mark.parametrize(
    "operator",
    [torch.nn.functional.selu, torch.nn.functional.elu, lambda x: torch.nn.functional.celu(x, 0.7)],
)
def test_exponential_units_have_all_their_factors(operator, tmp_path):
    class Unit(torch.nn.Module):
        def forward(self, x):
            return operator(x)

    torch.export.save(
        torch.export.export(Unit(), (torch.linspace(-4, 4, 24).reshape(4, 6),)), tmp_path / "m.pt2"
    )
    agree(tmp_path / "m.pt2", tmp_path)


@pytest.mark.parametrize(
    ("mode", "padding", "align_corners"),
    [  # each pair of two values is there
        ("bilinear", "zeros", True),
        ("bilinear", "border", False),
        ("bilinear", "reflection", False),
        ("nearest", "zeros", False),
        ("nearest", "border", True),
        ("nearest", "reflection", False),
        ("bicubic", "zeros", False),
        ("bicubic", "border", True),
        ("bicubic", "reflection", True),
    ],
)
def test_images_are_sampled_at_the_places_of_a_grid(mode, padding, align_corners, tmp_path):
    class Sampling(torch.nn.Module):
        def forward(self, image, grid):
            return torch.nn.functional.grid_sample(image, grid, mode, padding, align_corners)

    numbers = torch.Generator().manual_seed(4)
    image, grid = (
        torch.randn(2, 3, 7, 4, generator=numbers),
        2.6 * torch.rand(2, 5, 6, 2, generator=numbers) - 1.3,
    )
    torch.export.save(torch.export.export(Sampling(), (image, grid)), tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    imported.example.update(zip(imported.example, (image.numpy(), grid.numpy()), strict=True))
    assert_agrees(imported)


@pytest.mark.parametrize("shape", [(1, 2, 1, 6), (1, 2, 5, 1)])
def test_an_image_of_one_row_or_column_is_sampled_by_reflection(shape, tmp_path):
    class Sampling(torch.nn.Module):
        def forward(self, image, grid):
            return torch.nn.functional.grid_sample(image, grid, "bilinear", "reflection", True)

    given = torch.randn(shape), 2.6 * torch.rand(1, 5, 6, 2) - 1.3
    torch.export.save(torch.export.export(Sampling(), given), tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    assert_agrees(imported)


LOGIC = {
    "equal": lambda a, b: a == b,
    "not equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less or equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater or equal": lambda a, b: a >= b,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "equal to a constant": lambda a, b: (a == torch.tensor([True, False, True, False, True])) | b,
}


def test_booleans_are_compared_and_added_as_torch_does(tmp_path):
    group = {name: functools.partial(of_signs, function) for name, function in LOGIC.items()}
    x = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(5))
    torch.export.save(torch.export.export(Each(group.values()), (x,)), tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    assert_agrees(with_named_outputs(imported, group, x))


def of_signs(function, x):
    """The value of a function of two tensors of booleans."""
    return function(x[0] > 0, x[1] > 0)


class Layers(torch.nn.Module):
    """Two linear layers of sequences, as a transformer has them, and an attention's products."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x):
        queries, keys, values = x.reshape(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (queries @ keys.transpose(-2, -1)).softmax(-1) @ values
        x = mixed.transpose(1, 2).reshape(2, 5, 16)
        return x + self.out(torch.nn.functional.gelu(self.hidden(x)))


def test_what_follows_a_linear_layer_of_sequences_is_in_its_kernel(tmp_path):
    program = torch.export.export(Layers().eval(), (torch.rand(2, 5, 48),))
    torch.export.save(program, tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    assert_agrees(imported)
    low = lower_module(imported.module, imported.weights, resolve_target(HOST), {})
    kernels = [kernel.name for kernel in low.kernels]
    assert sum("dense" in kernel and "gelu" in kernel for kernel in kernels) == 1, kernels
    assert not [kernel for kernel in kernels if "slice" in kernel]


class Cubic(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.interpolate(x, (11, 5), mode="bicubic")


def test_a_resize_by_the_cubic_filter_gathers_nothing(tmp_path):
    program = torch.export.export(Cubic(), (torch.rand(1, 3, 8, 8),))
    torch.export.save(program, tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    assert_agrees(imported)
    text = imported.module["main"].script()
    assert "image.resize2d" in text and "take" not in text
