"""ONNX files that cannot be imported: each says what is wrong, why, and what to do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

from farm.errors import ModelError
from farm.importers.onnx.operator_support import MICROSOFT

Relu = helper.make_node("Relu", ["x"], ["y"], name="relu")


def failure(load, path, **shapes):
    with pytest.raises(ModelError) as caught:
        load(path, **shapes)
    assert caught.value.what and "\n" not in caught.value.what
    assert "Traceback" not in str(caught.value) and "File " not in str(caught.value)
    return caught.value


def test_every_operator_without_a_converter_is_named_with_its_count_and_nodes(onnx_file, load):
    inner = helper.make_graph(
        [helper.make_node("Bernoulli", ["a"], ["inner_out"], name="deep")],
        "branch",
        [],
        [helper.make_tensor_value_info("inner_out", TensorProto.FLOAT, [2, 3])],
    )
    nodes = [
        helper.make_node("Bernoulli", ["x"], ["a"], name="dice"),
        helper.make_node("Wobble", ["a"], ["b"], name="first", domain="org.example"),
        helper.make_node("Wobble", ["b"], ["c"], name="second", domain="org.example"),
        helper.make_node("If", ["yes"], ["d"], then_branch=inner, else_branch=inner),
        helper.make_node("Attention", ["d", "d", "d"], ["e"], name="new"),
        helper.make_node("Add", ["e", "c"], ["y"]),
    ]
    path = onnx_file(
        nodes,
        {"x": [2, 3], "yes": (TensorProto.BOOL, [])},
        {"y": [2, 3]},
        opsets=[helper.make_opsetid("org.example", 1)],
    )
    error = failure(load, path)
    assert error.what.endswith(
        "uses 3 operators that TVM cannot import: Attention, Bernoulli, org.example::Wobble"
    )
    assert "Bernoulli x3 (dice, deep, deep)" in error.why
    assert "org.example::Wobble x2 (first, second)" in error.why
    assert error.exit_code == 3


def test_a_file_cut_off_at_any_place_is_refused(onnx_file, load):
    weights = {"w": np.ones((3, 100), np.float32)}
    path = onnx_file(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, {"y": [2, 100]}, weights
    )
    whole = path.read_bytes()
    for length in [*range(1, 40, 3), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "export" in failure(load, path).fix


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x93NUMPY not a model at all" * 20, "is not"),
        (b"\x00" * 1000, "is not"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
    ],
)
def test_a_file_that_is_no_model_is_said_to_be_none(content, words, tmp_path, load):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert words in failure(load, path).what


def test_a_missing_file_is_reported_with_the_nearest_name(tmp_path, load):
    (tmp_path / "resnet18.onnx").touch()
    error = failure(load, tmp_path / "resnet81.onnx")
    assert error.what == f"no file {tmp_path / 'resnet81.onnx'}"
    assert "resnet18.onnx" in error.why


def test_a_folder_is_no_model(tmp_path, load):
    (tmp_path / "model.onnx").mkdir()
    assert "is a folder" in failure(load, tmp_path / "model.onnx").what


def test_missing_external_weights_are_reported(graph, tmp_path, load):
    model = graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [2, 3]},
        {"y": [2, 9]},
        {"w": np.ones((3, 9), np.float32)},
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    error = failure(load, path)
    assert "external weights" in error.what and "weights.bin" in error.why


def test_a_graph_whose_parts_do_not_connect_is_invalid(onnx_file, load):
    path = onnx_file([helper.make_node("Relu", ["nowhere"], ["y"])], {"x": [2]}, {"y": [2]})
    error = failure(load, path)
    assert "not a valid ONNX model" in error.what and "nowhere" in error.why


def test_an_operator_that_fails_to_import_is_named_with_its_node(onnx_file, load):
    tile = helper.make_node("Pad", ["x", "pads"], ["y"], name="padding")
    path = onnx_file([tile], {"x": [2, 3], "pads": (TensorProto.INT64, [4])}, {"y": [None, None]})
    error = failure(load, path)
    assert error.what == "model.onnx: TVM cannot import operator Pad (node 'padding')"
    assert error.why and error.fix


def test_an_output_whose_shape_depends_on_the_data_is_named(onnx_file, load):
    path = onnx_file(
        [helper.make_node("Unique", ["x"], ["different"])],
        {"x": [2, 3]},
        {"different": [None]},
    )
    assert "Unique: the size of its result depends on the values" in failure(load, path).what


@pytest.mark.parametrize(
    ("kind", "words"),
    [(TensorProto.BOOL, "to bool; use Cast"), (TensorProto.FLOAT8E5M2, "the type float8e5m2")],
)
def test_bits_that_are_no_value_of_the_wanted_type_are_refused(kind, words, onnx_file, load):
    node = helper.make_node("BitCast", ["x"], ["y"], to=kind)
    path = onnx_file([node], {"x": (TensorProto.UINT8, [2])}, {"y": (kind, [2])}, opset=26)
    assert f"BitCast: {words}" in failure(load, path).what


def test_an_opset_from_the_future_is_refused_by_the_reference(onnx_file, load):
    error = failure(load, onnx_file([Relu], {"x": [2]}, {"y": [2]}, opset=99))
    assert "opset" in error.why and "opset_version" in error.fix


def test_inputs_that_are_not_numbers_are_refused(onnx_file, load):
    node = helper.make_node("Identity", ["x"], ["y"])
    error = failure(
        load, onnx_file([node], {"x": (TensorProto.STRING, [2])}, {"y": (TensorProto.STRING, [2])})
    )
    assert "input 'x' is a string tensor" in error.what


def test_operators_of_onnxruntime_are_only_promised_where_there_is_a_converter():
    from farm.importers.onnx.converters import converter_table

    assert set(MICROSOFT) <= set(converter_table())


def test_an_operator_of_onnxruntime_is_refused_outside_of_its_domain(onnx_file, load):
    node = helper.make_node("QuickGelu", ["x"], ["y"])
    assert "QuickGelu" in failure(load, onnx_file([node], {"x": [2]}, {"y": [2]})).what


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_no_model_of_onnxs_own_test_set_brings_anything_but_an_import_or_a_model_error(
    load, tmp_path
):
    path, imported, failed = tmp_path / "model.onnx", 0, {}
    for case in collect_testcases(None)[::2]:  # tools/node-tests runs all of them
        onnx.save(case.model, path)
        try:
            load(path)
            imported += 1
        except ModelError as error:
            assert error.what and "Traceback" not in str(error)
        except Exception as error:
            failed[case.name] = repr(error)
    assert failed == {}
    assert imported > 400


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike"])
def test_random_numbers_are_refused_in_words(operator, onnx_file, load):
    nodes = [helper.make_node(operator, ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    error = failure(load, onnx_file(nodes, {"x": [2, 3]}, {"y": [2, 3]}))
    assert f"{operator}: random numbers; give the model its noise as an input" in error.what


def test_an_unknown_kind_of_file_is_told_what_farm_reads(tmp_path, load):
    error = failure(load, tmp_path / "model.caffemodel")
    assert ".onnx" in error.why and ".pt2" in error.why


def test_a_reference_fed_wrongly_says_so(onnx_file, load):
    imported = load(onnx_file([Relu], {"x": [2, 3]}, {"y": [2, 3]}))
    with pytest.raises(ModelError, match="ONNX Runtime"):
        imported.reference({"x": np.zeros((7,), np.float32)})
