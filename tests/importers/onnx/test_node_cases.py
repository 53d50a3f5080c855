"""A sample of the node tests that ship with onnx, a class of operators each; tools/node-tests runs
all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))
import node_cases

SAMPLE = (
    *(
        "test_add_bcast",
        "test_nonmaxsuppression_two_classes",
        "test_nonzero_example",
        "test_rotary_embedding_3d_input",
        "test_and2d",
        "test_argmax_keepdims_example",
        "test_averagepool_2d_same_upper",
        "test_batchnorm_example",
    ),
    *(
        "test_cast_FLOAT_to_DOUBLE",
        "test_concat_2d_axis_1",
        "test_conv_with_autopad_same",
        "test_gather_negative_indices",
    ),
    *(
        "test_bitcast_float32_to_int32",
        "test_bitcast_bool_to_uint8",
        "test_celu",
        "test_convtranspose_output_shape",
        "test_cumprod_1d_reverse_exclusive",
        "test_cumprod_2d_axis_1",
        "test_dft_axis",
        "test_l2normalization_axis_1",
    ),
    *(
        "test_pow_types_float32_int64",
        "test_reversesequence_batch",
        "test_dft_inverse",
        "test_dft_irfft",
        "test_stft",
        "test_stft_with_window",
    ),
    *(
        "test_onehot_with_negative_axis",
        "test_onehot_negative_indices",
        "test_eyelike_with_dtype",
        "test_shape_start_1",
    ),
    *("test_col2im_strides", "test_col2im_pads", "test_col2im_dilations", "test_col2im_5d"),
    *(
        "test_affine_grid_2d",
        "test_affine_grid_3d_align_corners",
        "test_upsample_nearest",
        "test_resize_tf_crop_and_resize_axes_3_2",
    ),
    *("test_qlinearmatmul_2D_uint8_float16", "test_resize_upsample_sizes_nearest_axes_2_3"),
    *(
        "test_gemm_alpha",
        "test_gru_seq_length",
        "test_isinf_negative",
        "test_layer_normalization_2d_axis1",
        "test_logsoftmax_axis_1",
    ),
    *(
        "test_lstm_with_peepholes",
        "test_matmul_3d",
        "test_maxpool_2d_dilations",
        "test_pow_bcast_array",
    ),
    *(
        "test_reduce_max_keepdims_example",
        "test_reshape_reordered_all_dims",
        "test_slice_neg",
        "test_split_equal_parts_2d_opset13",
        "test_top_k",
        "test_where_example",
    ),
)
REFUSED = (
    "test_unique_sorted_without_axis",
    "test_mod_float_edge_cases_fmod_0_float32",
    "test_loop11",
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, node_cases.Case]:
    return {case.name: case for case in node_cases.cases(tmp_path_factory.mktemp("cases"))}


def test_a_sample_of_every_class_of_operators_is_right(cases, tmp_path):
    with node_cases.runner(False, tmp_path) as run_on:
        for name in SAMPLE:
            node_cases.check(cases[name], run_on)  # raises for a wrong answer and for a refusal


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_before_it_runs(name, cases, tmp_path):
    with node_cases.runner(False, tmp_path) as run_on, pytest.raises(node_cases.FarmError) as error:
        node_cases.check(cases[name], run_on)
    assert error.value.exit_code == 3
