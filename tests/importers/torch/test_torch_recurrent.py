"""LSTM, GRU and RNN of torch modules: one kernel a layer, and torch's answer on farm's own
build.
"""

from __future__ import annotations

import pytest
import torch
from host_build import assert_agrees

from farm import importers
from farm.types import Model

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Layers(torch.nn.Module):
    """A recurrent layer, with all of what it returns."""

    def __init__(self, cell, **how):
        super().__init__()
        torch.manual_seed(5)
        self.layers = getattr(torch.nn, cell)(7, 10, **how)

    def forward(self, x, *states):
        output, last = self.layers(x, *([states] if len(states) > 1 else states))
        return (output, *last) if isinstance(last, tuple) else (output, last)


def imported(tmp_path, module, arguments):
    torch.export.save(torch.export.export(module.eval(), arguments), tmp_path / "m.pt2")
    return importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)


def agree(made):
    assert_agrees(made, rtol=0)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False, "bidirectional": True},
    ],
    ids=str,
)
def test_layers_are_a_kernel_each(cell, how, tmp_path):
    made = imported(tmp_path, Layers(cell, **how), (torch.randn(3, 5, 7),))
    assert made.module.script().count("R.call_tir(cls.recurrence") == how.get("num_layers", 1)
    agree(made)


@pytest.mark.parametrize(("cell", "count"), [("LSTM", 2), ("GRU", 1)])
def test_first_states_that_are_fed_count(cell, count, tmp_path):
    states = tuple(torch.randn(4, 3, 10) for _ in range(count))
    made = imported(
        tmp_path, Layers(cell, num_layers=2, bidirectional=True), (torch.randn(5, 3, 7), *states)
    )
    assert "recurrence" in made.module.script()
    agree(made)


def test_rectified_states_are_right_too(tmp_path):
    agree(imported(tmp_path, Layers("RNN", nonlinearity="relu"), (torch.randn(3, 5, 7),)))


def test_a_projection_has_no_kernel_and_is_written_out(tmp_path):
    made = imported(tmp_path, Layers("LSTM", proj_size=4), (torch.randn(3, 5, 7),))
    assert "recurrence" not in made.module.script()
    agree(made)


def test_weights_that_are_computed_are_packed_on_the_device(tmp_path):
    module = Layers("GRU")
    torch.nn.utils.parametrizations.weight_norm(module.layers, "weight_hh_l0")
    agree(imported(tmp_path, module, (torch.randn(3, 5, 7),)))
