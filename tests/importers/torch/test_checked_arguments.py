"""Operators of torch that trust their arguments are given only arguments that fit each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from farm.errors import ModelError
from farm.importers.torch.checks.checked_arguments import CheckedArguments
from farm.importers.torch.torchscript import load
from farm.types import Model

aten = torch.ops.aten
ONES = torch.ones(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def lstm(hidden: torch.Tensor, weights: torch.Tensor) -> object:
    given = [weights, torch.ones(80, 20), torch.ones(80), torch.ones(80)]
    states = (hidden, torch.ones(1, 2, 20))
    with torch.no_grad():  # only then torch gives it to oneDNN
        return torch.lstm(torch.ones(3, 2, 40), states, given, True, 1, 0.0, False, False, False)


def bags(offsets: list[int], rows: torch.Tensor) -> object:
    return torch.embedding_bag(torch.ones(5, 3), rows, torch.tensor(offsets))


def quantized(data: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(data, 1.0, 0, torch.quint8)


LEAVING: dict[str, Callable[[], object]] = {
    "normalization": lambda: aten._native_batch_norm_legit_no_training(
        torch.ones(2, 4, 3), ONES, torch.ones(4), torch.ones(4), torch.ones(4), 0.1, 1e-5
    ),
    "normalization of the batch": lambda: aten._native_batch_norm_legit.no_stats(
        torch.ones(2, 4, 3), None, None, False, 0.1, 1e-5
    ),
    "bags": lambda: bags([0, -3, 3], torch.tensor([1, 2, 3, 4])),
    "rows": lambda: bags([0], torch.tensor([7])),
    "rows in one place": lambda: aten._embedding_bag_forward_only(
        torch.ones(5, 3), torch.tensor([1]).expand(9), torch.tensor([0])
    ),
    "weight norm": lambda: torch._weight_norm(torch.ones(4, 4), torch.ones(1, 1), 0),
    "median": lambda: torch.median(ONES.expand(5, 5), 0),
    "scale": lambda: aten._upsample_bilinear2d_aa(
        torch.ones(1, 3, 10, 20), [3, 100], False, 0.3, 0.3
    ),
    "scale of quantized data": lambda: aten.upsample_bilinear2d(
        quantized(torch.ones(1, 1, 4, 4)), [4, 4], False, 1e-3, 1e-3
    ),
    "attention": lambda: aten._scaled_dot_product_flash_attention_for_cpu(
        torch.ones(4, 2, 3, 8), torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8)
    ),
    "LSTM's state": lambda: lstm(torch.ones(1, 1, 20), torch.ones(80, 40)),
    "LSTM's weights": lambda: lstm(torch.ones(1, 2, 20), torch.ones(1, 40)),
}
FITTING: dict[str, Callable[[], object]] = {
    "normalization": lambda: torch.nn.BatchNorm1d(4).eval()(torch.ones(2, 4, 3)),
    "normalization of the batch": lambda: torch.nn.InstanceNorm1d(4)(torch.rand(2, 4, 3)),
    "bags": lambda: bags([0, 2, 2], torch.tensor([1, 2, 3, 4])),
    "weight norm": lambda: torch._weight_norm(torch.ones(4, 4), torch.ones(4, 1), 0),
    "median": lambda: torch.median(torch.ones(5, 5), 0),
    "scale": lambda: functional.interpolate(
        torch.ones(1, 3, 10, 20), scale_factor=1.37, mode="bilinear", antialias=True
    ),
    "scale of quantized data": lambda: functional.interpolate(
        quantized(torch.ones(1, 3, 10, 20)), scale_factor=1.37, mode="bilinear"
    ).dequantize(),
    "attention": lambda: functional.scaled_dot_product_attention(
        torch.ones(2, 3, 4, 8), torch.ones(2, 3, 7, 8), torch.ones(2, 3, 7, 8), torch.ones(4, 7)
    ),
    "LSTM": lambda: lstm(torch.ones(1, 2, 20), torch.ones(80, 40)),
}


@pytest.mark.parametrize("name", LEAVING)
def test_arguments_that_do_not_fit_raise_an_error(name):
    with CheckedArguments(), pytest.raises((ValueError, RuntimeError), match="do not fit each"):
        LEAVING[name]()


@pytest.mark.parametrize("name", FITTING)
def test_arguments_that_fit_are_computed_as_without_the_check(name):
    torch.manual_seed(0)
    expected = FITTING[name]()
    torch.manual_seed(0)
    with CheckedArguments():
        result = FITTING[name]()
    torch.testing.assert_close(result, expected)


class Short(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        return torch._weight_norm(x, torch.ones([1, 1]), 0)


def test_a_script_is_run_with_the_check(tmp_path):
    torch.jit.script(Short().eval()).save(tmp_path / "m.pt")
    with pytest.raises(ModelError) as caught:
        load(Model("m", str(tmp_path / "m.pt"), shapes={"x": (4, 4)}))
    assert "do not fit each other" in caught.value.why
