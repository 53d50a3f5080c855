"""GELU and SiLU as exporters write them are one kernel; what only resembles them stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from relax_models import compute
from torch.nn import functional
from tvm import relax

OP = relax.op
X = np.random.default_rng(11).standard_normal((3, 40)).astype("float32") * 3


def number(value, *shape):
    return relax.const(np.full(shape, value, "float32"))


def one_plus_erf(emit, x, one=1.0, root=2**0.5):
    inner = emit(OP.erf(emit(OP.divide(x, number(root)))))
    return emit(OP.add(inner, number(one)))


FORMS = {
    "x (1 + erf) / 2": lambda emit, x: emit(
        OP.multiply(emit(OP.multiply(x, one_plus_erf(emit, x))), number(0.5))
    ),
    "1.4142 for the root": lambda emit, x: emit(
        OP.multiply(emit(OP.multiply(x, one_plus_erf(emit, x, root=1.4142))), number(0.5))
    ),
    "(x / 2) (1 + erf)": lambda emit, x: emit(
        OP.multiply(emit(OP.divide(x, number(2))), one_plus_erf(emit, x))
    ),
    "(1 + erf) (0.5 x)": lambda emit, x: emit(
        OP.multiply(one_plus_erf(emit, x), emit(OP.multiply(number(0.5, 1), x)))
    ),
    "x ((1 + erf) / 2)": lambda emit, x: emit(
        OP.multiply(x, emit(OP.multiply(number(0.5, 1, 1), one_plus_erf(emit, x))))
    ),
    "x / 2 (1 + erf(0.7071 x))": lambda emit, x: emit(
        OP.divide(
            emit(
                OP.multiply(
                    emit(OP.add(number(1), emit(OP.erf(emit(OP.multiply(number(0.70710677), x)))))),
                    x,
                )
            ),
            number(2),
        )
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_gelu_of_several_operators_is_one_kernel_and_right(form):
    answer = compute({"x": X}, form)
    assert [kernel.name for kernel in answer.kernels] == ["farm_gelu"]
    exact = functional.gelu(torch.from_numpy(X).double()).float().numpy()
    np.testing.assert_allclose(answer.outputs[0], exact, rtol=2e-6, atol=1e-6)


def test_other_constants_and_other_operands_are_no_gelu():
    def resembling(emit, x, other):
        products = [
            emit(OP.multiply(emit(OP.multiply(x, one_plus_erf(emit, x))), number(0.6))),
            emit(OP.multiply(emit(OP.multiply(x, one_plus_erf(emit, x, one=2.0))), number(0.5))),
            emit(OP.multiply(emit(OP.multiply(x, one_plus_erf(emit, x, root=2.0))), number(0.5))),
            emit(OP.multiply(emit(OP.multiply(other, one_plus_erf(emit, x))), number(0.5))),
            emit(
                OP.multiply(
                    emit(OP.multiply(x, one_plus_erf(emit, x))),
                    number([[[0.5]], [[0.5]]], 2, 1, 1),  # which makes two of it
                )
            ),
        ]
        return emit(relax.Tuple(products))

    other = X[:, ::-1].copy()
    answer = compute({"x": X, "other": other}, resembling)
    assert not any("gelu" in kernel.name for kernel in answer.kernels)
    x, rest = (torch.from_numpy(value).double() for value in (X, other))
    twice = 1 + torch.erf(x / 2**0.5)
    exact = [
        0.6 * x * twice,
        0.5 * x * (1 + twice),
        0.5 * x * (1 + torch.erf(x / 2)),
        0.5 * rest * twice,
        torch.stack([0.5 * x * twice] * 2),
    ]
    for found, wanted in zip(answer.outputs, exact, strict=True):
        np.testing.assert_allclose(found, wanted.float().numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("order", [1, -1])
def test_a_silu_of_two_operators_is_one_kernel_and_right(order):
    answer = compute(
        {"x": X}, lambda emit, x: emit(OP.multiply(*[x, emit(OP.sigmoid(x))][::order]))
    )
    assert [kernel.name for kernel in answer.kernels] == ["farm_silu"]
    exact = functional.silu(torch.from_numpy(X).double()).float().numpy()
    np.testing.assert_allclose(answer.outputs[0], exact, rtol=2e-6, atol=1e-6)


def test_a_gate_of_another_tensor_is_no_silu():
    other = X[:, ::-1].copy()
    answer = compute(
        {"x": X, "other": other},
        lambda emit, x, other: emit(OP.multiply(x, emit(OP.sigmoid(other)))),
    )
    assert not any("silu" in kernel.name for kernel in answer.kernels)
    x, gate = (torch.from_numpy(value).double() for value in (X, other))
    exact = (x * torch.sigmoid(gate)).float().numpy()
    np.testing.assert_allclose(answer.outputs[0], exact, rtol=2e-6, atol=2e-6)
