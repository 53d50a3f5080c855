"""Tensors without elements, and what is computed from them: as ONNX Runtime has it, on a real
agent, too.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from host_profile import HOST
from onnx_models import graph, node, save
from tvm import relax, topi
from tvm.ir import GenericConst

from farm import executor, importers
from farm.checked_model_import import prepare_model
from farm.compiler import host_run
from farm.compiler.build import find_or_build_model
from farm.compiler.relax_pipeline import NO_WEIGHTS, lift_constants_into_tuple
from farm.types import BuildWithAgent, Device, MeasurementSettings, Model

X = np.random.default_rng(3).standard_normal((2, 4, 3)).astype("float32")
NOTHING = node("Slice", ["x", "at", "at", "axis"], ["nothing"])  # of axis 1
GIVEN = {"at": np.array([2]), "axis": np.array([1])}
INPUT = {"x": list(X.shape)}
CASES = {
    "an output": graph([NOTHING, node("Relu", ["nothing"], ["y"])], INPUT, {"y": [2, 0, 3]}, GIVEN),
    "a part of a concatenation": graph(
        [
            NOTHING,
            node("Softmax", ["nothing"], ["none"]),
            node("Concat", ["none", "x"], ["both"], axis=1),
            node("Relu", ["both"], ["y"]),
        ],
        INPUT,
        {"y": [2, 4, 3]},
        GIVEN,
    ),
    "a part between two others": graph(
        [NOTHING, node("Concat", ["x", "nothing", "x"], ["y"], axis=1)],
        INPUT,
        {"y": [2, 8, 3]},
        GIVEN,
    ),
    "a product of elements": graph(
        [
            NOTHING,
            node("ReduceProd", ["nothing"], ["product"], axes=[1]),
            node("Mul", ["product", "x"], ["y"]),
        ],
        INPUT,
        {"y": [2, 4, 3]},
        GIVEN,
    ),
    "a sum": graph(
        [
            NOTHING,
            node("Exp", ["nothing"], ["none"]),
            node("ReduceSum", ["none", "axis"], ["sum"]),
            node("Add", ["sum", "x"], ["y"]),
        ],
        INPUT,
        {"y": [2, 4, 3]},
        GIVEN,
    ),
    "rows of a product": graph(
        [NOTHING, node("MatMul", ["nothing", "w"], ["y"])],
        INPUT,
        {"y": [2, 0, 5]},
        {**GIVEN, "w": np.ones((3, 5), "float32")},
    ),
    "what is padded": graph(
        [NOTHING, node("Pad", ["nothing", "pads", "seven"], ["y"])],
        INPUT,
        {"y": [2, 2, 3]},
        {**GIVEN, "pads": np.array([0, 1, 0, 0, 1, 0]), "seven": np.float32(7)},
    ),
    "a batch of a convolution": graph(
        [
            node("Unsqueeze", ["x", "axis"], ["image"]),
            node("Slice", ["image", "none", "none", "none"], ["nothing"]),
            node("Conv", ["nothing", "w"], ["y"], pads=[1, 1, 1, 1]),
        ],
        INPUT,
        {"y": [0, 8, 4, 3]},
        {**GIVEN, "none": np.array([0]), "w": np.ones((8, 1, 3, 3), "float32")},
    ),
    "a piece of a split": graph(
        [
            node("Split", ["x", "sizes"], ["first", "none", "rest"], axis=1),
            node("Relu", ["first"], ["y"]),
            node("Tanh", ["none"], ["z"]),
            node("Neg", ["rest"], ["w"]),
        ],
        INPUT,
        {"y": [2, 1, 3], "z": [2, 0, 3], "w": [2, 3, 3]},
        {"sizes": np.array([1, 0, 3])},
    ),
    "the only piece of a split": graph(
        [node("Split", ["x", "sizes"], ["all"], axis=1), node("Relu", ["all"], ["y"])],
        INPUT,
        {"y": [2, 4, 3]},
        {"sizes": np.array([4])},
    ),
    "a weight in a concatenation": graph(
        [node("Concat", ["none", "x"], ["y"], axis=2)],
        INPUT,
        {"y": list(X.shape)},
        {"none": np.zeros((2, 4, 0), "float32")},
    ),
    "a weight that is an output": graph(
        [node("Identity", ["none"], ["y"]), node("Relu", ["x"], ["z"])],
        INPUT,
        {"y": [0, 3], "z": list(X.shape)},
        {"none": np.zeros((0, 3), "float32")},
    ),
    "a weight that is written to": graph(
        [node("Relu", ["x"], ["z"]), node("ScatterND", ["none", "none_at", "none"], ["y"])],
        INPUT,
        {"y": ("int64", [0]), "z": list(X.shape)},
        {"none": np.zeros(0, "int64"), "none_at": np.zeros((0, 1), "int64")},
    ),
    "elements that nobody asks for": graph(
        [node("Gather", ["x", "none"], ["nothing"], axis=2), node("Tanh", ["nothing"], ["y"])],
        INPUT,
        {"y": [2, 4, 0]},
        {"none": np.zeros(0, "int64")},
    ),
}


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_what_has_no_elements_is_as_in_onnx_runtime(body, cache, tmp_path):
    path = save(tmp_path / "model.onnx", body)
    expected = onnxruntime.InferenceSession(str(path)).run(None, {"x": X})
    imported = importers.import_model(Model("model", str(path)), cache)
    found = host_run.compile_host_runner(imported.module, imported.weights, HOST)([X])
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_sum_of_no_products_is_zero(cache, tmp_path):
    # where ONNX Runtime gives what lies in memory
    body = graph(
        [
            NOTHING,
            node("Transpose", ["nothing"], ["none"], perm=[0, 2, 1]),
            node("MatMul", ["none", "w"], ["zeros"]),
            node("Sub", ["zeros", "one"], ["y"]),
        ],
        INPUT,
        {"y": [2, 3, 5]},
        {**GIVEN, "w": np.ones((0, 5), "float32"), "one": np.ones(5, "float32")},
    )
    imported = importers.import_model(
        Model("model", str(save(tmp_path / "model.onnx", body))), cache
    )
    found = host_run.compile_host_runner(imported.module, imported.weights, HOST)([X])
    assert found[0].tolist() == np.full((2, 3, 5), -1.0).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "an output",
        "a piece of a split",
        "a weight in a concatenation",
        "a weight that is an output",
    ],
)
def test_an_agent_gives_what_has_no_elements_and_what_was_made_of_it(
    name, context, cache, tmp_path, agents
):
    path = save(tmp_path / "model.onnx", CASES[name])
    model = Model("model", str(path))
    prepared = prepare_model(context, model, HOST, cache)
    artifact = find_or_build_model(context, prepared, HOST, cache)
    fitted = BuildWithAgent(model, prepared, artifact, agents("x86_64"))
    settings = MeasurementSettings.once()
    done = executor.measure_job(context, Device("here", HOST, "local:"), fitted, settings)
    assert done.agreement.right


def test_a_constant_without_elements_that_a_kernel_reads_is_no_constant_of_the_code():
    # TVM writes such a constant into a library, and cannot read it
    builder = relax.BlockBuilder()
    with builder.function("main", [x := relax.Var("x", relax.TensorType((3,), "float32"))]):
        with builder.dataflow():
            both = builder.emit_te(topi.concatenate, [x, relax.const(np.zeros(0, "float32"))])
            made = builder.emit_output(both)
        builder.emit_func_output(made)
    lifted, parameters = lift_constants_into_tuple(builder.get(), NO_WEIGHTS)
    found = []
    relax.analysis.post_order_visit(lifted["main"], found.append)
    constants = [one.value for one in found if isinstance(one, GenericConst)]
    assert not any(0 in getattr(value, "shape", ()) for value in constants)
    assert not parameters
