"""List the torch operators that an untrusted program may run: those that only compute.

torch resolves the names in a file to any attribute reachable from its module (`torch.os.system`
among them), and it has operators that write files, start processes and load libraries.
"""

from __future__ import annotations

import re
from pathlib import Path

from farm.errors import ModelError

_PART = r"[A-Za-z_][A-Za-z0-9_]*"
_OVERLOADED = re.compile(rf"torch\.ops\.({_PART})\.({_PART})(?:\.({_PART}))?")

# Operators of quantized models that torch's export to ONNX takes, and that pack weights.
_OF_QUANTIZED = frozenset((
    "add", "add_relu", "cat", "conv1d", "conv1d_relu", "conv2d", "conv2d_relu", "conv3d",
    "conv3d_relu", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "hardswish",
    "leaky_relu", "linear", "linear_relu", "mul", "sigmoid", "conv1d_prepack", "conv2d_prepack",
    "conv3d_prepack", "conv_transpose1d_prepack", "conv_transpose2d_prepack",
    "conv_transpose3d_prepack", "linear_prepack", "conv1d_unpack", "conv2d_unpack",
    "conv3d_unpack", "conv_transpose1d_unpack", "conv_transpose2d_unpack",
    "conv_transpose3d_unpack", "linear_unpack", "linear_prepack_fp16", "linear_unpack_fp16",
))  # fmt: skip
_OF_QUANTIZED_DECOMPOSED = frozenset((
    "quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel",
    "dequantize_per_channel",
))  # fmt: skip
# What TVM's importer, farm's converters, torch's decompositions or its export to ONNX take, what
# scripts do with numbers, texts and lists, and what computes element by element. Each of these
# checks its arguments, or `checked_arguments` does. An operator that is not here is refused:
# among them are those that train (`*_backward`), that make sparse and nested tensors, and that
# trust their indices and strides (`_reshape_alias`, `segment_reduce`, `ctc_loss`, `lu_solve`).
_OF_ATEN = frozenset((
    "Bool", "Complex", "ComplexImplicit", "Delete", "Float", "FloatImplicit", "Int", "IntImplicit",
    "ScalarImplicit", "Size", "__and__", "__contains__", "__derive_index", "__getitem__",
    "__iand__", "__ilshift__", "__interpolate", "__ior__", "__irshift__", "__is__", "__isnot__",
    "__ixor__", "__lshift__", "__not__", "__or__", "__range_length", "__round_to_zero_floordiv",
    "__rshift__", "__upsample", "__upsample_bilinear", "__upsample_nearest", "__xor__",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_aminmax", "_assert_async", "_assert_scalar",
    "_assert_tensor_metadata", "_cast_Byte", "_cast_Char", "_cast_Double", "_cast_Float",
    "_cast_Half", "_cast_Int", "_cast_Long", "_cast_Short", "_cdist_forward", "_conj", "_conj_copy",
    "_conj_physical", "_convolution", "_convolution_mode", "_dimI", "_dimV", "_dim_arange",
    "_embedding_bag", "_embedding_bag_forward_only", "_euclidean_dist", "_functional_assert_async",
    "_functional_assert_scalar", "_functional_sym_constrain_range",
    "_functional_sym_constrain_range_for_size", "_fused_rms_norm", "_get_tracing_state",
    "_infer_size", "_is_all_true", "_is_any_true", "_is_zerotensor", "_linalg_check_errors",
    "_linalg_det", "_linalg_eigh", "_linalg_eigvals", "_linalg_slogdet", "_linalg_solve_ex",
    "_linalg_svd", "_list_to_tensor", "_local_scalar_dense", "_log_softmax", "_logcumsumexp",
    "_masked_softmax", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "_native_multi_head_attention", "_ncf_unsqueeze",
    "_ncf_view", "_neg_view", "_neg_view_copy", "_no_grad_fill_", "_no_grad_normal_",
    "_no_grad_uniform_", "_no_grad_zero_", "_pack_padded_sequence", "_pack_sequence",
    "_pad_circular", "_pad_enum", "_pad_packed_sequence", "_pdist_forward", "_prelu_kernel",
    "_reshape_copy", "_safe_softmax", "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention_for_cpu", "_set_item", "_shape_as_tensor",
    "_size_if_not_equal", "_softmax", "_stack", "_standard_gamma", "_tensor_to_list", "_to_copy",
    "_to_cpu", "_to_dense", "_transformer_encoder_layer_fwd", "_trilinear", "_unique", "_unique2",
    "_unsafe_index", "_unsafe_index_put", "_unsafe_view", "_unwrap_optional",
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_lanczos2d_aa",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "_weight_norm", "_weight_norm_interface", "abs", "abs_", "absolute", "absolute_", "acos",
    "acos_", "acosh", "acosh_", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "add", "add_", "addbmm",
    "addbmm_", "addcdiv", "addcdiv_", "addcmul", "addcmul_", "addmm", "addmm_", "addmv", "addmv_",
    "addr", "addr_", "adjoint", "affine_grid_generator", "alias", "alias_copy", "all", "allclose",
    "alpha_dropout", "alpha_dropout_", "amax", "amin", "aminmax", "angle", "any", "append",
    "arange", "arccos", "arccos_", "arccosh", "arccosh_", "arcsin", "arcsin_", "arcsinh",
    "arcsinh_", "arctan", "arctan2", "arctan2_", "arctan_", "arctanh", "arctanh_", "argmax",
    "argmin", "argsort", "argwhere", "as_strided", "as_strided_", "as_tensor", "asin", "asin_",
    "asinh", "asinh_", "atan", "atan2", "atan2_", "atan_", "atanh", "atanh_", "atleast_1d",
    "atleast_2d", "atleast_3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "baddbmm", "baddbmm_",
    "bartlett_window", "batch_norm", "bernoulli", "bernoulli_", "bilinear", "bin",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "bincount", "bitwise_and",
    "bitwise_and_", "bitwise_left_shift", "bitwise_left_shift_", "bitwise_not", "bitwise_not_",
    "bitwise_or", "bitwise_or_", "bitwise_right_shift", "bitwise_right_shift_", "bitwise_xor",
    "bitwise_xor_", "blackman_window", "block_diag", "bmm", "broadcast_shapes", "broadcast_tensors",
    "broadcast_to", "bucketize", "can_cast", "capitalize", "cartesian_prod", "cat", "cdist", "ceil",
    "ceil_", "celu", "celu_", "center", "chain_matmul", "chalf", "channel_shuffle", "cholesky",
    "cholesky_inverse", "cholesky_solve", "chr", "chunk", "clamp", "clamp_", "clamp_max",
    "clamp_max_", "clamp_min", "clamp_min_", "clear", "clip", "clip_", "clone", "col2im",
    "column_stack", "combinations", "complex", "concat", "concatenate", "conj", "conj_physical",
    "conj_physical_", "constant_pad_nd", "contiguous", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "copy", "copy_",
    "copysign", "copysign_", "corrcoef", "cos", "cos_", "cosh", "cosh_", "cosine_embedding_loss",
    "cosine_similarity", "count", "count_nonzero", "cov", "cpu", "cross", "cross_entropy_loss",
    "cuda", "cummax", "cummin", "cumprod", "cumprod_", "cumsum", "cumsum_", "cumulative_trapezoid",
    "data", "deg2rad", "deg2rad_", "degrees", "dequantize", "det", "detach", "detach_",
    "detach_copy", "device", "diag", "diag_embed", "diagflat", "diagonal", "diagonal_copy",
    "diagonal_scatter", "dict", "diff", "digamma", "digamma_", "dim", "dist", "div", "div_",
    "divide", "divide_", "divmod", "dot", "dropout", "dropout_", "dsplit", "dstack", "einsum",
    "element_size", "elu", "elu_", "embedding", "embedding_bag", "empty", "empty_like",
    "empty_permuted", "endswith", "eq", "eq_", "equal", "erf", "erf_", "erfc", "erfc_", "erfinv",
    "erfinv_", "exp", "exp2", "exp2_", "exp_", "expand", "expand_as", "expand_copy", "expandtabs",
    "expm1", "expm1_", "exponential", "exponential_", "extend", "eye", "fabs", "factorial",
    "fake_quantize_per_channel_affine", "fake_quantize_per_tensor_affine", "feature_alpha_dropout",
    "feature_alpha_dropout_", "feature_dropout", "feature_dropout_", "fft_fft", "fft_fft2",
    "fft_fftfreq", "fft_fftn", "fft_fftshift", "fft_hfft", "fft_hfft2", "fft_hfftn", "fft_ifft",
    "fft_ifft2", "fft_ifftn", "fft_ifftshift", "fft_ihfft", "fft_ihfft2", "fft_ihfftn", "fft_irfft",
    "fft_irfft2", "fft_irfftn", "fft_rfft", "fft_rfft2", "fft_rfftfreq", "fft_rfftn", "fill",
    "fill_", "fill_diagonal_", "find", "fix", "fix_", "flatten", "flip", "fliplr", "flipud",
    "float_power", "float_power_", "floor", "floor_", "floor_divide", "floor_divide_", "floordiv",
    "fmax", "fmin", "fmod", "fmod_", "format", "frac", "frac_", "frexp", "frobenius_norm", "full",
    "full_like", "gamma", "gather", "gcd", "gcd_", "ge", "ge_", "gelu", "gelu_", "ger", "get",
    "get_device", "glu", "gradient", "greater", "greater_", "greater_equal", "greater_equal_",
    "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "group_norm", "gru", "gru_cell", "gt",
    "gt_", "hamming_window", "hann_window", "hardshrink", "hardsigmoid", "hardsigmoid_",
    "hardswish", "hardswish_", "hardtanh", "hardtanh_", "has_torch_function", "hash", "heaviside",
    "heaviside_", "hex", "hinge_embedding_loss", "histc", "hsplit", "hstack", "huber_loss", "hypot",
    "hypot_", "i0", "i0_", "igamma", "igamma_", "igammac", "igammac_", "im2col", "imag", "index",
    "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_",
    "index_put", "index_put_", "index_reduce", "index_reduce_", "index_select", "inner", "insert",
    "instance_norm", "int_repr", "inverse", "is_autocast_cpu_enabled", "is_autocast_enabled",
    "is_complex", "is_conj", "is_contiguous", "is_floating_point", "is_grad_enabled",
    "is_inference", "is_leaf", "is_neg", "is_nonzero", "is_pinned", "is_same_size", "is_scripting",
    "is_signed", "is_vulkan_available", "isalnum", "isalpha", "isclose", "isdecimal", "isdigit",
    "isfinite", "isidentifier", "isin", "isinf", "islower", "isnan", "isneginf", "isnumeric",
    "isposinf", "isprintable", "isreal", "isspace", "istft", "istitle", "isupper", "item", "items",
    "join", "kaiser_window", "keys", "kl_div", "kron", "kthvalue", "l1_loss", "layer_norm", "lcm",
    "lcm_", "ldexp", "ldexp_", "le", "le_", "leaky_relu", "leaky_relu_", "len", "lerp", "lerp_",
    "less", "less_", "less_equal", "less_equal_", "lgamma", "lgamma_", "lift", "lift_fresh",
    "lift_fresh_copy", "linalg_cholesky", "linalg_cholesky_ex", "linalg_cond", "linalg_cross",
    "linalg_det", "linalg_diagonal", "linalg_eig", "linalg_eigh", "linalg_eigvals",
    "linalg_eigvalsh", "linalg_inv", "linalg_inv_ex", "linalg_lstsq", "linalg_lu",
    "linalg_lu_factor", "linalg_lu_factor_ex", "linalg_matmul", "linalg_matrix_exp",
    "linalg_matrix_norm", "linalg_matrix_power", "linalg_matrix_rank", "linalg_multi_dot",
    "linalg_norm", "linalg_pinv", "linalg_qr", "linalg_slogdet", "linalg_solve", "linalg_solve_ex",
    "linalg_solve_triangular", "linalg_svd", "linalg_svdvals", "linalg_tensorinv",
    "linalg_tensorsolve", "linalg_vander", "linalg_vecdot", "linalg_vector_norm", "linear",
    "linspace", "list", "ljust", "log", "log10", "log10_", "log1p", "log1p_", "log2", "log2_",
    "log_", "log_sigmoid", "log_sigmoid_forward", "log_softmax", "logaddexp", "logaddexp2",
    "logcumsumexp", "logdet", "logical_and", "logical_and_", "logical_not", "logical_not_",
    "logical_or", "logical_or_", "logical_xor", "logical_xor_", "logit", "logit_", "logspace",
    "logsumexp", "lower", "lstm", "lstm_cell", "lstrip", "lt", "lt_", "mH", "mT",
    "margin_ranking_loss", "masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_",
    "masked_select", "mathremainder", "matmul", "matrix_H", "matrix_exp", "matrix_power", "max",
    "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices", "max_pool3d",
    "max_pool3d_with_indices", "max_unpool2d", "max_unpool3d", "maximum", "mean", "median",
    "meshgrid", "min", "minimum", "mish", "mish_", "mm", "mode", "modf", "moveaxis", "movedim",
    "mse_loss", "msort", "mul", "mul_", "multinomial", "multiply", "multiply_", "mv", "mvlgamma",
    "mvlgamma_", "nan_to_num", "nan_to_num_", "nanmean", "nanmedian", "nanquantile", "nansum",
    "narrow", "narrow_copy", "native_batch_norm", "native_channel_shuffle", "native_dropout",
    "native_group_norm", "native_layer_norm", "ne", "ne_", "neg", "neg_", "negative", "negative_",
    "new_empty", "new_full", "new_ones", "new_zeros", "nextafter", "nextafter_", "nll_loss",
    "nll_loss2d", "nll_loss2d_forward", "nll_loss_forward", "nll_loss_nd", "nonzero",
    "nonzero_numpy", "norm", "norm_except_dim", "normal", "normal_", "not_equal", "not_equal_",
    "nuclear_norm", "numel", "numpy_T", "oct", "one_hot", "ones", "ones_like", "ord", "outer",
    "pad", "pad_sequence", "pairwise_distance", "partition", "pdist", "percentFormat", "permute",
    "permute_copy", "pin_memory", "pinverse", "pixel_shuffle", "pixel_unshuffle", "poisson",
    "poisson_nll_loss", "polar", "polygamma", "polygamma_", "pop", "popitem", "positive", "pow",
    "pow_", "prelu", "prod", "promote_types", "put", "put_", "q_per_channel_axis",
    "q_per_channel_scales", "q_per_channel_zero_points", "q_scale", "q_zero_point", "qr", "qscheme",
    "quantile", "quantize_per_channel", "quantize_per_tensor", "quantize_per_tensor_dynamic",
    "rad2deg", "rad2deg_", "radians", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "random", "random_", "randperm", "range", "ravel", "real", "reciprocal",
    "reciprocal_", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "relu", "relu6",
    "relu6_", "relu_", "remainder", "remainder_", "remove", "renorm", "renorm_", "repeat",
    "repeat_interleave", "replace", "replication_pad1d", "replication_pad2d", "replication_pad3d",
    "requires_grad_", "reshape", "reshape_as", "resolve_conj", "resolve_neg", "result_type",
    "reverse", "rfind", "rindex", "rjust", "rms_norm", "rnn_relu", "rnn_relu_cell", "rnn_tanh",
    "rnn_tanh_cell", "roll", "rot90", "round", "round_", "row_stack", "rpartition", "rrelu",
    "rrelu_", "rsplit", "rsqrt", "rsqrt_", "rstrip", "rsub", "scalar_tensor",
    "scaled_dot_product_attention", "scatter", "scatter_", "scatter_add", "scatter_add_",
    "scatter_reduce", "scatter_reduce_", "searchsorted", "select", "select_copy", "select_scatter",
    "selu", "selu_", "set_grad_enabled", "setdefault", "sgn", "sgn_", "sigmoid", "sigmoid_", "sign",
    "sign_", "signbit", "silu", "silu_", "sin", "sin_", "sinc", "sinc_", "sinh", "sinh_", "size",
    "slice", "slice_copy", "slice_scatter", "slogdet", "slow_conv3d", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softplus", "softshrink", "sort", "sorted", "special_airy_ai",
    "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
    "special_digamma", "special_entr", "special_erf", "special_erfc", "special_erfcx",
    "special_erfinv", "special_exp2", "special_expit", "special_expm1", "special_gammainc",
    "special_gammaincc", "special_gammaln", "special_i0", "special_i0e", "special_i1",
    "special_i1e", "special_log1p", "special_log_ndtr", "special_log_softmax", "special_logit",
    "special_logsumexp", "special_modified_bessel_i0", "special_modified_bessel_i1",
    "special_modified_bessel_k0", "special_modified_bessel_k1", "special_multigammaln",
    "special_ndtr", "special_ndtri", "special_polygamma", "special_psi", "special_round",
    "special_sinc", "special_softmax", "special_xlog1py", "special_xlogy", "special_zeta", "split",
    "split_copy", "split_with_sizes", "split_with_sizes_copy", "splitlines", "sqrt", "sqrt_",
    "square", "square_", "squeeze", "squeeze_", "squeeze_copy", "stack", "startswith", "std",
    "std_mean", "stft", "storage_offset", "str", "stride", "strip", "sub", "sub_", "subtract",
    "subtract_", "sum", "sum_to_size", "svd", "swapaxes", "swapaxes_", "swapcase", "swapdims",
    "swapdims_", "sym_constrain_range", "sym_constrain_range_for_size", "sym_is_contiguous",
    "sym_numel", "sym_size", "sym_storage_offset", "sym_stride", "t", "t_", "t_copy", "take",
    "take_along_dim", "tan", "tan_", "tanh", "tanh_", "tensor", "tensor_split", "tensordot",
    "threshold", "threshold_", "tile", "title", "to", "to_dense", "topk", "trace", "transpose",
    "transpose_", "transpose_copy", "trapezoid", "trapz", "tril", "tril_", "tril_indices",
    "triplet_margin_loss", "triu", "triu_", "triu_indices", "true_divide", "true_divide_", "trunc",
    "trunc_", "type_as", "unbind", "unbind_copy", "unflatten", "unfold", "unfold_copy", "uniform",
    "uniform_", "unique_consecutive", "unique_dim", "unique_dim_consecutive", "unsafe_chunk",
    "unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "unsqueeze_", "unsqueeze_copy",
    "update", "upper", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d",
    "values", "vander", "var", "var_mean", "vdot", "view", "view_as", "view_as_complex",
    "view_as_complex_copy", "view_as_real", "view_as_real_copy", "view_copy", "vsplit", "vstack",
    "wait", "warn", "where", "xlogy", "xlogy_", "zero", "zero_", "zeros", "zeros_like", "zfill",
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


_OF_NAMESPACES = {
    "aten": _OF_ATEN,
    "prim": _OF_PRIM,
    "quantized": _OF_QUANTIZED,
    "quantized_decomposed": _OF_QUANTIZED_DECOMPOSED,
    "torchao": _OF_QUANTIZED_DECOMPOSED,
    "transformers": frozenset({"grouped_mm_fallback"}),  # registered by converters.experts
}


# Packages whose operators are common in exported models. They compute, but farm loads no packages.
_PACKAGES = frozenset(("torchvision", "torchaudio"))


class OperatorOfPackage(Exception):
    """An operator that a package defines, which farm does not load."""

    def __init__(self, package: str, operator: str) -> None:
        super().__init__(f"{package}::{operator}")
        self.package = package

    def as_model_error(self, path: Path, place: str) -> ModelError:
        """Return the ModelError for the file `path`, which has the operator at `place`."""
        fix = (
            "end the module before it and do that step outside, or export the module to ONNX "
            "(torch.onnx.export), which has operators in the place of some of these"
        )
        return ModelError(
            f"{path} uses an operator of {self.package}, which farm does not load",
            f"{place}: it calls {self}; farm has torch's own operators only",
            fix,
        )


class OperatorOfNestedTensors(OperatorOfPackage):
    """An operator on nested tensors, which a fused encoder makes of a mask of padding."""

    def as_model_error(self, path: Path, place: str) -> ModelError:
        """Return the ModelError for the file `path`, which has the operator at `place`."""
        return ModelError(
            f"{path} has nested tensors, for which farm has no code",
            f"{place}: {self}, of an encoder that torch runs fused",
            "call torch.backends.mha.set_fastpath_enabled(False) before torch.jit.trace, or save "
            "an exported program (torch.export.save)",
        )


def check_not_of_nested_tensors(name: str) -> None:
    """Raise OperatorOfNestedTensors for an operator of aten that makes or reads nested tensors."""
    if name.startswith("_nested_") or name == "to_padded_tensor":
        raise OperatorOfNestedTensors("aten", name)


def check_not_of_package(namespace: str, name: str) -> None:
    """Raise OperatorOfPackage if a package is known to define the operator namespace::name."""
    if namespace in _PACKAGES:
        raise OperatorOfPackage(namespace, name)


def check_target_not_of_package(target: str) -> None:
    """Raise OperatorOfPackage if a package is known to define the target of a program's node."""
    if found := _OVERLOADED.fullmatch(target):
        check_not_of_package(found.group(1), found.group(2))


def is_allowed(namespace: str, name: str) -> bool:
    """Return whether the operator namespace::name computes and does nothing else."""
    return name in _OF_NAMESPACES.get(namespace, ())


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
