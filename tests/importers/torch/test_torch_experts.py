"""Products of rows with the matrices of their groups, as mixtures of experts have them."""

from __future__ import annotations

import pytest
import torch
from host_build import assert_agrees, built

from farm import importers
from farm.importers.torch.converters import experts
from farm.types import Model


class Experts(torch.nn.Module):
    """Send each row to its two best experts, as the package transformers does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.router = torch.nn.Linear(8, 3)
        self.weights = torch.nn.Parameter(torch.randn(3, 6, 8))

    def forward(self, x):
        scores, chosen = torch.topk(self.router(x).softmax(-1), 2, dim=-1)
        chosen, order = chosen.reshape(-1).sort()
        counts = torch.histc(chosen.float(), bins=3, min=0, max=2)
        rows = x[order // 2]
        product = torch.ops.transformers.grouped_mm_fallback
        made = product(rows, self.weights.transpose(1, 2), counts.cumsum(0, dtype=torch.int32))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return (made[back].reshape(-1, 2, 6) * scores[..., None]).sum(1)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    experts.register_operators()
    folder = tmp_path_factory.mktemp("experts")
    program = torch.export.export(Experts().eval(), (torch.randn(5, 8),))
    torch.export.save(program, folder / "m.pt2")
    return importers.import_model(Model("m", str(folder / "m.pt2")), folder)


def test_a_mixture_of_experts_is_right(imported):
    assert_agrees(imported, atol=2e-6, rtol=2e-6)


def test_experts_without_rows_and_rows_of_one_expert_are_right(imported):
    network, run = Experts().eval(), built(imported)
    for seed in range(4):
        x = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed)).expand(5, 8)
        with torch.no_grad():
            expected = network(x)
        torch.testing.assert_close(torch.from_numpy(run([x.numpy().copy()])[0]), expected)


class Product(torch.nn.Module):
    def forward(self, rows, weights, ends):
        return torch.ops.transformers.grouped_mm_fallback(rows, weights, ends)


def test_rows_behind_the_last_group_are_zero(tmp_path):
    experts.register_operators()
    arguments = torch.ones(4, 2), torch.ones(2, 2, 3), torch.tensor([1, 3])
    wanted = [[2.0] * 3] * 3 + [[0.0] * 3]
    assert Product()(*arguments).tolist() == wanted
    torch.export.save(torch.export.export(Product(), arguments), tmp_path / "m.pt2")
    run = built(importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path))
    assert run([one.numpy() for one in arguments])[0].tolist() == wanted
