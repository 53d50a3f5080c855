"""A float model becomes one of weights in half precision: without data, with what that does to its
numbers said.
"""

from __future__ import annotations

import numpy as np
import pytest
from host_profile import HOST
from onnx_models import graph, node, save

from farm import importers, quantize
from farm.checked_model_import import import_and_quantize
from farm.errors import ModelError
from farm.quantize import fp16_weights, recipe
from farm.quantize.report import compare_with_float
from farm.types import Model, QuantizeSettings

HALF = QuantizeSettings(dtype="float16")
numbers = np.random.default_rng(17)


def network(tmp_path, **weights):
    weights = {
        "a": numbers.standard_normal((32, 64)),
        "b": numbers.standard_normal((64, 48)),
        **weights,
    }
    nodes = [
        node("MatMul", ["x", "a"], ["h"]),
        node("Relu", ["h"], ["i"]),
        node("MatMul", ["i", "b"], ["y"]),
    ]
    values = {name: value.astype("float32") for name, value in weights.items()}
    path = save(tmp_path / "net.onnx", graph(nodes, {"x": [1, 32]}, {"y": [1, 48]}, values))
    return Model("net", str(path), quantize=HALF)


def silent(_text, _fraction):
    pass


def test_weights_are_rounded_to_float16_and_the_reference_stays_the_float_model(tmp_path):
    model = network(tmp_path)
    plain, made = (
        importers.import_model(model, tmp_path),
        import_and_quantize(model, tmp_path, HOST, silent),
    )
    assert sorted(value.dtype.name for value in made.weights) == ["float16", "float16"]
    given = {"x": numbers.standard_normal((1, 32)).astype("float32")}
    assert (made.reference(given)[0] == plain.reference(given)[0]).all()


def test_a_report_names_each_layer_and_what_rounding_does_to_it(tmp_path):
    model = network(tmp_path)
    floating = fp16_weights.fold_for_fp16_weights(importers.import_model(model, tmp_path), "net")
    said = compare_with_float(
        model, floating, quantize.make_recipe(model, floating, HOST, silent), HOST, silent
    )
    assert [layer.name for layer in sorted(said.layers, key=lambda layer: layer.index)] == [
        "matmul 64",
        "matmul 48",
    ]
    assert all(60 < layer.snr_db < 90 for layer in said.layers) and 60 < said.output_snr_db < 90
    assert (said.dtype, said.total, said.remarks) == ("float16", 0, ()) and said.ms > 0


@pytest.mark.parametrize("number", [70000, -70000])
def test_a_weight_above_what_float16_holds_stays_float32_and_is_named(number, tmp_path):
    large = numbers.standard_normal((64, 48))
    large[5, 5] = number
    model = network(tmp_path, b=large)
    floating = fp16_weights.fold_for_fp16_weights(importers.import_model(model, tmp_path), "net")
    assert fp16_weights.conversion_remarks(floating.module) == [
        "a weight of 64x48 stays float32: 7e+04 is above 65504"
    ]
    made = import_and_quantize(model, tmp_path, HOST, silent)
    assert sorted(value.dtype.name for value in made.weights) == ["float16", "float32"]


@pytest.mark.parametrize(
    ("small", "zero", "said"),
    [
        (
            3,
            2,
            (
                "5 of 5120 numbers are below 6.1e-05, where float16 has fewer digits; 2 of them "
                "become zero"
            ),
        ),
        (
            2,
            1,
            (
                "3 of 5120 numbers are below 6.1e-05, where float16 has fewer digits; 1 of them "
                "becomes zero"
            ),
        ),
        (
            1,
            0,
            "1 of 5120 numbers is below 6.1e-05, where float16 has fewer digits; none becomes zero",
        ),
    ],
)
def test_numbers_that_lose_digits_are_counted(tmp_path, small, zero, said):
    first = np.random.default_rng(17).uniform(0.5, 1, (32, 64))
    first[0, :small], first[1, :zero] = 1e-6, [2.0**-25, 1e-9][:zero]  # a tie becomes zero
    second = np.ones((64, 48))
    floating = fp16_weights.fold_for_fp16_weights(
        importers.import_model(network(tmp_path, a=first, b=second), tmp_path), "net"
    )
    assert fp16_weights.conversion_remarks(floating.module) == [said]


def test_a_model_without_weights_to_halve_is_refused(tmp_path):
    path = save(
        tmp_path / "relu.onnx", graph([node("Relu", ["x"], ["y"])], {"x": [1, 4]}, {"y": [1, 4]})
    )
    with pytest.raises(ModelError, match="nothing to keep in float16"):
        import_and_quantize(Model("relu", str(path), quantize=HALF), tmp_path, HOST, silent)


def test_what_is_missing_in_a_recipe_is_named(tmp_path):
    (tmp_path / "bad.float16").write_text('{"schema": "farm/float16/1"}')
    with pytest.raises(ModelError, match="is no quantized model") as caught:
        recipe.read_recipe(tmp_path / "bad.float16")
    assert caught.value.why == "it has no 'source'" and "--to float16" in caught.value.fix


def test_a_recipe_is_the_same_model_and_notices_another_one(tmp_path):
    model = network(tmp_path)
    floating = fp16_weights.fold_for_fp16_weights(importers.import_model(model, tmp_path), "net")
    recipe.write_recipe(
        tmp_path / "net.float16", quantize.make_recipe(model, floating, HOST, silent)
    )
    again = import_and_quantize(
        Model("again", str(tmp_path / "net.float16")), tmp_path, HOST, silent
    )
    first = import_and_quantize(model, tmp_path, HOST, silent)
    assert all(
        (one == other).all() for one, other in zip(first.weights, again.weights, strict=True)
    )
    network(tmp_path)  # other weights in the same file
    with pytest.raises(ModelError, match="no longer fits"):
        import_and_quantize(Model("again", str(tmp_path / "net.float16")), tmp_path, HOST, silent)
