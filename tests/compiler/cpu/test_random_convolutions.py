"""Convolutions, products, reductions and resizes of shapes that nobody chose, against torch in
double precision: many in one module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from relax_models import CPUS, compute, lowered
from torch.nn import functional
from tvm import relax

Array = np.ndarray[Any, Any]
# the first example is the simplest one, the second is drawn
generated = settings(max_examples=2, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Case:
    """One operator: its operands' shapes, of which the second is constant or not, and what it is in
    relax and in torch.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    constant: bool
    ours: Callable[[Any, Any], Any]
    theirs: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    name: str

    def __repr__(self) -> str:
        return f"{self.name} {self.left} {self.right}"


def pairs(low: int, high: int) -> some.SearchStrategy[tuple[int, int]]:
    return some.tuples(some.integers(low, high), some.integers(low, high))


@some.composite
def convolutions(draw: some.DrawFn) -> Case:
    groups = draw(some.sampled_from([1, 1, 1, 2, 3]))
    depth, channels = (
        draw(some.sampled_from([1, 3, 7, 16, 40, 130])),
        draw(some.sampled_from([1, 5, 8, 16, 24, 33, 64, 100])),
    )
    size, kernel = (
        draw(pairs(1, 20)),
        draw(some.one_of(pairs(1, 5), some.just((1, 1)), some.just((7, 7)))),
    )
    strides, dilation, padding = (
        draw(pairs(1, 4)),
        draw(pairs(1, 2)),
        draw(some.tuples(*[some.integers(0, 3)] * 4)),
    )
    top, left, _, _ = padding
    reach = [dilation[axis] * (kernel[axis] - 1) + 1 for axis in (0, 1)]
    bottom, right = (
        max(padding[2 + axis], reach[axis] - size[axis] - padding[axis]) for axis in (0, 1)
    )  # at least one output
    batch = draw(some.sampled_from([1, 3]))

    def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(
            functional.pad(x, (left, right, top, bottom)), w, None, strides, 0, dilation, groups
        )

    def ours(x: Any, w: Any) -> Any:
        return relax.op.nn.conv2d(
            x,
            w,
            strides=strides,
            padding=(top, left, bottom, right),
            dilation=dilation,
            groups=groups,
        )

    shapes = (batch, groups * depth, *size), (groups * channels, depth, *kernel)
    return Case(
        *shapes,
        True,
        ours,
        theirs,
        f"convolution {strides} {(top, left, bottom, right)} {dilation} {groups}",
    )


@some.composite
def transposed(draw: some.DrawFn) -> Case:
    groups = draw(some.sampled_from([1, 1, 2, 16]))
    depth, channels = (
        draw(some.sampled_from([1, 3, 17, 40][: 4 // groups + 1])),
        draw(some.sampled_from([1, 6, 16, 33, 64][: 6 // groups + 1])),
    )
    size, kernel, strides = draw(pairs(1, 9)), draw(pairs(1, 5)), draw(pairs(1, 4))
    dilation = draw(some.sampled_from([(1, 1), (1, 1), (2, 1), (3, 4)]))
    padding = draw(some.integers(0, (min(kernel) - 1) // 2))
    extra = tuple(draw(some.integers(0, stride - 1)) for stride in strides)

    def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv_transpose2d(x, w, None, strides, padding, extra, groups, dilation)

    def ours(x: Any, w: Any) -> Any:
        geometry = {
            "strides": strides,
            "padding": [padding] * 4,
            "output_padding": extra,
            "dilation": dilation,
            "groups": groups,
        }
        return relax.op.nn.conv2d_transpose(x, w, **geometry)

    shapes = (
        (draw(some.sampled_from([1, 3])), groups * depth, *size),
        (groups * depth, channels, *kernel),
    )
    return Case(
        *shapes, True, ours, theirs, f"transposed {strides} {padding} {extra} {dilation} {groups}"
    )


@some.composite
def products(draw: some.DrawFn) -> Case:
    constant = draw(some.booleans())
    outer = tuple(draw(some.lists(some.integers(1, 3), max_size=2)))
    rows, depth, width = (
        draw(some.integers(1, 40)),
        draw(some.integers(1, 130)),
        draw(some.integers(1, 150)),
    )
    return Case(
        (*outer, rows, depth),
        (*(() if constant else outer), depth, width),
        constant,
        relax.op.matmul,
        torch.matmul,
        "product",
    )


@some.composite
def reductions(draw: some.DrawFn) -> Case:
    axes = draw(some.sampled_from([[1], [0], [0, 1], [2], [1, 2]]))
    ours, theirs = draw(
        some.sampled_from(
            [(relax.op.max, torch.amax), (relax.op.sum, torch.sum), (relax.op.mean, torch.mean)]
        )
    )
    shape = (
        draw(some.integers(1, 3)),
        draw(some.integers(1, 60)),
        draw(some.sampled_from([1, 7, 16, 21, 64, 130, 1024])),
    )
    return Case(
        shape,
        (1,),
        True,
        lambda x, _: ours(x, axes),
        lambda x, _: theirs(x, axes),
        f"{ours.__name__} over {axes}",
    )


@some.composite
def turned_resizes(draw: some.DrawFn) -> Case:
    """Of images whose channels come last, to others whose channels come first."""
    size, wanted = draw(pairs(1, 12)), draw(pairs(1, 70))
    shape = draw(some.sampled_from([1, 3])), *size, draw(some.sampled_from([1, 3, 7, 16, 21, 40]))

    def ours(x: Any, _: Any) -> Any:
        resized = relax.op.image.resize2d(x, wanted, None, "NHWC", "linear", "half_pixel")
        return relax.op.permute_dims(resized, [0, 3, 1, 2])

    def theirs(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x.permute(0, 3, 1, 2), wanted, mode="bilinear")

    return Case(shape, (1,), True, ours, theirs, f"turned resize to {wanted}")


def check(cases: list[Case], cpu: str) -> None:
    numbers = np.random.default_rng(0)

    def draw(shape: tuple[int, ...]) -> Array:
        return numbers.standard_normal(shape).astype("float32")

    lefts, rights = [draw(case.left) for case in cases], [draw(case.right) for case in cases]
    constants = {f"w{index}": rights[index] for index, case in enumerate(cases) if case.constant}
    inputs = {f"x{index}": left for index, left in enumerate(lefts)}
    inputs |= {f"y{index}": rights[index] for index, case in enumerate(cases) if not case.constant}

    def body(emit: Any, *variables: Any) -> list[Any]:
        named = dict(zip([*inputs, *constants], variables, strict=True))
        return [
            emit(case.ours(named[f"x{index}"], named[f"{'w' if case.constant else 'y'}{index}"]))
            for index, case in enumerate(cases)
        ]

    answer = compute(inputs, body, constants, cpu)
    assert answer.notes == []
    for case, got, left, right in zip(cases, answer.outputs, lefts, rights, strict=True):
        exact = case.theirs(
            torch.from_numpy(left).double(), torch.from_numpy(right).double()
        ).numpy()
        np.testing.assert_allclose(got, exact, atol=1e-4, rtol=1e-4, err_msg=repr(case))


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", [convolutions, transposed, products, reductions, turned_resizes])
def test_operators_of_any_shape_are_right(kind, cpu):
    @generated
    @given(cases=some.lists(kind(), min_size=9, max_size=12))
    def right(cases):
        check(cases, cpu)

    right()


def large(emit: Any, x: Any, w: Any) -> Any:
    return emit(relax.op.nn.conv2d(x, w, padding=(1, 1, 1, 1)))


def test_a_large_weight_is_fetched_ahead_and_a_small_one_is_not():
    if CPUS[-1] == "native":
        pytest.skip("for x86 only")

    def prefetches(channels: int) -> int:
        shapes = (
            {"x": np.zeros((1, channels, 7, 7), "float32")},
            {"w": np.zeros((channels, channels, 3, 3), "float32")},
        )
        return len(
            re.findall(
                "llvm.prefetch", lowered(shapes[0], large, shapes[1], CPUS[-1]).module.script()
            )
        )

    assert prefetches(256) > 0
    assert prefetches(4) == 0
