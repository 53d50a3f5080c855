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


def recurrent(kind: str, sizes: torch.Tensor) -> object:
    """A recurrent layer over a packed sequence."""
    gates = {"gru": 3, "lstm": 4}.get(kind, 1) * 4
    weights = [torch.ones(gates, 3), torch.ones(gates, 4), torch.ones(gates), torch.ones(gates)]
    state = torch.ones(1, 3, 4)
    layer = getattr(torch, kind)
    states = [state, state] if kind == "lstm" else state
    return layer(torch.ones(5, 3), sizes, states, weights, True, 1, 0.0, False, False)


def padded(sizes: torch.Tensor) -> object:
    return torch._pad_packed_sequence(torch.ones(5, 3), sizes, False, 0.0, 0)


RECURRENT = ("gru", "lstm", "rnn_tanh", "rnn_relu")
NO_SIZES = torch.zeros(0, dtype=torch.int64)
LEAVING: dict[str, Callable[[], object]] = {
    **{
        f"{kind} over one number": lambda kind=kind: recurrent(kind, torch.tensor([1]).expand(5))
        for kind in RECURRENT
    },
    "GRU over every other number": lambda: recurrent("gru", torch.tensor([3, 0, 2, 0])[::2]),
    "GRU over no numbers": lambda: recurrent("gru", NO_SIZES),
    "GRU over numbers of 32 bits": lambda: recurrent("gru", torch.ones(5, dtype=torch.int32)),
    "padding of fewer than no sequences": lambda: padded(torch.tensor([5, -3_000_000])),
    "padding of sequences that grow": lambda: padded(torch.tensor([1, 4])),
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
    "heads of attention that do not divide": lambda: (
        aten._scaled_dot_product_flash_attention_for_cpu(
            torch.ones(1, 4, 3, 8), torch.ones(1, 8, 3, 8), torch.ones(1, 8, 3, 8)
        )
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
    **{kind: lambda kind=kind: recurrent(kind, torch.tensor([3, 2])) for kind in RECURRENT},
    "padding": lambda: padded(torch.tensor([3, 2])),
}


@pytest.mark.parametrize("name", LEAVING)
def test_arguments_that_do_not_fit_raise_an_error(name):
    with CheckedArguments(), pytest.raises((ValueError, RuntimeError), match="do not fit each"):
        LEAVING[name]()


@pytest.mark.parametrize("kind", [*RECURRENT, "padding"])
def test_a_packed_sequence_is_checked_where_no_gradients_are_kept_too(kind):
    over = padded if kind == "padding" else lambda sizes: recurrent(kind, sizes)
    for keeps in (torch.no_grad, torch.inference_mode):
        with keeps(), CheckedArguments() as checked:
            over(torch.tensor([3, 2]))
            with pytest.raises((ValueError, RuntimeError), match="do not fit each"):
                over(torch.tensor([3, -2]))
            assert "do not fit each other" in checked.last_error


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


class Pads(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        return torch._pad_packed_sequence(x, torch.tensor([4, -300000]), False, 0.0, 0)[0]


class Reads(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        sizes, ones = torch.tensor([1]).expand(1000), torch.ones([12])
        weights = [torch.ones([12, 4]), torch.ones([12, 4]), ones, ones]
        state = torch.ones([1, 1, 4])
        return torch.gru(x, sizes, state, weights, True, 1, 0.0, False, False)[0]


@pytest.mark.parametrize("attack", [Pads, Reads])
def test_a_script_reads_and_writes_nothing_beside_a_packed_sequence(tmp_path, attack):
    torch.jit.script(attack().eval()).save(tmp_path / "m.pt")
    with pytest.raises(ModelError) as caught:
        load(Model("m", str(tmp_path / "m.pt"), shapes={"x": (4, 4)}))
    assert "do not fit each other" in caught.value.why


def test_a_script_is_run_with_the_check(tmp_path):
    torch.jit.script(Short().eval()).save(tmp_path / "m.pt")
    with pytest.raises(ModelError) as caught:
        load(Model("m", str(tmp_path / "m.pt"), shapes={"x": (4, 4)}))
    assert "do not fit each other" in caught.value.why
