"""List the torch operators that an untrusted program may run: those that only compute.

torch resolves the names in a file to any attribute reachable from its module (`torch.os.system`
among them), and it has operators that write files, start processes and load libraries.
"""

from __future__ import annotations

import re

_PART = r"[A-Za-z_][A-Za-z0-9_]*"
_OVERLOADED = re.compile(rf"torch\.ops\.({_PART})\.({_PART})(?:\.({_PART}))?")

# Namespaces whose operators take and return tensors and numbers. For aten and prim, see below.
_NAMESPACES = frozenset(
    (
        "prims",
        "quantized",
        "_quantized",
        "quantized_decomposed",
        "torchao",
        "sparse",
        "quantization",
    )
)
# Deliberately not among them: c10d, _c10d_functional, symm_mem, rpc (processes and the network),
# inductor, static_runtime, mkldnn, onednn, mkl (`data_ptr` and packed weights in memory), profiler,
# debugprims (`load_tensor` reads files), _test, export.

# All operators of aten whose name does not begin with "_" only compute, except these.
_NOT_OF_ATEN = {
    "_print": "prints",
    "from_file": "maps a file",
    "save": "writes a file",
    "record_stream": "is for CUDA's allocator",
    "set_": "takes memory of another tensor",
    "set_data": "takes memory of another tensor",
    "backward": "trains",
    "confirmed_by_owner": "speaks to other processes",
    "is_owner": "speaks to other processes",
    "local_value": "speaks to other processes",
    "owner": "speaks to other processes",
    "owner_name": "speaks to other processes",
    "to_here": "speaks to other processes",
    "get_gradients": "speaks to other processes",
}
# Names that begin with "_" are internal to torch and check their arguments less. These occur in
# exported programs and scripts.
_OF_ATEN = frozenset((
    "__and__", "__contains__", "__derive_index", "__getitem__", "__iand__", "__ilshift__",
    "__interpolate", "__ior__", "__irshift__", "__is__", "__isnot__", "__ixor__", "__lshift__",
    "__not__", "__or__", "__range_length", "__round_to_zero_floordiv", "__rshift__", "__upsample",
    "__upsample_bilinear", "__upsample_nearest", "__xor__", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d", "_add_relu", "_add_relu_", "_addmm_activation", "_aminmax",
    "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_batch_norm_impl_index",
    "_batch_norm_no_update", "_batch_norm_with_update", "_batch_norm_with_update_functional",
    "_cast_Byte", "_cast_Char", "_cast_Double", "_cast_Float", "_cast_Half", "_cast_Int",
    "_cast_Long", "_cast_Short", "_cdist_forward", "_choose_qparams_per_tensor", "_conj",
    "_conj_copy", "_conj_physical", "_conv_depthwise2d", "_convert_weight_to_int4pack",
    "_convert_weight_to_int4pack_for_cpu", "_convolution", "_convolution_mode", "_ctc_loss",
    "_cudnn_rnn", "_cummax_helper", "_cummin_helper", "_dim_arange", "_dimI", "_dimV",
    "_embedding_bag", "_embedding_bag_forward_only", "_empty_affine_quantized",
    "_empty_per_channel_affine_quantized", "_euclidean_dist",
    "_fake_quantize_learnable_per_channel_affine", "_fake_quantize_learnable_per_tensor_affine",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "_fft_c2c", "_fft_c2r", "_fft_r2c",
    "_functional_assert_async", "_functional_assert_scalar", "_functional_sym_constrain_range",
    "_functional_sym_constrain_range_for_size", "_fused_rms_norm",
    "_fused_moving_avg_obs_fq_helper", "_fused_moving_avg_obs_fq_helper_functional",
    "_fused_sdp_choice", "_get_tracing_state", "_grid_sampler_2d_cpu_fallback", "_grouped_mm",
    "_infer_size", "_int_mm", "_is_all_true", "_is_any_true", "_is_zerotensor",
    "_linalg_check_errors", "_linalg_det", "_linalg_eigh", "_linalg_eigvals", "_linalg_slogdet",
    "_linalg_solve_ex", "_linalg_svd", "_list_to_tensor", "_local_scalar_dense", "_log_softmax",
    "_logcumsumexp", "_lu_with_info", "_make_per_channel_quantized_tensor",
    "_make_per_tensor_quantized_tensor", "_masked_scale", "_masked_softmax",
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_native_multi_head_attention", "_ncf_unsqueeze",
    "_ncf_view", "_neg_view", "_neg_view_copy", "_nnpack_spatial_convolution", "_no_grad_fill_",
    "_no_grad_normal_", "_no_grad_uniform_", "_no_grad_zero_", "_no_grad_embedding_renorm_",
    "_pack_padded_sequence", "_pad_circular", "_pad_enum", "_pad_packed_sequence", "_pack_sequence",
    "_pdist_forward", "_prelu_kernel", "_reshape_alias", "_reshape_alias_copy", "_reshape_copy",
    "_reshape_from_tensor", "_safe_softmax", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_mm", "_set_item",
    "_shape_as_tensor", "_size_if_not_equal", "_softmax", "_stack", "_standard_gamma",
    "_tensor_to_list", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "_to_copy", "_to_cpu",
    "_to_dense", "_transform_bias_rescale_qkv", "_transformer_encoder_layer_fwd", "_trilinear",
    "_unique", "_unique2", "_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate", "_unsafe_view", "_unwrap_optional",
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_lanczos2d_aa",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "_use_cudnn_ctc_loss", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu",
    "_weight_int8pack_mm", "_weight_norm", "_weight_norm_interface", "_wrapped_linear_prepack",
    "_wrapped_quantized_linear_prepacked",
))  # fmt: skip
_OF_PRIM = frozenset((
    "Constant", "Uninitialized", "If", "Loop", "ListConstruct", "ListUnpack", "TupleConstruct",
    "TupleUnpack", "TupleIndex", "TupleSlice", "DictConstruct", "DictIndex", "StringIndex",
    "GetAttr", "SetAttr", "HasAttr", "CallMethod", "CallFunction", "CreateObject", "Function",
    "ModuleContainerIndex", "NumToTensor", "ImplicitTensorToNum", "AutogradAnyNonZero",
    "AutogradAllNonZero", "AutogradAllZero", "AutogradZero", "AutogradAdd", "ConstantChunk",
    "BroadcastSizes", "ReductionSizes", "RaiseException", "EnumName", "EnumValue", "IfThenElse",
    "Enter", "Exit", "Return", "Param", "Store", "Load", "abs", "data", "device", "dtype", "grad",
    "id", "index", "is_cpu", "is_cuda", "is_ipu", "is_maia", "is_meta", "is_mkldnn", "is_mps",
    "is_mtia", "is_nested", "is_quantized", "is_sparse", "is_sparse_csr", "is_vulkan", "is_xla",
    "is_xpu", "isinstance", "itemsize", "layout", "max", "min", "name", "nbytes", "rangelist",
    "requires_grad", "tolist", "type", "unchecked_cast", "unchecked_unwrap_optional",
    "unchecked_optional", "annotate", "is_contiguous", "shape", "fork", "awaitable",
    "awaitable_nowait", "awaitable_wait", "VarConcat", "VarStack", "Closure",
))  # fmt: skip
_OF_PYTHON = frozenset((
    "eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "floordiv", "mod", "pow",
    "truediv", "and_", "or_", "xor", "not_", "invert", "lshift", "rshift", "getitem", "iadd",
    "imul",
))  # fmt: skip
_OF_MATH = frozenset((
    "trunc", "floor", "ceil", "sqrt", "log", "log2", "exp", "sin", "cos", "tan",
))  # fmt: skip
_OF_TORCH = re.compile(
    r"sym_(?:not|int|float|ite|max|min|sqrt|sum|fresh_size)|_sym_(?:sqrt|cos|cosh|sin|sinh|tan|tanh|asin|acos|atan|log2)"
)
_HIGHER_ORDER = frozenset((
    "cond", "map", "map_impl", "while_loop", "scan", "associative_scan",
    "wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph", "flex_attention",
    "strict_mode", "tag_activation_checkpoint", "wrap_activation_checkpoint", "auto_functionalized",
    "auto_functionalized_v2",
))  # fmt: skip


def is_allowed(namespace: str, name: str) -> bool:
    """Return whether the operator namespace::name computes and does nothing else."""
    if namespace == "aten":
        return name in _OF_ATEN if name.startswith("_") else name not in _NOT_OF_ATEN
    if namespace == "prim":
        return name in _OF_PRIM
    return namespace in _NAMESPACES


def is_allowed_target(target: str) -> bool:
    """Return whether the target of an exported program's node is an operator that only computes.

    The forms: torch.ops.aten.relu.default, torch.ops.higher_order.cond, _operator.mul, math.trunc,
    torch.sym_max.
    """
    if found := _OVERLOADED.fullmatch(target):
        namespace, name, overload = found.groups()
        if namespace == "higher_order":
            return overload is None and name in _HIGHER_ORDER
        return (
            overload is not None and is_allowed(namespace, name) and not overload.startswith("__")
        )
    module, _, name = target.rpartition(".")
    if module in ("_operator", "operator"):
        return name in _OF_PYTHON
    if module == "math":
        return name in _OF_MATH
    return (
        module in ("torch", "torch.fx.experimental.symbolic_shapes")
        and _OF_TORCH.fullmatch(name) is not None
    )


def refusal_reason(namespace: str, name: str) -> str:
    """Return the reason why an operator of aten is not allowed, as text; "" for other operators."""
    return _NOT_OF_ATEN.get(name, "") if namespace == "aten" else ""
