"""TFLite operators in forms that TVM converts wrongly, or not at all: what comes out computes what
LiteRT does. tools/fuzz-operators found them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from random_operators.comparing import differences
from random_tflite_operators.drawing import Draw
from random_tflite_operators.judging import run, save_with_shapes

SAME, VALID = 0, 1
RELU6 = 3
BYTES = {"scale": 0.05, "zero": -20}
numbers = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return numbers.standard_normal(shape).astype(np.float32)


def octets(*shape: int) -> np.ndarray:
    return numbers.integers(-128, 128, shape).astype(np.int8)


def agrees(draw: Draw, tmp_path: Path) -> None:
    path = tmp_path / "operator.tflite"
    answers = save_with_shapes(draw.case, path)
    assert not differences(draw.case, run(path, draw.case), answers)


def moved(name, value, *constants, options="", given=None, **fields):
    """An operator of one array that is fed, and of constants."""
    draw = Draw(name, 0)
    draw.case.steps = 1 if given else 0
    data = draw.feed(value, **(given or {}))
    draw.moved(data, *map(draw.constant, constants), options=options, **fields)
    return draw


def whole(*values, dtype=np.int32):
    return np.array(values, dtype)


@pytest.mark.parametrize("shape", [(), (3,)], ids=["no axes", "one axis"])
def test_an_input_of_any_rank_is_fed_to_litert(shape, tmp_path):
    agrees(moved("ABS", floats(*shape)), tmp_path)


@pytest.mark.parametrize("given", [None, BYTES], ids=["floats", "bytes"])
@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_softmax_has_its_beta(beta, given, tmp_path):
    value = octets(4, 6) if given else floats(4, 6)
    draw = moved("SOFTMAX", value, options="SoftmaxOptions", given=given, beta=beta)
    if given:
        made = draw.case.tensors[draw.case.outputs[0]]
        made.scale, made.zero = 1 / 256, -128
    agrees(draw, tmp_path)


@pytest.mark.parametrize("is_approximate", [True, False])
@pytest.mark.parametrize("given", [None, BYTES], ids=["floats", "bytes"])
def test_gelu_is_approximated_where_the_file_says_so(is_approximate, given, tmp_path):
    value = octets(5, 40) if given else 2 * floats(5, 40)
    draw = moved("GELU", value, options="GeluOptions", given=given, approximate=is_approximate)
    agrees(draw, tmp_path)


@pytest.mark.parametrize(
    ("axis", "batch", "where"),
    [(1, 1, (4,)), (2, 1, (4, 2)), (-1, 2, ()), (-2, 0, (4,)), (3, 1, (2,))],
)
def test_gather_has_batch_axes(axis, batch, where, tmp_path):
    shape = (2, 3, 5, 4)
    indices = numbers.integers(0, shape[axis], (*shape[:batch], *where)).astype(np.int32)
    fields = {"axis": axis, "batchDims": batch}
    agrees(moved("GATHER", floats(*shape), indices, options="GatherOptions", **fields), tmp_path)


@pytest.mark.parametrize("indices", [whole((3, 1), (0, 2)), whole((3,), (2,)), whole(1, 2)])
def test_gather_nd_takes_the_last_axis_of_the_indices(indices, tmp_path):
    agrees(moved("GATHER_ND", floats(4, 3, 2), indices, options="GatherNdOptions"), tmp_path)


def test_gather_nd_of_bytes_is_built(tmp_path):
    draw = moved("GATHER_ND", octets(4, 3), whole((3, 1), (0, 2)), given=BYTES)
    agrees(draw, tmp_path)


def test_scatter_nd_adds_what_has_one_place(tmp_path):
    draw = Draw("SCATTER_ND", 0)
    given = [draw.whole_numbers([3, 1], [0, 2], [3, 1]), draw.feed(floats(3, 5))]
    result = draw.made("float32")
    draw.op([*given, draw.whole_numbers(4, 3, 5)], [result], "ScatterNdOptions")
    agrees(draw, tmp_path)


@pytest.mark.parametrize(("table", "given"), [(floats(5, 3), {}), (octets(5, 3), BYTES)])
def test_an_embedding_is_looked_up_by_the_first_input(table, given, tmp_path):
    draw = Draw("EMBEDDING_LOOKUP", 0)
    data = draw.constant(table, **given)
    draw.op([draw.feed(whole(4, 0, 1, 4)), data], [draw.made(table.dtype.name, data)])
    agrees(draw, tmp_path)


@pytest.mark.parametrize("name", ["ARG_MAX", "ARG_MIN"])
@pytest.mark.parametrize(("dtype", "number"), [("int32", 2), ("int64", 4)])
def test_a_place_of_a_largest_number_has_the_type_of_the_file(name, dtype, number, tmp_path):
    draw = Draw(name, 0)
    options = "ArgMaxOptions" if name == "ARG_MAX" else "ArgMinOptions"
    given = [draw.feed(floats(4, 7)), draw.scalar(-1)]
    draw.op(given, [draw.made(dtype)], options, outputType=number)
    agrees(draw, tmp_path)


def test_a_mean_of_integers_is_truncated(tmp_path):
    value = numbers.integers(-9, 9, (6, 7)).astype(np.int32)
    agrees(moved("MEAN", value, whole(-1), options="ReducerOptions", keepDims=True), tmp_path)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_a_number_equal_to_a_boundary_is_above_it(dtype, tmp_path):
    draw = Draw("BUCKETIZE", 0)
    given = draw.feed(np.arange(-5, 6).astype(dtype))
    draw.op([given], [draw.made("int32")], "BucketizeOptions", boundaries=[-3.0, 0.0, 4.0])
    agrees(draw, tmp_path)


@pytest.mark.parametrize("is_exclusive", [True, False])
def test_sums_run_from_the_end(is_exclusive, tmp_path):
    fields = {"exclusive": is_exclusive, "reverse": True}
    axis = np.array(-2, np.int32)
    agrees(moved("CUMSUM", floats(3, 4, 2), axis, options="CumsumOptions", **fields), tmp_path)


@pytest.mark.parametrize("name", ["POW", "SQUARED_DIFFERENCE"])
def test_powers_of_integers_are_built(name, tmp_path):
    options = {"POW": "PowOptions", "SQUARED_DIFFERENCE": "SquaredDifferenceOptions"}[name]
    agrees(moved(name, whole(-9, 2, 7, 0), whole(3, 5, 2, 0), options=options), tmp_path)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_fully_connected_layer_makes_a_matrix_if_it_keeps_no_axes(keeps, tmp_path):
    weights = floats(5, 6)
    fields = {"options": "FullyConnectedOptions", "keepNumDims": keeps}
    agrees(moved("FULLY_CONNECTED", floats(2, 3, 6), weights, **fields), tmp_path)


def test_a_bias_of_64_bits_is_added(tmp_path):
    draw = Draw("FULLY_CONNECTED", 0)
    data = draw.feed(numbers.integers(-32768, 32767, (4, 15)).astype(np.int16), scale=1e-3)
    weights = draw.constant(octets(6, 15), scale=0.016)
    bias = draw.constant(whole(*[1900, -2700, 1000] * 2, dtype=np.int64), scale=1.6e-5)
    result = draw.made("int16")
    draw.case.tensors[result].scale = 2e-3
    draw.op([data, weights, bias], [result], "FullyConnectedOptions")
    agrees(draw, tmp_path)


@pytest.mark.parametrize(
    ("value", "given"), [(floats(2, 5, 4, 3), None), (octets(2, 5, 4, 3), BYTES)]
)
def test_a_space_becomes_batches_and_back(value, given, tmp_path):
    blocks, ends = whole(2, 3), whole((1, 0), (0, 2))
    agrees(moved("SPACE_TO_BATCH_ND", value, blocks, ends, given=given), tmp_path)
    batches = np.concatenate([value] * 6)
    agrees(moved("BATCH_TO_SPACE_ND", batches, blocks, ends, given=given), tmp_path)


@pytest.mark.parametrize("shape", [(2, 3, 3), (3, 5), (2, 5, 3)])
def test_matrices_have_their_diagonals(shape, tmp_path):
    agrees(moved("MATRIX_DIAG", floats(*shape)), tmp_path)
    draw = Draw("MATRIX_SET_DIAG", 0)
    given = [draw.feed(floats(*shape)), draw.feed(floats(*shape[:-2], min(shape[-2:])))]
    draw.moved(*given)
    agrees(draw, tmp_path)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("values", [[5], [7, 8, 9]], ids=["one", "each"])
def test_sparse_values_are_written(values, dtype, tmp_path):
    draw = Draw("SPARSE_TO_DENSE", 0)
    given = [draw.whole_numbers([0, 2], [1, 1], [3, 0]), draw.whole_numbers(4, 3)]
    given += [draw.feed(np.array(values if values[1:] else values[0], dtype))]
    result = draw.made(np.dtype(dtype).name)
    draw.op([*given, draw.constant(np.array(-1, dtype))], [result], "SparseToDenseOptions")
    agrees(draw, tmp_path)


@pytest.mark.parametrize("mode", [0, 1], ids=["reflect", "symmetric"])
def test_an_image_is_mirrored_at_its_edges(mode, tmp_path):
    widths = whole((0, 0), (2, 1), (0, 3))
    agrees(
        moved("MIRROR_PAD", floats(2, 3, 4), widths, options="MirrorPadOptions", mode=mode),
        tmp_path,
    )


@pytest.mark.parametrize("bits", [3, 8])
def test_a_zero_point_between_two_numbers_is_rounded_as_float32(bits, tmp_path):
    fields = {"options": "FakeQuantOptions", "min": -1.0, "max": 1.0, "numBits": bits}
    agrees(moved("FAKE_QUANT", floats(6, 7), **fields), tmp_path)


@pytest.mark.parametrize("axes", [[], [0, -2]])
def test_axes_of_one_element_are_left_out(axes, tmp_path):
    fields = {"options": "SqueezeOptions", "squeezeDims": axes}
    agrees(moved("SQUEEZE", floats(1, 3, 1, 5), **fields), tmp_path)


def test_several_axes_are_reversed(tmp_path):
    agrees(moved("REVERSE_V2", floats(2, 3, 4), whole(1, 2)), tmp_path)


@pytest.mark.parametrize("given", [None, BYTES], ids=["floats", "bytes"])
@pytest.mark.parametrize("extent", [1, 5])
def test_parts_of_sequences_are_reversed(extent, given, tmp_path):
    value = octets(3, 2, extent).view(np.uint8) if given else floats(3, 2, extent)
    lengths = np.minimum(whole(1, 3, 4, dtype=np.int64), extent)
    fields = {"options": "ReverseSequenceOptions", "seqDim": 2, "batchDim": 0}
    agrees(moved("REVERSE_SEQUENCE", value, lengths, given=given, **fields), tmp_path)


def test_rows_are_selected(tmp_path):
    draw = Draw("SELECT", 0)
    rows = [draw.feed(floats(3, 4)) for _ in "ab"]
    draw.op([draw.feed(np.array([True, False, True])), *rows], [draw.made("float32")])
    agrees(draw, tmp_path)


@pytest.mark.parametrize("sizes", [(-1, 1, 2), (2, -1), (-1,)])
def test_a_part_is_what_the_others_leave(sizes, tmp_path):
    draw = Draw("SPLIT_V", 0)
    given = [draw.feed(floats(3, 6)), draw.whole_numbers(*sizes), draw.scalar(-1)]
    made = [draw.made("float32") for _ in sizes]
    draw.op(given, made, "SplitVOptions", numSplits=len(sizes))
    agrees(draw, tmp_path)


@pytest.mark.parametrize("size", [(13, 9), (1, 7), (5, 1), (1, 1)])
@pytest.mark.parametrize(
    ("name", "word"), [("BILINEAR", "Bilinear"), ("NEAREST_NEIGHBOR", "NearestNeighbor")]
)
def test_an_image_is_resized_with_aligned_corners(name, word, size, tmp_path):
    fields = {"options": f"Resize{word}Options", "alignCorners": True}
    agrees(moved(f"RESIZE_{name}", floats(1, 5, 6, 2), whole(*size), **fields), tmp_path)


@pytest.mark.parametrize("is_of_bytes", [True, False])
@pytest.mark.parametrize(("padding", "size"), [(VALID, (7, 11)), (VALID, (8, 13)), (SAME, (7, 12))])
def test_a_transposed_convolution_is_as_long_as_the_file_says(padding, size, is_of_bytes, tmp_path):
    draw = Draw("TRANSPOSE_CONV", 0)
    value, kernel = (octets, octets) if is_of_bytes else (floats, floats)
    data = draw.feed(value(1, 4, 4, 3), **(BYTES if is_of_bytes else {}))
    weights = draw.constant(kernel(2, 1, 2, 3), **({"scale": 0.01} if is_of_bytes else {}))
    result = draw.made("int8" if is_of_bytes else "float32")
    fields = {"padding": padding, "strideH": 2, "strideW": 3, "fusedActivationFunction": RELU6}
    given = [draw.whole_numbers(1, *size, 2), weights, data]
    draw.op(given, [result], "TransposeConvOptions", **fields)
    agrees(draw, tmp_path)


@pytest.mark.parametrize("name", ["SUM", "PROD", "MAX", "MIN"])
def test_what_is_in_no_segment_is_left_out(name, tmp_path):
    draw = Draw(f"UNSORTED_SEGMENT_{name}", 0)
    given = [draw.feed(floats(5, 3)), draw.feed(whole(1, -1, 0, 1, -1)), draw.scalar(3)]
    draw.op(given, [draw.made("float32")], f"UnsortedSegment{name.title()}Options")
    agrees(draw, tmp_path)


def recurrent(major: bool) -> Draw:
    draw = Draw("UNIDIRECTIONAL_SEQUENCE_RNN", 0)
    parts = [draw.constant(floats(*shape)) for shape in ((4, 5), (4, 4), (4,))]
    given = [draw.feed(floats(2, 3, 5)), *parts, draw.state((3 if major else 2, 4))]
    fields = {"timeMajor": major, "fusedActivationFunction": 4}
    draw.op(given, [draw.made("float32")], "SequenceRNNOptions", **fields)
    return draw


@pytest.mark.parametrize("major", [True, False])
def test_time_is_the_axis_that_the_file_says(major, tmp_path):
    agrees(recurrent(major), tmp_path)


def test_the_reference_begins_each_run_with_the_first_state(tmp_path, load):
    path = tmp_path / "recurrent.tflite"
    answers = save_with_shapes(case := recurrent(True).case, path)
    imported = load(path)
    for _ in range(2):
        np.testing.assert_array_equal(imported.reference(case.fed)[0], answers[0])


@pytest.mark.parametrize(
    ("is_coupled", "has_peepholes", "is_projected", "major"),
    [(False, False, False, False), (True, True, False, True), (False, True, True, True)],
    ids=["of Keras", "coupled", "projected"],
)
def test_a_sequence_runs_through_an_lstm(is_coupled, has_peepholes, is_projected, major, tmp_path):
    draw, cells, size = Draw("UNIDIRECTIONAL_SEQUENCE_LSTM", 0), 4, 5
    outputs = 3 if is_projected else cells

    def weights(*shape: int) -> list[int]:
        gates = [draw.constant(floats(*shape) / 2) for _ in range(4)]
        return [-1, *gates[1:]] if is_coupled else gates

    peepholes = weights(cells)[:3] if has_peepholes else [-1] * 3
    projection = [draw.constant(floats(outputs, cells)), -1] if is_projected else [-1, -1]
    states = [draw.state((3 if major else 2, extent)) for extent in (outputs, cells)]
    given = [draw.feed(floats(2, 3, size)), *weights(cells, size), *weights(cells, outputs)]
    given += [*peepholes, *weights(cells), *projection, *states, -1, -1, -1, -1]
    fields = {"timeMajor": major, "fusedActivationFunction": 4, "cellClip": 0.4 * has_peepholes}
    options = "UnidirectionalSequenceLSTMOptions"
    draw.op(given, [draw.made("float32")], options, **fields, projClip=0.3 * is_projected)
    agrees(draw, tmp_path)


@pytest.mark.parametrize("name", ["ELU", "L2_NORMALIZATION", "RELU_0_TO_1"])
def test_bytes_are_computed_as_floats(name, tmp_path):
    draw = moved(name, octets(3, 8), given=BYTES, options="L2NormOptions" if name[0] == "L" else "")
    if name == "L2_NORMALIZATION":
        made = draw.case.tensors[draw.case.outputs[0]]
        made.scale, made.zero = 1 / 128, 0
    agrees(draw, tmp_path)


@pytest.mark.parametrize("name", ["PRELU", "BATCH_MATMUL"])
def test_two_arrays_of_bytes_are_computed_as_floats(name, tmp_path):
    draw = Draw(name, 0)
    given = [draw.feed(octets(3, 4, 4), **BYTES), draw.constant(octets(1, 4, 4), scale=0.01)]
    result = draw.made("int8")
    draw.case.tensors[result].scale = 0.1
    draw.op(given, [result], "BatchMatMulOptions" if name == "BATCH_MATMUL" else "")
    agrees(draw, tmp_path)


def test_a_float16_that_is_fed_is_dequantized(tmp_path):
    draw = Draw("DEQUANTIZE", 0)
    draw.op([draw.feed(floats(3, 4).astype(np.float16))], [draw.made("float32")])
    agrees(draw, tmp_path)
