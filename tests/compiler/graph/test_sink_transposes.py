"""Between convolutions, whatever their results go through is computed in the layout of the
convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from relax_models import compute, const
from torch.nn import functional
from tvm import relax

Emit = Callable[[relax.Expr], relax.Var]
SCALE = np.random.default_rng(1).uniform(0.5, 2, (8, 1, 1)).astype("float32")


def pool(operator: Callable[..., relax.Expr], **given: Any) -> Callable[..., relax.Expr]:
    """A leaky relu, which keeps NCHW, and a pool behind it."""
    return lambda emit, x: operator(emit(relax.op.nn.leakyrelu(x, 0.1)), **given)


# name: in Relax, the same in torch
STEPS: dict[str, tuple[Callable[[Emit, Any], relax.Expr], Callable[[Any], Any]]] = {
    "max pool": (
        pool(relax.op.nn.max_pool2d, pool_size=[3, 2], strides=[2, 1], padding=[1, 0, 1, 1]),
        lambda x: functional.max_pool2d(
            functional.pad(functional.leaky_relu(x, 0.1), (0, 1, 1, 1), value=-torch.inf),
            (3, 2),
            (2, 1),
        ),
    ),
    "average pool": (
        pool(relax.op.nn.avg_pool2d, pool_size=[2, 3], strides=[2, 2], padding=[0, 1, 0, 1]),
        lambda x: functional.avg_pool2d(
            functional.leaky_relu(x, 0.1), (2, 3), 2, (0, 1), count_include_pad=False
        ),
    ),
    "resize": (
        lambda emit, x: relax.op.image.resize2d(
            emit(relax.op.nn.leakyrelu(x, 0.1)),
            [20, 33],
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        lambda x: functional.interpolate(functional.leaky_relu(x, 0.1), (20, 33)),
    ),
    "padding": (
        lambda emit, x: relax.op.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 0], "reflect"),
        lambda x: functional.pad(x, (3, 0, 1, 2), "reflect"),
    ),
    "constants of fewer axes": (
        lambda emit, x: relax.op.divide(
            emit(relax.op.subtract(const(SCALE), x)), const(SCALE[0, 0] + np.arange(11.0))
        ),
        lambda x: (torch.tensor(SCALE) - x) / torch.tensor(SCALE[0, 0] + np.arange(11.0)),
    ),
    "selection": (
        lambda emit, x: relax.op.where(emit(relax.op.greater(x, const(SCALE))), x, const(-1.0)),
        lambda x: torch.where(x > torch.tensor(SCALE), x, -1.0),
    ),
    "slopes": (
        lambda emit, x: relax.op.nn.prelu(
            emit(relax.op.nn.leakyrelu(x, 0.1)), const(SCALE.reshape(-1)), axis=1
        ),
        lambda x: functional.prelu(
            functional.leaky_relu(x, 0.1), torch.tensor(SCALE.reshape(-1)).double()
        ),
    ),
    "mean of each channel": (
        lambda emit, x: relax.op.subtract(
            leaky := emit(relax.op.nn.leakyrelu(x, 0.1)),
            emit(relax.op.mean(leaky, [2, 3], keepdims=True)),
        ),
        lambda x: (leaky := functional.leaky_relu(x, 0.1)) - leaky.mean((2, 3), keepdim=True),
    ),
    "largest channel": (
        lambda emit, x: relax.op.subtract(
            leaky := emit(relax.op.nn.leakyrelu(x, 0.1)),
            emit(relax.op.max(leaky, [1], keepdims=True)),
        ),
        lambda x: (leaky := functional.leaky_relu(x, 0.1)) - leaky.amax(1, keepdim=True),
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_no_transpose_lies_between_two_convolutions(step):
    numbers = np.random.default_rng(0)
    x, first, second = (
        numbers.standard_normal(shape).astype("float32")
        for shape in ((2, 8, 10, 11), (8, 8, 3, 3), (8, 8, 3, 3))
    )
    in_relax, in_torch = STEPS[step]

    def body(emit, x, first, second):
        convolved = emit(relax.op.nn.conv2d(x, first, padding=1))
        return relax.op.nn.conv2d(emit(in_relax(emit, convolved)), second)

    answer = compute({"x": x}, body, {"first": first, "second": second})
    convolved = functional.conv2d(torch.tensor(x).double(), torch.tensor(first).double(), padding=1)
    wanted = functional.conv2d(in_torch(convolved), torch.tensor(second).double()).numpy()
    assert np.abs(answer.outputs[0] - wanted).max() < 1e-5 * np.abs(wanted).max()
    transposes = [kernel.name for kernel in answer.kernels if "transpose" in kernel.name]
    assert len(transposes) <= 2, "one of the input, one of the output"
    assert "fused" not in "".join(transposes)


def test_a_mean_over_pixels_without_their_axes_needs_no_transpose():
    x, weight = (
        np.random.default_rng(0).standard_normal(shape).astype("float32")
        for shape in ((2, 8, 10, 11), (8, 8, 3, 3))
    )

    def body(emit, x, weight):
        leaky = emit(relax.op.nn.leakyrelu(emit(relax.op.nn.conv2d(x, weight)), 0.1))
        return relax.op.mean(leaky, [2, 3])

    answer = compute({"x": x}, body, {"weight": weight})
    wanted = functional.leaky_relu(
        functional.conv2d(torch.tensor(x).double(), torch.tensor(weight).double()), 0.1
    ).mean((2, 3))
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-4, atol=1e-5)
    assert sum("transpose" in kernel.name for kernel in answer.kernels) == 1
