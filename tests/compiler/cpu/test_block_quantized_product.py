"""Products with weights of few bits, computed from their codes."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import CPUS, compute, lowered, runner
from tvm import relax, tirx

from farm.kernels.block_quantized import BlockQuantizedWeight, emit_product

OP = relax.op
FEW, MANY = "block_quantized_few_rows", "block_quantized_many_rows"
random = np.random.default_rng(5)


def quantized(columns, depth, bits=4, size=32, zeros=""):
    """A weight, and its floats [K, N]."""
    codes = random.integers(0, 1 << bits, (columns, depth))
    scales = random.uniform(0.5, 1.5, (columns, depth // size)).astype("float32")
    middle = {
        "": None,
        "codes": random.integers(0, 1 << bits, scales.shape).astype("uint8"),
        "numbers": random.uniform(0, 1 << bits, scales.shape).astype("float32"),
        "halves": random.uniform(0, 1 << bits, scales.shape).astype("float16"),
    }[zeros]
    per = 8 // bits
    packed = np.zeros((columns, depth // per), np.uint8)
    for slot in range(per):
        packed |= (codes[:, slot::per] << (bits * slot)).astype(np.uint8)
    weight = BlockQuantizedWeight.from_rows(packed, scales, middle, bits, size, depth)
    spread = np.full(scales.shape, 1 << (bits - 1)) if middle is None else middle
    floats = (codes - np.repeat(spread, size, 1)) * np.repeat(scales, size, 1).astype("float64")
    return weight, floats.T


def product(weight):
    """The body of a module with the product."""
    return lambda emit, x: emit(emit_product(relax.BlockBuilder.current(), x, weight))


def assert_near(found, wanted):
    np.testing.assert_allclose(found, wanted, atol=4e-6 * np.abs(wanted).max())


CASES = {  # the extents of the data, columns, and what is special
    "one row": ((1, 1, 96), 128, {}),
    "a tile of rows": ((1, 4, 64), 96, {}),
    "rows that fill no tile": ((5, 64), 64, {}),
    "many rows of several axes": ((2, 3, 6, 64), 64, {}),
    "many rows that fill no tile": ((17, 96), 128, {}),
    "many rows and neighbours of 8": ((1, 16, 64), 40, {"zeros": "codes"}),
    "many rows and few blocks at a time": ((18, 320), 32, {"bits": 8}),
    "neighbours of 16": ((2, 64), 48, {}),
    "neighbours of 8": ((2, 64), 40, {}),
    "codes of 8 bits": ((3, 64), 64, {"bits": 8}),
    "codes of 2 bits": ((2, 64), 32, {"bits": 2}),
    "long blocks": ((2, 256), 64, {"size": 128}),
    "short blocks": ((2, 48), 64, {"size": 16}),
    "zero points": ((4, 64), 64, {"zeros": "codes"}),
    "zero points that are no codes": ((1, 64), 64, {"zeros": "numbers", "bits": 8}),
    "zero points of float16": ((2, 64), 64, {"zeros": "halves"}),
    "enough for threads": ((1, 512), 2048, {}),
}


@pytest.mark.two_cpus_each
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", CASES)
def test_a_product_is_right(name, cpu):
    extents, columns, special = CASES[name]
    weight, floats = quantized(columns, extents[-1], **special)
    x = random.standard_normal(extents).astype("float32")
    answer = compute({"x": x}, product(weight), cpu=cpu)
    assert_near(answer.outputs[0], x @ floats)
    rule = MANY if np.prod(extents[:-1]) >= 16 else FEW
    assert (answer.rules, answer.notes) == ([rule], [])


def test_what_follows_is_computed_with_it():
    weight, floats = quantized(64, 64)
    x, bias = random.standard_normal((1, 2, 64)), random.standard_normal(64)
    x, bias = x.astype("float32"), bias.astype("float32")

    def body(emit, x, bias):
        made = emit_product(relax.BlockBuilder.current(), x, weight)
        return emit(OP.nn.relu(emit(OP.add(made, bias))))

    answer = compute({"x": x}, body, {"bias": bias})
    assert_near(answer.outputs[0], np.maximum(x @ floats + bias, 0))
    assert [kernel.rule for kernel in answer.kernels] == [FEW]


def test_the_batch_may_be_open():
    weight, floats = quantized(64, 64)
    rows = tirx.Var("n", "int64")
    run = runner(lowered({"x": relax.TensorType((rows, 2, 64), "float32")}, product(weight)))
    for count in (1, 3):
        x = random.standard_normal((count, 2, 64)).astype("float32")
        assert_near(run([x])[0], x @ floats)


def test_zero_points_of_float16_are_read_by_no_kernel_as_such():
    """A core without an instruction for it would call a function that a library may lack."""
    weight, _ = quantized(64, 64, zeros="halves")
    low = lowered({"x": relax.TensorType((1, 64), "float32")}, product(weight))
    kernels = [one for _, one in low.module.functions_items() if isinstance(one, tirx.PrimFunc)]
    read = {str(buffer.dtype) for one in kernels for buffer in one.params}
    assert kernels and "float16" not in read


def test_a_build_stores_the_codes():
    weight, _ = quantized(128, 256)
    low = lowered({"x": relax.TensorType((1, 256), "float32")}, product(weight))
    assert sum(value.nbytes for value in low.parameters) == 128 * 256 // 2 + 128 * 256 // 32 * 4


@pytest.mark.parametrize(("columns", "depth"), [(12, 64), (64, 72)])
def test_what_fills_no_vectors_or_blocks_is_no_such_weight(columns, depth):
    scales = np.ones((columns, -(-depth // 32)), np.float32)
    codes = np.zeros((columns, scales.shape[1] * 16), np.uint8)
    assert BlockQuantizedWeight.from_rows(codes, scales, None, 4, 32, depth) is None
