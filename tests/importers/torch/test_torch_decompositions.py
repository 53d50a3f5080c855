"""Decompositions of torch's operators: each gives torch's answer, and its model is built."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from host_build import assert_agrees

from farm import importers
from farm.errors import ModelError
from farm.importers.torch.decompositions import decompositions
from farm.types import Model

sys.path.append(str(Path(__file__).parent.parent))
from torch_regression_models import Each, in_groups, with_named_outputs

aten, functional = torch.ops.aten, torch.nn.functional
SPECIAL = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0])
NUMBERS = torch.cat([torch.linspace(-9, 9, 1201), SPECIAL])
UNARY = ("erfc", "exp2", "signbit", "lgamma", "digamma")
BINARY = ("hypot", "copysign.Tensor", "fmax", "fmin", "ldexp.Tensor")
TOLERANCES = {torch.float16: 2e-3, torch.float32: 3e-5, torch.float64: 3e-6, torch.int64: 1e-6}


def operator(name):
    function, _, overload = name.partition(".")
    return getattr(getattr(aten, function), overload or "default")


def compare(name, *values, tolerance=1e-5, **named):
    """Compare a decomposition with its operator: values, types and shapes."""
    which = operator(name)
    ours, theirs = decompositions()[which](*values, **named), which(*values, **named)
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
    for our, their in pairs:
        torch.testing.assert_close(our, their, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_a_function_of_each_element_is_torch_s(name, dtype):
    finite = NUMBERS if dtype.is_floating_point else NUMBERS.nan_to_num(0, 5, -5)
    x, tolerance = finite.to(dtype), TOLERANCES[dtype]
    if name in ("copysign.Tensor", "fmax", "fmin", "hypot") and not dtype.is_floating_point:
        x = x.float()
    compare(name, x, *([x.flip(0)] if name in BINARY else []), tolerance=tolerance)


@pytest.mark.parametrize("name", BINARY)
def test_each_pair_of_zeros_infinities_and_nan_is_torch_s(name):
    compare(name, SPECIAL[:, None], SPECIAL[None])


@pytest.mark.parametrize(
    ("shifts", "dims"),
    [([1], [0]), ([-2, 3], [1, 0]), ([7, -9], [-1, -1]), ([0], [1]), ([4], []), ([1], [2])],
)
def test_a_roll_is_torch_s(shifts, dims):
    compare("roll", torch.arange(24.0).reshape(4, 3, 2), shifts, dims)


def test_a_roll_of_an_open_batch_takes_no_indices():
    class Rolled(torch.nn.Module):
        def forward(self, x):
            return x.roll((1, -1), (1, 2))

    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Rolled(), (torch.ones(2, 4, 3),), dynamic_shapes=(batch,))
    made = program.run_decompositions(decompositions())
    called = {str(node.target) for node in made.graph.nodes if node.op == "call_function"}
    assert "aten.cat.default" in called and not any("index" in name for name in called)
    x = torch.randn(3, 4, 3)
    torch.testing.assert_close(made.module()(x), x.roll((1, -1), (1, 2)))


@pytest.mark.parametrize("shape", [(4, 0), (0,), ()], ids=str)
def test_a_roll_of_nothing_or_of_a_number_is_torch_s(shape):
    compare("roll", torch.ones(shape), [3], [0] if shape else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_tensor_taken_apart_is_torch_s(axis, dtype):
    ours, theirs = (
        function(torch.arange(24).reshape(4, 3, 2).to(dtype), axis)
        for function in (decompositions()[aten.unbind.int], torch.unbind)
    )
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their)


def test_the_tails_of_erfc_keep_their_relative_accuracy():
    x = torch.linspace(2, 9, 50)
    exact = torch.erfc(x.double())
    made = decompositions()[aten.erfc.default](x).double()
    assert ((made - exact) / exact).abs().max() < 1e-5


def test_the_inverse_of_erf_reaches_infinity():
    compare("erfinv", torch.linspace(-1, 1, 401), tolerance=1e-4)


@pytest.mark.parametrize("name", ["cummax", "cummin", "logcumsumexp"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_scan_is_torch_s_with_equal_and_missing_numbers(name, dim):
    x = torch.randint(0, 5, (3, 13, 2), generator=torch.Generator().manual_seed(1)).float()
    if name == "logcumsumexp":
        x[0, 0, 0], x[1, 5, 0] = -math.inf, math.inf
        x[:, 0, 1] = -math.inf
    else:
        x[0, 3, 0] = math.nan
    compare(name, x, dim)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_small_matrices_are_inverted_and_solved_with_pivots(size):
    torch.manual_seed(size)
    shuffled = torch.eye(size)[torch.randperm(size)] * 3
    a = torch.randn(2, 3, size, size) / 2 + shuffled
    b = torch.randn(2, 3, size, 4)
    for name in ("linalg_inv", "linalg_det", "linalg_slogdet"):
        compare(name, a, tolerance=1e-3)
    compare("linalg_solve", a, b, tolerance=1e-3)
    compare("linalg_solve", a, b[..., 0], tolerance=1e-3)
    compare("linalg_solve", a, b.mT.contiguous(), left=False, tolerance=1e-3)
    positive = a @ a.mT + torch.eye(size)
    for upper in (False, True):
        compare("linalg_cholesky", positive, upper=upper, tolerance=1e-3)


def test_a_column_may_begin_with_zero():
    exchanged = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0], [4.0, 1.0, 0.0]])
    compare("linalg_inv", exchanged)
    compare("linalg_det", exchanged)
    compare("linalg_solve", exchanged, torch.eye(3)[:, :2])


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, math.inf])
def test_distances_of_few_and_of_many_rows_are_torch_s(p):
    x, y = torch.randn(2, 30, 5), torch.randn(2, 40, 5)
    compare("_cdist_forward", x, y, p, None, tolerance=1e-4)
    compare("_cdist_forward", x[:, :3], y[:, :4], p, None, tolerance=1e-4)


@pytest.mark.parametrize("align_corners", [False, True])
def test_images_are_sampled_as_by_torch(align_corners):
    torch.manual_seed(0)
    volume, grid = torch.randn(2, 3, 4, 5, 6), torch.randn(2, 3, 2, 4, 3)
    for mode in (0, 1):
        for padding in (0, 1, 2):
            compare("grid_sampler_3d", volume, grid, mode, padding, align_corners, tolerance=1e-4)
    image = torch.randn(2, 3, 13, 17)
    for size in ((5, 6), (13, 9), (20, 17), (1, 40)):
        for name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
            compare(name, image, size, align_corners, tolerance=1e-4)
    for size in ((2, 1, 5, 3), (2, 1, 1, 3), (2, 1, 4, 1, 3)):
        rank = len(size) - 2
        compare("affine_grid_generator", torch.randn(2, rank, rank + 1), size, align_corners)


@pytest.mark.parametrize("scale", [None, 1.6, 0.7])
def test_the_nearest_pixel_is_that_of_the_centre(scale):
    for rank in (1, 2, 3):
        image = torch.randn(1, 2, *[7, 5, 4][:rank])
        size = [int(extent * (scale or 1.3)) for extent in image.shape[2:]]
        compare(f"_upsample_nearest_exact{rank}d", image, size, *[scale] * rank)


def test_an_axis_that_keeps_its_length_is_not_resized_by_a_scale():
    compare("_upsample_bicubic2d_aa", torch.randn(1, 1, 2, 4), (2, 5), False, 1.3, 1.3)


@pytest.mark.parametrize(("size", "step"), [(1, 1), (4, 2), (5, 2), (3, 3), (2, 5), (70, 1)])
def test_overlapping_windows_are_added_up_as_by_torch(size, step):
    for shape, dim in (((90,), 0), (2 * (3, 75), 1), ((2, 81, 3), -2)):
        windows = torch.randn_like(torch.zeros(shape).unfold(dim, size, step))
        compare("unfold_backward", windows, list(shape), dim, size, step)
    row = torch.randn(1, (90 - size) // step + 1, size)
    compare("unfold_backward", row.expand(3, -1, -1), [3, 90], 1, size, step)


@pytest.mark.parametrize("kernel", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_overlapping_patches_are_added_up_as_by_torch(kernel, dilation, stride):
    for padding in ((0, 0), (1, 2)):
        patches = functional.unfold(torch.ones(2, 3, 9, 11), kernel, dilation, padding, stride)
        patches = torch.randn_like(patches)
        compare("col2im", patches, (9, 11), kernel, dilation, padding, stride)
        compare("col2im", patches[0], (9, 11), kernel, dilation, padding, stride)


def test_an_inverse_short_time_transform_takes_few_operators(tmp_path):
    """torch's own decomposition of it scatters each place of a window by an operator of its own."""

    class Inverse(torch.nn.Module):
        def forward(self, x):
            return torch.istft(torch.complex(x, x), 64, 16, window=torch.hann_window(64))

    program = torch.export.export(Inverse(), (torch.randn(2, 33, 9),))
    table = torch.export.default_decompositions()
    table.update(decompositions())
    called = list(program.run_decompositions(table).graph.nodes)
    assert len(called) < 100


X = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(8))
SORTED, MASK = torch.tensor([-1.0, -0.3, 0.2, 0.2, 1.0]), X[0] > 0.2
VOLUME = torch.randn(1, 2, 3, 4, 5, generator=torch.Generator().manual_seed(2))
FORMS = {
    "masked_scatter": lambda x: x.masked_scatter(MASK, torch.arange(30.0)),
    "searchsorted": lambda x: torch.searchsorted(SORTED, x, right=True),
    "searchsorted of a number": lambda x: torch.searchsorted(x[0, 0].sort().values, 0.1),
    "as_strided, overlapping": lambda x: (x * 1).as_strided((3, 4), (2, 1), 3),
    "fill_diagonal_": lambda x: (x[0] * 1).fill_diagonal_(7.0),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, torch.zeros(2, 3), 1, 1, 2),
    "histc": lambda x: torch.histc(x, 6, -1, 1),
    "histc of the whole range": lambda x: torch.histc(x, 4),
    "histc of integers": lambda x: torch.histc((x * 3).long().float(), 7, -3, 3),
    "kthvalue": lambda x: tuple(torch.kthvalue(x, 2, 1)),
    "median": lambda x: tuple(torch.median(x, 2)),
    "median of an even number": lambda x: tuple(torch.median(x, 0, keepdim=True)),
    "median of bytes": lambda x: torch.median((x * 9).abs().to(torch.uint8), -1).values,
    "median with NaN": lambda x: tuple(torch.median(torch.where(x > 1, torch.nan, x), 1)),
    "median of all": torch.median,
    "cummax": lambda x: tuple(torch.cummax(x, 2)),
    "inv": lambda x: torch.linalg.inv(x[:, :, :3] + 3 * torch.eye(3).flip(0)),
    "det": lambda x: torch.det(x[:, :, :3]),
    "cdist": lambda x: torch.cdist(x[0], x[1]),
    "cdist of many": lambda x: torch.cdist(x.repeat(1, 10, 1) + 2, x),
    "dist": lambda x: torch.dist(x[0], x[1]),
    "copysign": lambda x: torch.copysign(x, -1),
    "erfc": torch.erfc,
    "lgamma": torch.lgamma,
    "cat of several types": lambda x: torch.cat([x, (x * 3).long(), x > 0], 1),
    "an element by two numbers": lambda x: x[
        torch.tensor(1), (x[0, 0, 0] > 9).long(), torch.tensor(2)
    ],
    "an element by tensors without axes": lambda x: aten.index.Tensor(
        x, [torch.tensor(1), (x[0, 0, 0] > 9).long()]
    ),
    "rows by two numbers, apart": lambda x: x[torch.tensor(1), :, (x[0, 0, 0] > 9).long()],
    "a sum of products without its first": lambda x: torch.addbmm(
        x[0, :, :3] * torch.inf, x[:, :, :3], x[:, :, 1:4], beta=0, alpha=2
    ),
    "rrelu": lambda x: functional.rrelu(x),
    "hypot of what is not finite": lambda x: torch.hypot(
        x, torch.where(x > 0.5, torch.inf, torch.nan)
    ),
    "addmv": lambda x: torch.addmv(x[0, 0, :3], x[1], x[0, 1], beta=2, alpha=0.5),
    "grid_sample of volumes": lambda x: functional.grid_sample(
        VOLUME, x[:1, None, :, None, :3], align_corners=False
    ),
    "fold": lambda x: functional.fold(
        x.reshape(1, 10, 3).repeat(1, 2, 2)[..., :6], (3, 4), (2, 2), padding=(0, 0), stride=1
    ),
    "istft": lambda x: torch.istft(
        torch.complex(x, x.flip(1)), 4, 2, window=torch.tensor([0.5, 1.0, 1.0, 0.5])
    ),
    "istft of a length": lambda x: torch.istft(
        torch.complex(x[0], x[1]), 4, 1, win_length=3, window=torch.ones(3), length=5
    ),
    "antialiased": lambda x: functional.interpolate(
        x[None], scale_factor=(0.7, 0.6), mode="bicubic", antialias=True
    ),
    "affine_grid of volumes": lambda x: functional.affine_grid(
        x[:1, :, :4], (1, 1, 2, 3, 2), align_corners=False
    ),
    "conv_transpose3d of float16": lambda x: functional.conv_transpose3d(
        (VOLUME + x[0, 0, 0]).half(), VOLUME.half()[0, :, None, :2, :2, :2], stride=2
    ).float(),
    "conv_transpose3d": lambda x: functional.conv_transpose3d(
        VOLUME + x[0, 0, 0], VOLUME.flip(2)[0, :, None, :2, :2, :2], stride=2, padding=1
    ),
}


@in_groups(FORMS, 2)
def test_a_model_with_an_operator_of_them_is_built(group, tmp_path):
    torch.export.save(torch.export.export(Each(group.values()), (X,)), tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    assert_agrees(with_named_outputs(imported, group, X), atol=2e-5, rtol=2e-5)


def test_a_large_inverse_is_refused_with_its_size(tmp_path):
    network = Each([torch.linalg.inv])
    torch.export.save(torch.export.export(network, (torch.eye(40),)), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match="40 x 40"):
        importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
