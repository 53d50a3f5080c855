"""Models of float16 and bfloat16, which a CPU computes in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_models import compute, lowered, module
from tvm import relax, te, tirx

from farm.compiler.build import read_prepared_weights
from farm.compiler.graph.precision.fp32_arithmetic import narrow_floats_as_float32
from farm.compiler.relax_pipeline import bind_weights

OP = relax.op
random = np.random.default_rng(0)
TYPES = {"float16": np.dtype("float16"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
X = random.standard_normal((2, 8, 6, 6)).astype("float32")
W = random.standard_normal((16, 8, 3, 3)).astype("float32") / 8
V = random.standard_normal((16, 5)).astype("float32")


def as_written(value, dtype):
    """The values that a file of this type holds, as float32."""
    return value.astype(TYPES[dtype]).astype("float32")


def network(emit, dtype, x, w, v):
    """Operators with a type of their own (cast, zeros, out_dtype), and with several results."""
    y = emit(OP.nn.relu(emit(OP.nn.conv2d(x, w, out_dtype=dtype))))
    rows = emit(OP.reshape(emit(OP.permute_dims(y, [0, 2, 3, 1])), (2, 16, 16)))
    rows = emit(OP.add(rows, emit(OP.zeros((2, 16, 16), dtype))))
    left, right = (
        emit(relax.TupleGetItem(emit(OP.split(rows, 2, axis=1)), place)) for place in (0, 1)
    )
    scores = emit(OP.nn.softmax(emit(OP.matmul(left, emit(OP.permute_dims(right, [0, 2, 1]))))))
    mixed = emit(OP.astype(emit(OP.astype(emit(OP.matmul(scores, right)), "float32")), dtype))
    return emit(OP.matmul(mixed, v, out_dtype=dtype))


def expected(x, w, v):
    import torch

    y = torch.relu(torch.conv2d(torch.from_numpy(x), torch.from_numpy(w)))
    left, right = y.permute(0, 2, 3, 1).reshape(2, 16, 16).split(8, 1)
    return (torch.softmax(left @ right.transpose(1, 2), -1) @ right @ torch.from_numpy(v)).numpy()


def dtypes_of_arithmetic(low):
    """The types of all floating-point numbers that the kernels compute, other than by a cast."""
    found = []
    for _, function in low.module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            kinds = (tirx.Add, tirx.Mul, tirx.Max)
            tvm_ffi.structural_walk(function.body, [(kinds, found.append)])
    dtypes = {str(one.ty.dtype) for one in found}
    return {dtype for dtype in dtypes if "float" in dtype}


def test_a_float16_model_is_computed_in_float32_between_its_inputs_and_outputs():
    half = X.astype("float16")

    def body(emit, x, w, v):
        return network(emit, "float16", x, w, v)

    answer = compute({"x": half}, body, {"w": W.astype("float16"), "v": V.astype("float16")})
    assert answer.outputs[0].dtype == np.float16
    wanted = expected(*(as_written(value, "float16") for value in (X, W, V)))
    # rounded once, at the end
    np.testing.assert_allclose(answer.outputs[0], wanted, rtol=1e-3, atol=1e-3)
    assert dtypes_of_arithmetic(answer.lowered) == {"float32"}


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_narrow_within_a_float32_model_is_computed_in_float32(dtype):
    weights = {
        name: relax.const(tvm.runtime.tensor(value.astype(TYPES[dtype])))
        for name, value in {"w": W, "v": V}.items()
    }

    def body(emit, x):
        made = network(emit, dtype, emit(OP.astype(x, dtype)), weights["w"], weights["v"])
        return emit(OP.astype(made, "float32"))

    [made] = compute({"x": X}, body).outputs
    x = as_written(X, dtype) if dtype == "float16" else X
    wanted = expected(x, as_written(W, dtype), as_written(V, dtype))
    np.testing.assert_allclose(made, wanted, rtol=1e-3, atol=1e-3)


def test_weights_of_a_float16_model_stay_float16():
    w = random.standard_normal((512, 512)).astype("float16")
    low = lowered(
        {"x": np.ones((1, 512), "float16")},
        lambda emit, x, w: emit(OP.matmul(x, w)),
        {"w": w},
    )
    assert sum(value.nbytes for value in low.parameters) == w.nbytes


def test_an_input_may_be_an_output_and_outputs_of_other_types_are_as_they_were():
    def body(emit, x, n):
        return [x, emit(OP.add(x, x)), emit(OP.add(n, n)), emit(OP.astype(x, "float32"))]

    x, n = np.arange(4).astype("float16"), np.arange(3)
    found = compute({"x": x, "n": n}, body).outputs
    assert [one.dtype.name for one in found] == ["float16", "float16", "int64", "float32"]
    for one, wanted in zip(found, (x, x + x, n + n, x), strict=True):
        np.testing.assert_array_equal(one, wanted)


def test_a_cast_to_float16_rounds():
    x = np.linspace(-3, 3, 64, dtype="float32")

    def body(emit, x):
        return emit(OP.astype(emit(OP.exp(emit(OP.astype(x, "float16")))), "float32"))

    found = compute({"x": x}, body).outputs[0]
    np.testing.assert_allclose(found, np.exp(as_written(x, "float16")), rtol=1e-6)


def test_a_kernel_that_was_made_for_float16_is_called_with_float16():
    x = random.standard_normal((3, 5)).astype("float16")

    def twice(x):
        return te.compute(x.shape, lambda i, j: x[i, j] + x[i, j], name="twice")

    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType(x.shape, "float16"))
    with builder.function("main", [given], attrs={"num_input": 1}):
        with builder.dataflow():
            made = builder.emit_te(twice, builder.emit(OP.exp(given)))
            output = builder.emit_output(OP.negative(made))
        builder.emit_func_output(output)
    found = narrow_floats_as_float32(builder.get())
    machine = relax.VirtualMachine(tvm.compile(found, target="llvm"), tvm.cpu())
    answer = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert answer.dtype == np.float16
    np.testing.assert_allclose(answer, -2 * np.exp(x.astype("float32")), rtol=2e-3)


def test_a_float32_model_is_left_as_it_is():
    given = bind_weights(
        module({"x": X}, lambda emit, x, w: emit(OP.nn.conv2d(x, w)), {"w": W}), [W]
    )
    assert narrow_floats_as_float32(given).same_as(given)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_weights_of_a_prepared_model_keep_their_type(dtype, kept):
    w = W.astype(TYPES[dtype])

    def body(emit, x, w):
        return emit(OP.nn.conv2d(x, emit(OP.astype(w, "float32"))))

    [read] = read_prepared_weights(kept({"x": X}, body, {"w": w}).directory)
    assert read.dtype == w.dtype
    np.testing.assert_array_equal(read.astype("float32"), w.astype("float32"))
