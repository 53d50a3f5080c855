"""Attention as one kernel, against torch in double precision, and where it is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from relax_models import CPUS, Answer, compute, const, lowered, module, run
from tvm import relax, tirx

from farm.compiler.cpu.attention import compute as attention_compute
from farm.compiler.cpu.attention.compute import attention_plan
from farm.compiler.graph.attention import attention_pass
from farm.compiler.target.cpu_model import CpuModel

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)
ERROR = 3e-6  # of the largest output
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Step:
    """A step between the product and the softmax: in Relax, in torch, and what else it reads."""

    relax: Callable[..., Any]
    torch: Callable[..., Any]
    shape: tuple[int, ...] | None = None
    dtype: str = "float32"


def added(shape: tuple[int, ...]) -> Step:
    return Step(lambda s, mask: relax.op.add(mask, s), lambda s, mask: s + mask, shape)


def chosen(shape: tuple[int, ...]) -> Step:
    return Step(
        lambda s, here: relax.op.where(here, s, relax.const(LOWEST)),
        lambda s, here: torch.where(here, s, LOWEST),
        shape,
        "bool",
    )


DIVIDED = Step(lambda s: relax.op.divide(s, relax.const(3.0)), lambda s: s / 3)
SCALED = Step(lambda s: relax.op.multiply(relax.const(0.3), s), lambda s: s * 0.3)
NEGATED = Step(lambda s: relax.op.subtract(relax.const(1.0), s), lambda s: 1 - s)


@dataclass(frozen=True)
class Case:
    outer: tuple[int, ...]
    rows: int
    keys: int
    depth: int
    width: int
    steps: Sequence[Step] = ()

    def inputs(self) -> dict[str, Array]:
        shapes = {
            "q": (*self.outer, self.rows, self.depth),
            "k": (*self.outer, self.depth, self.keys),
            "v": (*self.outer, self.keys, self.width),
        }
        made = {name: RANDOM.standard_normal(shape) for name, shape in shapes.items()}
        for place, step in enumerate(self.steps):
            if step.shape is not None:
                made[f"m{place}"] = (
                    RANDOM.random(step.shape) < 0.7
                    if step.dtype == "bool"
                    else RANDOM.standard_normal(step.shape)
                )
        return {
            name: one if one.dtype == bool else one.astype("float32") for name, one in made.items()
        }

    def body(self, emit: Callable[..., Any], q: Any, k: Any, v: Any, *masks: Any) -> Any:
        left, scores = list(masks), emit(relax.op.matmul(q, k))
        for step in self.steps:
            scores = emit(step.relax(scores, *([left.pop(0)] if step.shape is not None else [])))
        return emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))

    def right(self, q: Array, k: Array, v: Array, *masks: Array) -> Array:
        left, (q_, k_, v_) = list(masks), (torch.from_numpy(one).double() for one in (q, k, v))
        scores = q_ @ k_
        for step in self.steps:
            others = [torch.from_numpy(left.pop(0))] if step.shape is not None else []
            scores = step.torch(scores, *others)
        result: Array = (scores.softmax(-1) @ v_).numpy()
        return result

    def answer(self, cpu: str = "native") -> tuple[Answer, float]:
        """The answer, and its error of the largest output."""
        inputs = self.inputs()
        answer, wanted = compute(inputs, self.body, {}, cpu), self.right(*inputs.values())
        return answer, float(np.abs(answer.outputs[0] - wanted).max() / np.abs(wanted).max())


CASES = [
    Case((2, 3), 128, 128, 64, 64, [DIVIDED, added((2, 1, 1, 128))]),
    Case((4,), 197, 199, 32, 48, [SCALED, added((4, 197, 199))]),
    Case((1, 3), 100, 301, 20, 24, [chosen((100, 301))]),
    Case((1, 2, 2), 77, 130, 16, 8, [NEGATED, added((1, 2, 1, 77, 1)), added((1,))]),
    Case((1, 1), 300, 1000, 8, 16),
    Case((2,), 9, 2048, 5, 32, [chosen((1, 2048)), SCALED]),
]


@pytest.mark.two_cpus_each
@pytest.mark.parametrize(
    ("cpu", "case"), [(cpu, one) for cpu in CPUS for one in CASES[CPUS.index(cpu) % 2 :: 2]]
)
def test_attention_is_one_kernel_and_right(cpu, case):
    answer, error = case.answer(cpu)
    assert (answer.rules, answer.notes) == (["attention"], [])
    assert error < ERROR


@settings(max_examples=4)
@given(data=some.data())
def test_any_shape_is_right(data, monkeypatch_module):
    def draw(*values):
        return data.draw(some.sampled_from(values))

    rows, keys, outer = draw(8, 13, 40, 65), draw(1, 5, 16, 31, 50), draw((1,), (2, 2), (3,))
    masks = [(keys,), (1, keys), (rows, 1), (rows, keys), (*outer, rows, keys)]
    steps = [draw(SCALED, NEGATED, added(draw(*masks)), chosen(draw(*masks))) for _ in range(2)]
    case = Case(outer, rows, keys, draw(1, 7, 16), draw(8, 16, 24, 40), steps)
    answer, error = case.answer(CPUS[-1])
    assert (answer.rules, answer.notes) == (["attention"], [])
    assert error < ERROR


@pytest.fixture(scope="module")
def monkeypatch_module():
    """Small scores are attention, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_compute, "_LEAST_BYTES", 0)
        patch.setattr(attention_compute, "_FEWEST_KEYS", 1)
        yield


def test_the_batch_may_be_open():
    batch = tirx.Var("n", "int64")
    shapes = {"q": (4, 100, 16), "k": (4, 16, 120), "v": (4, 120, 24), "m": (1, 1, 120)}
    types = {name: relax.TensorType((batch, *shape), "float32") for name, shape in shapes.items()}
    case = Case((), 0, 0, 0, 0, [added((1,))])
    low = lowered(types, case.body, {})
    assert [
        kernel.rule for kernel in low.kernels if kernel.rule not in ("general", "transpose")
    ] == ["attention"]
    for count in (1, 3):
        inputs = [
            RANDOM.standard_normal((count, *shape)).astype("float32") for shape in shapes.values()
        ]
        (found,) = run(low, inputs)
        wanted = case.right(*inputs)
        assert np.abs(found - wanted).max() < ERROR * np.abs(wanted).max()


def test_a_row_without_keys_is_not_a_number_and_the_others_are_right():
    case = Case((1, 2), 100, 120, 16, 16, [added((100, 120))])
    inputs = case.inputs()
    inputs["m0"][7] = -np.inf
    inputs["m0"][50, 60:] = -np.inf
    answer, wanted = compute(inputs, case.body, {}), case.right(*inputs.values())
    assert answer.rules == ["attention"]
    np.testing.assert_allclose(answer.outputs[0], wanted, atol=ERROR * np.nanmax(np.abs(wanted)))


def safe(emit, q, k, v, mask):
    """As torch exports it: a row without keys has weights of 0."""
    weights = emit(relax.op.nn.softmax(emit(relax.op.add(emit(relax.op.matmul(q, k)), mask))))
    is_nan = emit(relax.op.isnan(weights))
    return emit(relax.op.matmul(emit(relax.op.where(is_nan, relax.const(0.0), weights)), v))


def safe_and_right(q, k, v, mask):
    q, k, v, mask = (torch.from_numpy(one).double() for one in (q, k, v, mask))
    return ((q @ k + mask).softmax(-1).nan_to_num(0) @ v).numpy()


def torchs(emit, q, k, v, mask):
    """As torch.export decomposes it: a row without keys has weights of 0."""
    views = [relax.op.reshape(one, (2, 2, *list(one.ty.shape)[1:])) for one in (q, k, v)]
    q, k, v = map(emit, views)
    scores = emit(relax.op.add(emit(relax.op.matmul(q, k)), mask))
    weights = emit(relax.op.nn.softmax(scores))
    is_key = emit(relax.op.logical_not(emit(relax.op.equal(scores, relax.const(-np.inf)))))
    some = emit(relax.op.max(emit(relax.op.astype(is_key, "int8")), [-1], keepdims=True))
    none = emit(relax.op.logical_not(emit(relax.op.astype(some, "bool"))))
    zeros = emit(relax.op.full_like(weights, relax.const(0.0)))
    weights = emit(relax.op.where(none, zeros, weights))
    weights = emit(relax.op.broadcast_to(weights, (2, 2, 70, 90)))
    return emit(relax.op.reshape(emit(relax.op.matmul(weights, v)), (4, 70, 24)))


def windows(emit, q, k, v, bias, mask):
    """As Swin writes it: 6 windows of 2 images, whose mask has no axis of images."""
    scores = emit(relax.op.add(emit(relax.op.matmul(q, k)), bias))
    scores = emit(relax.op.add(emit(relax.op.reshape(scores, (2, 3, 4, 60, 70))), mask))
    weights = emit(relax.op.nn.softmax(emit(relax.op.reshape(scores, (6, 4, 60, 70)))))
    return emit(relax.op.matmul(weights, v))


def windows_and_right(q, k, v, bias, mask):
    q, k, v, bias, mask = (torch.from_numpy(one).double() for one in (q, k, v, bias, mask))
    scores = (q @ k + bias).reshape(2, 3, 4, 60, 70) + mask
    return (scores.reshape(6, 4, 60, 70).softmax(-1) @ v).numpy()


def heads_in_one_axis(emit, q, k, v, mask):
    """As DeBERTa writes it: products of three axes, a mask of four."""
    scores = emit(relax.op.reshape(emit(relax.op.matmul(q, k)), (2, 4, 60, 70)))
    weights = emit(relax.op.nn.softmax(emit(relax.op.where(mask, scores, relax.const(LOWEST)))))
    return emit(relax.op.matmul(emit(relax.op.reshape(weights, (8, 60, 70))), v))


def heads_in_one_axis_and_right(q, k, v, mask):
    q, k, v = (torch.from_numpy(one).double() for one in (q, k, v))
    scores = torch.where(torch.from_numpy(mask), (q @ k).reshape(2, 4, 60, 70), LOWEST)
    return (scores.softmax(-1).reshape(8, 60, 70) @ v).numpy()


def channels_first(emit, q, k, v):
    """As CoAtNet and LeViT write it: values [W, N], results [W, M]."""
    weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(q, k))))
    return emit(relax.op.matmul(v, emit(relax.op.permute_dims(weights, [0, 2, 1]))))


def channels_first_and_right(q, k, v):
    q, k, v = (torch.from_numpy(one).double() for one in (q, k, v))
    return (v @ (q @ k).softmax(-1).transpose(1, 2)).numpy()


@pytest.mark.parametrize(
    ("body", "right", "shapes"),
    [
        (safe, safe_and_right, ((4, 70, 16), (4, 16, 90), (4, 90, 24), (70, 90))),
        (torchs, safe_and_right, ((4, 70, 16), (4, 16, 90), (4, 90, 24), (70, 90))),
        (
            windows,
            windows_and_right,
            ((6, 4, 60, 8), (6, 4, 8, 70), (6, 4, 70, 16), (4, 60, 70), (1, 3, 1, 60, 70)),
        ),
        (
            heads_in_one_axis,
            heads_in_one_axis_and_right,
            ((8, 60, 8), (8, 8, 70), (8, 70, 16), (2, 1, 60, 70)),
        ),
        (channels_first, channels_first_and_right, ((4, 70, 16), (4, 16, 90), (4, 24, 90))),
    ],
)
def test_forms_that_exporters_write_are_one_kernel_and_right(body, right, shapes):
    names = ("q", "k", "v", "m", "n")
    inputs = {
        name: RANDOM.standard_normal(shape).astype("float32")
        for name, shape in zip(names, shapes, strict=False)
    }
    if body in (safe, torchs):
        inputs["m"][5] = -np.inf
        inputs["m"][9, 1:] = -np.inf  # one key is left
    elif body is heads_in_one_axis:
        inputs["m"] = inputs["m"] > 0
    answer, wanted = compute(inputs, body, {}), right(*inputs.values())
    assert answer.rules == ["attention"] and answer.notes == []
    assert np.abs(answer.outputs[0] - wanted).max() < ERROR * np.abs(wanted).max()


def test_a_number_instead_of_what_is_none_must_be_zero():
    def body(emit, q, k, v):
        weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(q, k))))
        is_nan = emit(relax.op.isnan(weights))
        return emit(relax.op.matmul(emit(relax.op.where(is_nan, relax.const(1.0), weights)), v))

    shapes = {"q": (4, 70, 16), "k": (4, 16, 90), "v": (4, 90, 24)}
    types = {name: relax.TensorType(shape, "float32") for name, shape in shapes.items()}
    assert "attention" not in [kernel.rule for kernel in lowered(types, body, {}).kernels]


def plain(emit, q, k, v):
    return emit(relax.op.matmul(emit(relax.op.nn.softmax(emit(relax.op.matmul(q, k)))), v))


def scores_are_a_result(emit, q, k, v):
    scores = emit(relax.op.matmul(q, k))
    return [emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v)), scores]


def scores_are_read_twice(emit, q, k, v):
    scores = emit(relax.op.matmul(q, k))
    mixed = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))
    return [mixed, emit(relax.op.multiply(scores, relax.const(2.0)))]


def weights_are_read_twice(emit, q, k, v):
    weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(q, k))))
    return [emit(relax.op.matmul(weights, v)), emit(relax.op.multiply(weights, relax.const(2.0)))]


def over_rows(emit, q, k, v):
    return emit(relax.op.matmul(emit(relax.op.nn.softmax(emit(relax.op.matmul(q, k)), -2)), v))


def with_a_function_between(emit, q, k, v):
    scores = emit(relax.op.tanh(emit(relax.op.matmul(q, k))))
    return emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))


def values_for_all_heads(emit, q, k, v):
    weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(q, k))))
    return emit(relax.op.matmul(weights, emit(relax.op.strided_slice(v, [1], [0], [1]))))


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (scores_are_a_result, 100),
        (scores_are_read_twice, 100),
        (weights_are_read_twice, 100),
        (over_rows, 100),
        (with_a_function_between, 100),
        (values_for_all_heads, 100),
        (plain, 4),  # decoders have one query: few scores
    ],
)
def test_other_products_have_kernels_of_their_own(body, rows):
    inputs = {
        "q": RANDOM.standard_normal((1, 2, rows, 16)).astype("float32"),
        "k": RANDOM.standard_normal((1, 2, 16, 3000)).astype("float32"),
        "v": RANDOM.standard_normal((1, 2, 3000, 16)).astype("float32"),
    }
    assert "attention" not in [kernel.rule for kernel in lowered(inputs, body, {}).kernels]


def test_a_constant_operand_is_packed_once_by_a_kernel_of_its_own():
    keys = RANDOM.standard_normal((16, 3000)).astype("float32")

    def body(emit, q, v):
        scores = emit(relax.op.matmul(q, const(keys)))
        return emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))

    inputs = {
        "q": RANDOM.standard_normal((2, 100, 16)).astype("float32"),
        "v": RANDOM.standard_normal((2, 3000, 16)).astype("float32"),
    }
    rules = [kernel.rule for kernel in lowered(inputs, body, {}).kernels]
    assert "attention" not in rules and "dense" in rules


@pytest.mark.parametrize("kib", [128, 512, 2048])
def test_the_scores_of_a_task_fit_into_a_part_of_the_cache(kib):
    cpu = CpuModel("neon", 4, 32, has_memory_operands=False, l2_bytes=kib * 1024)
    for rows, keys in ((1500, 1500), (197, 197), (4096, 77), (9, 20_000), (18, 1000)):
        plan = attention_plan(cpu, 16, rows, 64, keys, 64)
        assert plan is not None
        tile = math.lcm(plan.scores.pixels, plan.values.pixels)
        assert plan.rows % tile == 0
        assert 2 * 4 * plan.rows * keys <= cpu.l2_bytes // 4 or plan.rows == tile
        assert -(-rows // plan.rows) * plan.rows <= 1.2 * rows, "what is computed for nothing"


@pytest.mark.parametrize("batches", [1, 3, 12])
def test_there_are_tasks_for_all_threads(batches):
    plan = attention_plan(CpuModel("neon", 4, 32), batches, 197, 64, 197, 64)
    assert plan is not None
    assert batches * -(-197 // plan.rows) >= 3


def test_operands_of_other_types_have_kernels_of_their_own():
    """The product of bytes is not one of floats."""
    types = {
        "q": relax.TensorType((2, 100, 16), "int8"),
        "k": relax.TensorType((2, 16, 300), "int8"),
        "v": relax.TensorType((2, 300, 16), "float32"),
    }

    def body(emit, q, k, v):
        scores = emit(relax.op.matmul(q, k, out_dtype="float32"))
        return emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))

    assert "attention" not in [kernel.rule for kernel in lowered(types, body, {}).kernels]


def test_a_thousand_steps_have_kernels_of_their_own():
    types = {
        "q": relax.TensorType((2, 100, 16), "float32"),
        "k": relax.TensorType((2, 16, 300), "float32"),
        "v": relax.TensorType((2, 300, 16), "float32"),
    }

    def body(emit, q, k, v):
        scores = emit(relax.op.matmul(q, k))
        for _ in range(1000):
            scores = emit(relax.op.multiply(scores, relax.const(1.001)))
        return emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))

    assert attentions(types, body) == []


def attentions(types, body):
    """What the pass finds."""
    found = []
    attention_pass(lambda _, one: found.append(one))(module(types, body, {}))
    return found
