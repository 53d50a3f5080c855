"""Complex numbers and Fourier transforms of torch: each is torch's answer on farm's own build."""

from __future__ import annotations

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

fft, real = torch.fft, torch.view_as_real


def numbers(x):
    """Complex numbers of the shape [2, 4], none of which is near zero."""
    return torch.complex(x[0, :2, :4].abs() + 1, x[1, :2, :4])


def spectral_layer(x):
    """Layer of a Fourier neural operator: the lowest frequencies alone, times a matrix."""
    kept = fft.rfft(x[0])[:, :2]
    matrix = torch.complex(torch.linspace(0, 1, 9).reshape(3, 3), torch.eye(3))
    made = torch.zeros(3, 4, dtype=torch.cfloat)
    made[:, :2] = torch.einsum("ik,io->ok", kept, matrix)
    return fft.irfft(made, n=6)


FORMS = {
    "fft": lambda x: real(fft.fft(x)),
    "fft of an odd length": lambda x: real(fft.fft(x, dim=1, norm="ortho")),
    "fftn, its real part": lambda x: fft.fftn(x, dim=(1, 2)).real,
    "fft of more points than there are": lambda x: real(fft.fft(x, n=9)),
    "ifft": lambda x: real(fft.ifft(x, dim=-2).resolve_conj()),
    "rfft": lambda x: real(fft.rfft(x, norm="forward")),
    "rfft2": lambda x: real(fft.rfft2(x, norm="ortho")),
    "irfft": lambda x: fft.irfft(fft.rfft(x) * 1j),
    "irfft of an odd length": lambda x: fft.irfft(numbers(x), n=7),
    "irfft2": lambda x: fft.irfft2(fft.rfft2(x, norm="ortho"), s=(3, 6), norm="ortho"),
    "hfft": lambda x: fft.hfft(numbers(x)),
    "fftshift": lambda x: fft.fftshift(fft.fft(x), dim=-1).imag,
    "stft": lambda x: torch.stft(
        x.reshape(1, -1), 8, 3, window=torch.hann_window(8), return_complex=True
    ).abs(),
    "spectral layer": spectral_layer,
    "product": lambda x: real(numbers(x) * numbers(x + 1)),
    "product with reals": lambda x: real(x[0, 0, :4] * numbers(x)),
    "product with a number": lambda x: real(numbers(x) * (2 - 0.5j)),
    "quotient": lambda x: real(numbers(x) / numbers(x + 1)),
    "quotient of a real": lambda x: real(1 / numbers(x)),
    "quotient by reals": lambda x: real(numbers(x) / (x[0, :2, :4].abs() + 1)),
    "sum": lambda x: real(torch.add(numbers(x), numbers(x + 1), alpha=3)),
    "sum with reals": lambda x: real(numbers(x)[:, None] + x[0, 0, :4]),
    "difference from reals": lambda x: real(x[0, 0, :4] - numbers(x)),
    "negation": lambda x: real(-numbers(x)),
    "conjugate": lambda x: real(torch.conj_physical(numbers(x))),
    "conjugate view": lambda x: real((numbers(x).conj() * 2).resolve_conj()),
    "absolute value": lambda x: numbers(x).abs(),
    "angle": lambda x: torch.angle(numbers(x) - 2),
    "exp": lambda x: real(torch.exp(numbers(x))),
    "polar": lambda x: real(torch.polar(x[0].abs(), x[1])),
    "from reals": lambda x: real(x.to(torch.complex64)),
    "product of matrices": lambda x: real(numbers(x) @ numbers(x).T),
    "linear layer": lambda x: real(
        torch.nn.functional.linear(numbers(x), torch.complex(x[1], x[0])[:, :4])
    ),
    "linear layer with a bias": lambda x: real(
        torch.nn.functional.linear(numbers(x), numbers(x + 1), numbers(x)[:, 0])
    ),
    "rolled": lambda x: real(numbers(x).roll((1, -1), (0, 1))),
    "taken apart": lambda x: real(numbers(x).unbind(-1)[2]),
    "mean": lambda x: real(numbers(x).mean(-1, keepdim=True)),
    "sum of all": lambda x: real(numbers(x).sum()),
    "transposed": lambda x: real(numbers(x).transpose(-1, -2)),
    "reshaped": lambda x: real(numbers(x).reshape(-1)),
    "parts joined": lambda x: real(torch.cat([numbers(x), numbers(x)[..., 1:2]], -1)),
    "picked": lambda x: real(numbers(x)[..., -1]),
    "flipped": lambda x: real(numbers(x).flip(-1)),
    "padded": lambda x: real(torch.nn.functional.pad(numbers(x), (1, 2))),
    "new axis": lambda x: real(numbers(x).unsqueeze(-1).expand(2, 4, 3)),
}


def exported(module, x, tmp_path, **how):
    torch.export.save(torch.export.export(module, (x,), **how), tmp_path / "m.pt2")
    return Model("m", str(tmp_path / "m.pt2"))


def example():
    return torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(8))


@in_groups(FORMS, 5)
def test_an_operator_on_complex_numbers_is_right(group, tmp_path):
    x = example()
    imported = importers.import_model(exported(Each(group.values()), x, tmp_path), tmp_path)
    assert_agrees(with_named_outputs(imported, group, x), atol=2e-5, rtol=2e-5)


class Rotating(torch.nn.Module):
    """Rotary embedding with complex weights, as in Llama's own code."""

    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.1]))
        self.register_buffer("turns", torch.polar(torch.ones(5, 2), angles))

    def forward(self, x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns).flatten(-2)


def test_complex_weights_are_kept_as_pairs_and_the_batch_stays_open(tmp_path):
    batch = torch.export.Dim("batch", max=64)
    model = exported(Rotating(), torch.randn(2, 5, 4), tmp_path, dynamic_shapes=({0: batch},))
    imported = importers.import_model(model, tmp_path)
    assert imported.open, imported.fixed
    assert_agrees(imported)


def test_complex_values_between_operators_are_pairs_of_reals(tmp_path):
    model = exported(Rotating(), torch.randn(1, 5, 4), tmp_path)
    imported = importers.import_model(model, tmp_path)
    layers = {operator: value for _, operator, value in imported.layers(imported.example)}
    assert layers["mul.Tensor"].shape == (1, 5, 2, 2)
    assert layers["mul.Tensor"].dtype == "float32"
    expected = imported.reference(imported.example)[0]
    assert (layers["mul.Tensor"].reshape(expected.shape) == expected).all()


def test_a_traced_fourier_transform_is_right(tmp_path):
    class Mixing(torch.nn.Module):
        def forward(self, x):
            return torch.fft.fftn(x, dim=(1, 2)).real

    torch.jit.trace(Mixing(), example()).save(tmp_path / "m.pt")
    assert_agrees(importers.import_model(Model("m", str(tmp_path / "m.pt")), tmp_path), atol=2e-5)


@pytest.mark.parametrize(
    ("function", "what", "why"),
    [
        (lambda x: torch.fft.fft(x), "an output has complex numbers", "return them"),
        (lambda x: torch.fft.fft(x).tanh().real, "tanh.default of complex numbers", "tanh"),
        (lambda x: torch.fft.rfft(x, n=5003).abs(), "cannot import", "of 5003 points"),
    ],
)
def test_complex_numbers_that_farm_does_not_compute_are_named(function, what, why, tmp_path):
    class Of(torch.nn.Module):
        def forward(self, x):
            return function(x)

    with pytest.raises(ModelError) as error:
        importers.import_model(exported(Of(), example(), tmp_path), tmp_path)
    assert what in error.value.what
    assert why in error.value.why


def test_complex_inputs_are_refused(tmp_path):
    class Size(torch.nn.Module):
        def forward(self, x):
            return x.abs()

    with pytest.raises(ModelError, match="an input 'x' has complex numbers"):
        importers.import_model(
            exported(Size(), torch.ones(2, 3, dtype=torch.cfloat), tmp_path), tmp_path
        )
