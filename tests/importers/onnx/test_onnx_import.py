"""ONNX files that can be imported: what comes out computes what ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from farm.errors import ModelError
from farm.types import TensorSpec

RANDOM = np.random.default_rng(1)
Relu = helper.make_node("Relu", ["x"], ["y"], name="relu")


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def conv_model(opset):
    nodes = [
        helper.make_node(
            "Conv", ["x", "w", "b"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"], name="norm"
        ),
        helper.make_node("Relu", ["n"], ["y"], name="relu"),
    ]
    weights = {
        "w": normal(4, 3, 3, 3),
        "b": normal(4),
        "scale": normal(4),
        "bias": normal(4),
        "mean": normal(4),
        "var": normal(4) ** 2 + 1,
    }
    return nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, weights, opset


@pytest.mark.parametrize("opset", [9, 13, 21])
def test_a_convolution_with_batch_norm_agrees_with_onnxruntime_at_old_and_new_opsets(
    opset, onnx_file, load, agree
):
    imported = load(onnx_file(*conv_model(opset)))
    assert [weight.shape for weight in imported.weights] == [
        (4, 3, 3, 3),
        (4,),
        (4,),
        (4,),
        (4,),
        (4,),
    ]
    assert imported.engine.startswith("onnxruntime ")
    agree(imported)


def test_names_shapes_and_dtypes_of_several_inputs_and_outputs_are_those_of_the_file(
    onnx_file, load, agree
):
    nodes = [
        helper.make_node("Add", ["left.in", "2right"], ["sum/out"]),
        helper.make_node("Gather", ["sum/out", "rows"], ["picked"]),
        helper.make_node("Greater", ["left.in", "2right"], ["more"]),
    ]
    inputs = {"left.in": [4, 5], "2right": [4, 5], "rows": (TensorProto.INT64, [3])}
    outputs = {"picked": [3, 5], "more": (TensorProto.BOOL, [4, 5])}
    imported = load(onnx_file(nodes, inputs, outputs))
    assert imported.inputs == (
        TensorSpec("left.in", (4, 5), "float32"),
        TensorSpec("2right", (4, 5), "float32"),
        TensorSpec("rows", (3,), "int64"),
    )
    assert imported.outputs == (
        TensorSpec("picked", (3, 5), "float32"),
        TensorSpec("more", (4, 5), "bool"),
    )
    agree(imported)


def test_initializers_that_are_listed_as_inputs_are_weights(onnx_file, load, agree):
    nodes, inputs, outputs, weights, opset = conv_model(17)
    imported = load(
        onnx_file(nodes, {**inputs, "w": [4, 3, 3, 3], "b": [4]}, outputs, weights, opset)
    )
    assert [spec.name for spec in imported.inputs] == ["x"]
    assert len(imported.weights) == 6
    agree(imported)


def test_a_weight_that_is_used_twice_is_one_parameter(onnx_file, load, agree):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]
    imported = load(onnx_file(nodes, {"x": [2, 6]}, {"y": [2, 6]}, {"w": normal(6, 6)}))
    assert [weight.shape for weight in imported.weights] == [(6, 6)]
    agree(imported)


def test_shapes_and_indices_stay_in_the_module(onnx_file, load, agree):
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Gather", ["r", "rows"], ["y"], axis=1),
    ]
    weights = {"shape": np.array([2, 6], np.int64), "rows": np.array([-1, 0], np.int64)}
    imported = load(onnx_file(nodes, {"x": [3, 4]}, {"y": [2, 2]}, weights))
    assert imported.weights == []
    agree(imported)


def test_an_open_batch_axis_becomes_one(onnx_file, load, agree):
    imported = load(onnx_file([Relu], {"x": ["batch", 3]}, {"y": ["batch", 3]}))
    assert imported.inputs[0].shape == imported.outputs[0].shape == (1, 3)
    agree(imported)


def test_an_override_of_one_input_sets_the_same_symbol_in_another(onnx_file, load, agree):
    add = helper.make_node("Add", ["x", "y"], ["z"])
    path = onnx_file([add], {"x": ["n", "m"], "y": ["n", "m"]}, {"z": ["n", "m"]})
    imported = load(path, x=(2, 5))
    assert [spec.shape for spec in imported.inputs] == [(2, 5), (2, 5)]
    agree(imported)


def test_open_axes_are_reported_with_the_override_to_write(onnx_file, load):
    path = onnx_file([Relu], {"x": ["n", 3, "height", "width"]}, {"y": ["n", 3, "height", "width"]})
    with pytest.raises(ModelError) as caught:
        load(path)
    assert "axis 0, axis 2, axis 3 of [n, 3, height, width]" in caught.value.why
    assert "shapes = { x = [1, 3, 224, 224] }" in caught.value.fix
    assert "--shape x:1,3,224,224" in caught.value.fix


def test_the_override_to_write_agrees_with_that_of_another_input(onnx_file, load):
    product = helper.make_node("MatMul", ["x", "y"], ["z"])
    path = onnx_file([product], {"x": ["n", "m"], "y": ["m", "k"]}, {"z": ["n", "k"]})
    with pytest.raises(ModelError) as caught:
        load(path, x=(2, 5))
    assert "--shape y:5,224" in caught.value.fix


def test_the_override_to_write_has_one_extent_for_a_symbol(onnx_file, load):
    add = helper.make_node("Add", ["x", "h"], ["y"])
    path = onnx_file([add], {"x": ["batch", "n"], "h": [2, "batch", 3]}, {"y": [2, "batch", 3]})
    with pytest.raises(ModelError) as caught:
        load(path)
    assert "or with `--shape x:1,224`" in caught.value.fix
    assert [spec.shape for spec in load(path, x=(1, 3)).inputs] == [(1, 3), (2, 1, 3)]


@pytest.mark.parametrize("opset", [1, 9])
def test_a_slice_with_bounds_as_attributes_is_right(opset, onnx_file, load, agree):
    """As before opset 10."""
    nodes = [
        helper.make_node("Slice", ["x"], ["a"], axes=[1, 3], starts=[1, -3], ends=[2, 100]),
        helper.make_node("Slice", ["x"], ["b"], starts=[0, 1], ends=[1, -1]),
    ]
    outputs = {"a": [2, 1, 4, 3], "b": [1, 2, 4, 5]}
    agree(load(onnx_file(nodes, {"x": [2, 4, 4, 5]}, outputs, opset=opset)))


@pytest.mark.parametrize("opset", [2, 11, 18])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_a_padding_is_an_operator_with_a_layout(mode, opset, onnx_file, load, agree):
    """Negative widths are a loop nest of TVM's."""
    widths = {"y": [0, 0, 1, 2, 0, 0, 0, 3], "z": [0, 0, -1, 2, 0, 0, 0, -1]}
    weights, nodes = {}, []
    for name, pads in widths.items():
        given, attributes = ["x"], {"mode": mode}
        if opset == 2:
            attributes |= {"pads": pads, "value": 0.5}
        else:
            weights |= {f"{name}_pads": np.array(pads), "half": np.float32(0.5)}
            given += [f"{name}_pads", "half"]
        nodes.append(helper.make_node("Pad", given, [name], **attributes))
    outputs = {"y": [2, 3, 6, 9], "z": [2, 3, 4, 5]}
    imported = load(onnx_file(nodes, {"x": [2, 3, 5, 4]}, outputs, weights, opset=opset))
    agree(imported)
    assert imported.module.script().count("R.nn.pad") == 1


def test_the_largest_of_tensors_is_found_without_copies(onnx_file, load, agree):
    """Also where they broadcast; a tensor alone is itself."""
    nodes = [
        helper.make_node("Max", ["x", "bound", "x2"], ["a"]),
        helper.make_node("Min", ["bound", "x"], ["b"]),
        helper.make_node("Max", ["x"], ["c"]),
    ]
    outputs = {"a": [2, 3, 4], "b": [2, 3, 4], "c": [2, 3, 4]}
    imported = load(
        onnx_file(nodes, {"x": [2, 3, 4], "x2": [3, 1]}, outputs, {"bound": normal(4)}, opset=13)
    )
    agree(imported)
    assert "stack" not in imported.module.script()


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.DOUBLE, TensorProto.UINT8])
def test_a_padding_of_other_types_is_right(dtype, onnx_file, load, agree):
    """The axes count from the end, and the value is left out."""
    nodes = [
        helper.make_node("Cast", ["x"], ["cast"], to=dtype),
        helper.make_node("Pad", ["cast", "pads", "", "axes"], ["padded"]),
        helper.make_node("Cast", ["padded"], ["y"], to=TensorProto.FLOAT),
    ]
    given = {"pads": np.array([1, 0, 2, 3]), "axes": np.array([-1, 1])}
    agree(load(onnx_file(nodes, {"x": [2, 3, 4]}, {"y": [2, 6, 7]}, given, opset=18)))


def test_nan_stays_nan_in_the_largest_of_a_tensor_and_a_constant(onnx_file, load, answers):
    nodes = [
        helper.make_node("Max", ["nothing", "x", "one"], ["a"]),
        helper.make_node("Sqrt", ["x"], ["root"]),
        helper.make_node("Min", ["root", "one"], ["b"]),
    ]
    given = {"nothing": np.float32(np.nan), "one": np.float32(1)}
    path = onnx_file(nodes, {"x": [64]}, {"a": [64], "b": [64]}, given)
    imported = load(path)
    a, b = answers(imported)
    root = np.sqrt(imported.example["x"])
    assert np.isnan(a).all() and np.isnan(root).any()
    np.testing.assert_array_equal(np.isnan(b), np.isnan(root))


def test_a_range_over_the_windows_of_a_transform_is_constant(onnx_file, load, agree):
    """ONNX's shape inference takes all bins for the default, where it is the first half."""
    nodes = [
        helper.make_node("STFT", ["x", "step", "window"], ["sums"]),
        helper.make_node("ReduceSumSquare", ["sums"], ["power"], axes=[-1], keepdims=0),
        helper.make_node("MatMul", ["power", "bands"], ["mel"]),
        helper.make_node("Shape", ["mel"], ["count"], start=1, end=2),
        helper.make_node("Squeeze", ["count"], ["end"]),
        helper.make_node("Range", ["zero", "end", "one"], ["places"]),
        helper.make_node("Less", ["places", "length"], ["mask"]),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Where", ["column", "mel", "nothing"], ["y"]),
    ]
    weights = {
        "step": np.array(20),
        "window": np.hanning(40).astype(np.float32),
        "bands": np.random.default_rng(0).random((21, 5)).astype(np.float32),
        "zero": np.array(0),
        "one": np.array(1),
        "last": np.array([1]),
        "nothing": np.array(0, np.float32),
    }
    body = {"x": [1, 200], "length": (onnx.TensorProto.INT64, [1])}
    imported = load(onnx_file(nodes, body, {"y": [1, 9, 5]}, weights, opset=17))
    assert imported.outputs[0].shape == (1, 9, 5)
    agree(imported)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"x": (1, 3, 8)}, "4 axes"),
        ({"x": (1, 4, 8, 8)}, "fixes axis 1 to 3"),
        ({"x": (1, 3, 0, 8)}, "at least 1"),
        ({"X1": (1, 3, 8, 8)}, "no input 'X1'"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(shapes, words, onnx_file, load):
    path = onnx_file([Relu], {"x": ["n", 3, "h", "w"]}, {"y": ["n", 3, "h", "w"]})
    with pytest.raises(ModelError, match=r"model\.onnx") as caught:
        load(path, **shapes)
    assert words in str(caught.value)


def test_the_example_is_the_same_every_time_and_fits(onnx_file, load):
    path = onnx_file(*conv_model(17))
    first, second = load(path).example["x"], load(path).example["x"]
    assert first.dtype == np.float32 and first.shape == (1, 3, 8, 8) and first.std() > 0.5
    np.testing.assert_array_equal(first, second)


def test_functions_of_the_model_are_inlined(onnx_file, load, agree):
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Sqrt", ["s"], ["r"])]
    function = helper.make_function(
        "own", "Magnitude", ["a"], ["r"], body, [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Magnitude", ["x"], ["y"], domain="own")
    path = onnx_file(
        [call],
        {"x": [2, 3]},
        {"y": [2, 3]},
        functions=[function],
        opsets=[helper.make_opsetid("own", 1)],
    )
    agree(load(path))


def test_both_branches_of_an_if_are_imported(onnx_file, load, agree):
    def branch(operator):
        output = helper.make_tensor_value_info(operator, TensorProto.FLOAT, [2, 2])
        return helper.make_graph(
            [helper.make_node(operator, ["x", "w"], [operator])], operator, [], [output]
        )

    node = helper.make_node(
        "If", ["yes"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul")
    )
    path = onnx_file(
        [node], {"x": [2, 2], "yes": (TensorProto.BOOL, [])}, {"y": [2, 2]}, {"w": normal(2, 2)}
    )
    agree(load(path))


def test_an_operator_of_onnxruntime_that_tvm_knows_is_imported(onnx_file, load, agree):
    gelu = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")
    agree(
        load(
            onnx_file(
                [gelu],
                {"x": [2, 3]},
                {"y": [2, 3]},
                opsets=[helper.make_opsetid("com.microsoft", 1)],
            )
        )
    )


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE])
@pytest.mark.parametrize("attributes", [{}, {"alpha": -0.5}])
def test_a_quick_gelu_of_onnxruntime_is_imported_by_a_converter_of_farms_own(
    attributes, kind, onnx_file, load, agree
):
    quick_gelu = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", **attributes)
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    path = onnx_file([quick_gelu], {"x": (kind, [2, 300])}, {"y": (kind, [2, 300])}, opsets=opsets)
    agree(load(path))


def test_weights_in_a_file_of_their_own_are_read(graph, tmp_path, load, agree):
    path = tmp_path / "model.onnx"
    onnx.save(
        graph(*conv_model(17)),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    assert (tmp_path / "weights.bin").stat().st_size > 400
    agree(load(path))


def test_a_concatenation_with_a_constant_without_elements_is_right(onnx_file, load, agree):
    path = onnx_file(
        [helper.make_node("Concat", ["none", "x"], ["y"], axis=2)],
        {"x": [2, 4, 8]},
        {"y": [2, 4, 8]},
        {"none": np.zeros((2, 4, 0), np.float32)},
    )
    agree(load(path))


@pytest.mark.parametrize("name", ["?", "", " ", "None", "-1", "unknown"])
def test_axes_whose_name_says_that_they_are_unknown_are_each_their_own(
    onnx_file, load, agree, name
):
    flat = helper.make_node("Flatten", ["x"], ["y"], axis=2)
    imported = load(onnx_file([flat], {"x": [name, 3, name, 4]}, {"y": ["a", "b"]}), x=(2, 3, 5, 4))
    assert imported.inputs[0].shape == (2, 3, 5, 4)
    agree(imported)


def test_axes_without_a_name_of_their_own_are_called_open(onnx_file, load):
    axes = ["unk__215", 3, "?", "DynamicDimension.1", "width"]
    path = onnx_file(
        [helper.make_node("Flatten", ["x"], ["y"], axis=2)], {"x": axes}, {"y": ["a", "b"]}
    )
    with pytest.raises(ModelError) as caught:
        load(path)
    assert "of [open, 3, open, open, width]" in caught.value.why
    with pytest.raises(ModelError) as caught:
        load(path, x=(1, 4, 2, 2, 2))
    assert "input x [open, 3, open, open, width]" in caught.value.what


def test_an_axis_that_two_inputs_share_has_one_extent_even_if_its_name_was_counted_up(
    onnx_file, load
):
    path = onnx_file(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        {"a": ["unk__1", 4], "b": ["unk__1", 4]},
        {"y": ["unk__1", 4]},
    )
    with pytest.raises(ModelError) as caught:
        load(path, a=(2, 4), b=(3, 4))
    assert caught.value.why == "another extent sets axis 0, which it shares, to 2"


@pytest.mark.parametrize("axes", [(3, 2), (-1, -2), (2, -1)])
def test_a_region_along_axes_that_count_from_the_end_is_resized(axes, onnx_file, load, agree):
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    nodes = [helper.make_node("Resize", ["x", "region", "", "sizes"], ["y"], axes=axes, **crop)]
    sizes = [{2: 4, 3: 5}[axis % 4] for axis in axes]
    weights = {
        "region": np.array([0.1, 0.25, 0.6, 0.9], np.float32),
        "sizes": np.array(sizes, np.int64),
    }
    agree(load(onnx_file(nodes, {"x": [1, 2, 9, 7]}, {"y": [1, 2, 4, 5]}, weights, 19)))


def test_a_region_beyond_a_volume_is_filled_along_each_axis(onnx_file, load, agree):
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    node = helper.make_node(
        "Resize", ["x", "region", "", "sizes"], ["y"], extrapolation_value=7.0, **crop
    )
    region = [0, 0, -0.23, 0.1, -0.1, 1, 1, 0.91, 1.2, 0.8]
    weights = {"region": np.array(region, np.float32), "sizes": np.array([1, 2, 6, 5, 4])}
    agree(load(onnx_file([node], {"x": [1, 2, 7, 6, 5]}, {"y": [1, 2, 6, 5, 4]}, weights, 19)))


def test_a_sign_that_is_masked_out_of_the_bits_of_floats_leaves_the_magnitude(
    onnx_file, load, agree
):
    nodes = [
        helper.make_node("BitCast", ["x"], ["bits"], to=TensorProto.INT32),
        helper.make_node("BitwiseAnd", ["bits", "mask"], ["magnitude"]),
        helper.make_node("BitCast", ["magnitude"], ["y"], to=TensorProto.FLOAT),
    ]
    mask = {"mask": np.array(0x7FFFFFFF, np.int32)}
    imported = load(onnx_file(nodes, {"x": ["n", 3, 7]}, {"y": ["n", 3, 7]}, mask, opset=26))
    assert imported.inputs[0].open
    agree(imported)


def test_a_transposed_convolution_whose_kernel_has_gaps_has_its_output_shape(
    onnx_file, load, agree
):
    conv = helper.make_node(
        "ConvTranspose",
        ["x", "w"],
        ["y"],
        strides=[2, 3],
        dilations=[2, 3],
        output_shape=[9, 15],
    )
    shapes = ({"x": [1, 2, 4, 4]}, {"y": [1, 3, 9, 15]})
    agree(load(onnx_file([conv], *shapes, {"w": normal(2, 3, 3, 3)})))


def test_operators_that_farm_converts_heed_their_attributes_and_defaults(onnx_file, load, agree):
    node = helper.make_node
    nodes = [
        node("LpNormalization", ["x"], ["magnitudes"], axis=0, p=1),
        node("Mul", ["x", "some"], ["rows"]),
        node("LpNormalization", ["rows"], ["norms"]),  # one row is of zeros
        node("EyeLike", ["x"], ["above"], k=1),
        node("ReverseSequence", ["x", "lengths"], ["reversed"]),
        node("OneHot", ["lengths", "depth", "values"], ["hot"]),
        node("Col2Im", ["blocks", "image", "block"], ["pixels"], pads=[1, 0, 0, 2]),
        node("DFT", ["signal", "five"], ["spectrum"], onesided=1),
        node("AffineGrid", ["theta", "size"], ["grid"]),
    ]
    inputs = {"x": [3, 4], "blocks": [1, 12, 20], "signal": [2, 7, 1], "theta": [2, 2, 3]}
    outputs = {
        **{name: [3, 4] for name in ("magnitudes", "norms", "above", "reversed")},
        "hot": [4, 5],
        "pixels": [1, 2, 4, 5],
        "spectrum": [2, 3, 2],
        "grid": [2, 3, 2, 2],
    }
    weights = {
        "some": np.array([[1], [0], [1]], np.float32),
        "lengths": np.array([1, 3, 2, 3], np.int64),
        "depth": np.int64(5),
        "values": np.array([-1, 2], np.float32),
        "image": np.array([4, 5], np.int64),
        "block": np.array([2, 3], np.int64),
        "five": np.int64(5),
        "size": np.array([2, 1, 3, 2], np.int64),
    }
    agree(load(onnx_file(nodes, inputs, outputs, weights, 20)))


@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("wanted", [[9, 11], [8, 9], [10, 10]], ids=str)
def test_a_transposed_convolution_has_its_output_shape_beside_an_output_padding(
    mode, wanted, onnx_file, load, agree
):
    conv = helper.make_node(
        "ConvTranspose",
        ["x", "w"],
        ["y"],
        strides=[2, 3],
        output_padding=[1, 2],
        output_shape=wanted,
        auto_pad=mode,
    )
    shapes = ({"x": [1, 2, 4, 4]}, {"y": [1, 3, *wanted]})
    agree(load(onnx_file([conv], *shapes, {"w": normal(2, 3, 3, 3)})))


def test_nodes_may_be_in_any_order_as_for_onnxruntime(onnx_file, load, agree):
    """As converters to float16 write them: nodes that were inserted come last."""
    branch = helper.make_graph(
        [helper.make_node("Neg", ["late"], ["branch"], name="in a branch")],
        "branch",
        [],
        [helper.make_tensor_value_info("branch", TensorProto.FLOAT, [2, 3])],
    )
    nodes = [
        helper.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["chosen", "early"], ["y"]),
        helper.make_node("Exp", ["early"], ["late"]),
        helper.make_node("Relu", ["x"], ["early"]),
    ]
    weights = {"yes": np.array(True)}
    imported = load(onnx_file(nodes, {"x": [2, 3]}, {"y": [2, 3]}, weights))
    x = imported.example["x"]
    early = np.maximum(x, 0)
    np.testing.assert_allclose(imported.reference({"x": x})[0], early - np.exp(early), rtol=1e-5)
    agree(imported)


def test_a_cycle_is_no_order_of_nodes(onnx_file, load):
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"]),
        helper.make_node("Add", ["x", "a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        load(onnx_file(nodes, {"x": [2]}, {"y": [2]}))
