"""Between convolutions, whatever their results go through is computed in the layout of the
convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from relax_models import compute, const
from torch.nn import functional
from tvm import relax

Emit = Callable[[relax.Expr], relax.Var]
SCALE = np.random.default_rng(1).uniform(0.5, 2, (8, 1, 1)).astype("float32")


def pool(operator: Callable[..., relax.Expr], **given: Any) -> Callable[..., relax.Expr]:
    """A leaky relu, which keeps NCHW, and a pool behind it."""
    return lambda emit, x: operator(emit(relax.op.nn.leakyrelu(x, 0.1)), **given)


def cubic_resize(x: torch.Tensor, size: tuple[int, int], coefficient: float) -> torch.Tensor:
    """ONNX's Resize: torch has one coefficient only."""
    node = onnx.helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode="cubic", cubic_coeff_a=coefficient
    )
    sizes = np.array([*x.shape[:2], *size])
    (found,) = ReferenceEvaluator(node).run(None, {"x": x.numpy(), "sizes": sizes})
    return torch.from_numpy(found)


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
    "average pool of the padding, too": (
        pool(
            relax.op.nn.avg_pool2d,
            pool_size=[3, 3],
            strides=[2, 2],
            padding=[1, 1, 1, 1],
            ceil_mode=True,
            count_include_pad=True,
        ),
        lambda x: functional.avg_pool2d(functional.leaky_relu(x, 0.1), 3, 2, 1, ceil_mode=True),
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
    "cubic resize": (
        lambda emit, x: relax.op.image.resize2d(
            emit(relax.op.nn.leakyrelu(x, 0.1)),
            [13, 16],
            layout="NCHW",
            method="cubic",
            coordinate_transformation_mode="half_pixel",
            cubic_alpha=-0.75,
        ),
        lambda x: functional.interpolate(
            functional.leaky_relu(x, 0.1), (13, 16), mode="bicubic", align_corners=False
        ),
    ),
    "cubic resize with a coefficient of its own": (
        lambda emit, x: relax.op.image.resize2d(
            emit(relax.op.nn.leakyrelu(x, 0.1)),
            [13, 16],
            layout="NCHW",
            method="cubic",
            coordinate_transformation_mode="half_pixel",
            cubic_alpha=-0.3,
        ),
        lambda x: cubic_resize(functional.leaky_relu(x, 0.1), (13, 16), -0.3),
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
            emit(relax.op.mean(leaky, [-1, 2], keepdims=True)),
        ),
        lambda x: (leaky := functional.leaky_relu(x, 0.1)) - leaky.mean((2, 3), keepdim=True),
    ),
    "tokens": (
        lambda emit, x: relax.op.reshape(
            emit(
                relax.op.permute_dims(
                    emit(
                        relax.op.multiply(
                            emit(
                                relax.op.permute_dims(
                                    emit(relax.op.reshape(x, (2, 8, 110))), [0, 2, 1]
                                )
                            ),
                            const(SCALE.reshape(-1)),
                        )
                    ),
                    [0, 2, 1],
                )
            ),
            (2, 8, 10, 11),
        ),
        lambda x: x * torch.tensor(SCALE),
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


@pytest.mark.parametrize(
    ("first", "second", "transposes"),
    [
        ([0, 2, 3, 1], [0, 3, 1, 2], 0),
        ([0, 2, -1, 1], [0, 3, -3, 2], 0),
        ([2, 0, 1, 3], [1, 3, 0, 2], 1),
        ([1, 0, 2, -1], [3, 1, 0, 2], 1),
    ],
    ids=["cancel", "cancel, counted from the end", "do not", "do not, counted from the end"],
)
def test_two_transposes_are_at_most_one(first, second, transposes):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("float32")

    def body(emit, x):
        turned = emit(relax.op.permute_dims(emit(relax.op.nn.relu(x)), first))
        return relax.op.sqrt(emit(relax.op.permute_dims(turned, second)))

    answer = compute({"x": x}, body)
    wanted = np.sqrt(np.maximum(x, 0)).transpose(first).transpose(second)
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-6)
    assert "".join(kernel.name for kernel in answer.kernels).count("transpose") == transposes


def test_reshapes_that_only_look_like_tokens_stay():
    """In [2, 11, 80] no axis is that of the channels."""
    x, weight = (
        np.random.default_rng(0).standard_normal(shape).astype("float32")
        for shape in ((2, 8, 10, 11), (8, 8, 1, 1))
    )

    def body(emit, x, weight):
        convolved = emit(relax.op.nn.conv2d(x, weight))
        return relax.op.permute_dims(emit(relax.op.reshape(convolved, (2, 11, 80))), [0, 2, 1])

    answer = compute({"x": x}, body, {"weight": weight})
    convolved = functional.conv2d(torch.tensor(x), torch.tensor(weight))
    wanted = convolved.reshape(2, 11, 80).permute(0, 2, 1)
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("added_first", [True, False])
def test_an_axis_of_one_that_is_added_and_removed_holds_no_transpose_up(added_first):
    """PaddlePaddle's exporter writes such a pair, with the addition of a zero between, for a
    copy.
    """
    x, weight = (
        np.random.default_rng(0).standard_normal(shape).astype("float32")
        for shape in ((1, 8, 10, 11), (8, 8, 3, 3))
    )

    def body(emit, x, weight):
        data = emit(relax.op.nn.leakyrelu(emit(relax.op.nn.conv2d(x, weight, padding=1)), 0.1))
        if added_first:
            data = emit(relax.op.squeeze(emit(relax.op.expand_dims(data, 0)), [0]))
        else:
            data = emit(relax.op.expand_dims(emit(relax.op.squeeze(data, [0])), 0))
        return relax.op.nn.conv2d(data, weight)

    answer = compute({"x": x}, body, {"weight": weight})
    once = functional.conv2d(torch.tensor(x), torch.tensor(weight), padding=1)
    wanted = functional.conv2d(functional.leaky_relu(once, 0.1), torch.tensor(weight))
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-3, atol=1e-3)
    assert sum("transpose" in kernel.name for kernel in answer.kernels) == 2
