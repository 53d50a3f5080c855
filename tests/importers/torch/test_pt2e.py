"""Programs that torch quantized (PT2E) import, and compute in integers what torch makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from host_build import assert_agrees, built
from torch import nn
from tvm import relax

from farm import importers
from farm.compiler import relax_pipeline
from farm.errors import ModelError
from farm.types import Model

quantized = torch.ops.quantized_decomposed


class Net(nn.Module):
    """As `convert_pt2e` leaves a network: weights as int8, and each activation quantized and
    dequantized.
    """

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(3)
        for name, shape in (("conv", (8, 3, 3, 3)), ("linear", (5, 8))):
            self.register_buffer(
                f"{name}_w", torch.randint(-127, 128, shape, generator=numbers, dtype=torch.int8)
            )
            self.register_buffer(
                f"{name}_s",
                torch.rand(shape[0], generator=numbers, dtype=torch.float64) * 0.01 + 0.002,
            )
            self.register_buffer(f"{name}_z", torch.zeros(shape[0], dtype=torch.int64))
            self.register_buffer(f"{name}_b", torch.randn(shape[0], generator=numbers))

    def weight(self, name: str) -> torch.Tensor:
        given = (getattr(self, f"{name}_{part}") for part in "wsz")
        return quantized.dequantize_per_channel(*given, 0, -127, 127, torch.int8).to(torch.float32)

    def around(
        self,
        x: torch.Tensor,
        scale: float,
        zero: int,
        dtype: torch.dtype = torch.uint8,
        high: int = 255,
    ) -> torch.Tensor:
        kind = (scale, zero, 0 if dtype == torch.uint8 else -128, high, dtype)
        return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *kind), *kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.around(x, 0.03, 120)
        x = nn.functional.relu(nn.functional.conv2d(x, self.weight("conv"), self.conv_b, padding=1))
        x = self.around(x, 0.02, 0, high=127)  # 7 bits, as quantizers for old CPUs have it
        x = self.around(x.mean((2, 3)), 0.01, -5, torch.int8, 127)
        return nn.functional.linear(x, self.weight("linear"), self.linear_b)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.export.save(
        torch.export.export(Net().eval(), (torch.randn(1, 3, 6, 6),)), tmp_path / "net.pt2"
    )
    return tmp_path / "net.pt2"


def test_the_answer_is_torchs_and_the_arithmetic_that_of_integers(file, tmp_path):
    imported = importers.import_model(Model("net", str(file)), tmp_path)
    run = built(imported)
    for _ in range(4):
        x = np.random.default_rng(1).uniform(-4, 4, (1, 3, 6, 6)).astype(np.float32)
        [ours], [theirs] = run([x]), imported.reference({imported.inputs[0].name: x})
        np.testing.assert_allclose(ours, theirs, atol=0.02 * np.abs(theirs).max())
    found = []

    def look(call):
        if getattr(getattr(call, "op", None), "name", "") in ("relax.nn.conv2d", "relax.matmul"):
            found.append((str(call.args[0].ty.dtype), str(call.ty.dtype)))

    relax.analysis.post_order_visit(
        relax_pipeline.run_passes_before_legalization(
            relax_pipeline.bind_weights(imported.module, imported.weights)
        )["main"],
        look,
    )
    assert found == [("uint8", "int32"), ("int8", "int32")]


def test_numbers_by_channel_are_along_the_axis_that_is_said_and_within_its_bounds(tmp_path):
    class ByColumns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            numbers = torch.Generator().manual_seed(5)
            steps = torch.randint(-127, 128, (6, 6), generator=numbers, dtype=torch.int8)
            self.register_buffer("steps", steps)
            scales = torch.rand(6, generator=numbers, dtype=torch.float64) * 0.05 + 0.01
            self.register_buffer("scales", scales)
            self.register_buffer("zeros", torch.arange(-3, 3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            given = (self.scales, self.zeros, 1, -90, 80, torch.int8)
            weight = quantized.dequantize_per_channel(self.steps, *given).to(torch.float32)
            return x @ weight, quantized.quantize_per_channel(x, *given)

    x = 3 * torch.randn(6, 6, generator=torch.Generator().manual_seed(6))
    torch.export.save(torch.export.export(ByColumns(), (x,)), tmp_path / "m.pt2")
    imported = importers.import_model(Model("m", str(tmp_path / "m.pt2")), tmp_path)
    imported.example.update({name: x.numpy() for name in imported.example})
    assert {-90, 80} <= {int(step) for step in imported.reference(imported.example)[1].flat}
    assert_agrees(imported, atol=1e-4)


def test_another_type_than_bytes_is_refused(tmp_path):
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return quantized.quantize_per_tensor(x, 0.1, 0, -32768, 32767, torch.int16) + 1

    torch.export.save(torch.export.export(Wide(), (torch.randn(1, 4),)), tmp_path / "wide.pt2")
    with pytest.raises(ModelError, match="int16"):
        importers.import_model(Model("wide", str(tmp_path / "wide.pt2")), tmp_path)
