"""Check the arguments of torch's operators that trust them, while a file's program runs.

Some operators that exported programs and scripts need read or write beyond their tensors if the
arguments do not fit each other: torch checks them in the function that calls the operator. A
program can call the operator itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

Given = Mapping[str, Any]
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Operators over packed sequences: recurrent layers, and what makes padded tensors of the result.
_OF_PACKED = ("gru.data", "lstm.data", "rnn_relu.data", "rnn_tanh.data", "_pad_packed_sequence")


class CheckedArguments(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """While it is entered, operators raise ValueError instead of leaving their tensors.

    `last_error` is what the last operator that raised one said: torch's interpreter of scripts
    drops the message.
    """

    last_error = ""

    def __enter__(self) -> CheckedArguments:
        """Check arguments from now on."""
        _check_composite_operators()
        entered: CheckedArguments = super().__enter__()
        return entered

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Given | None = None
    ) -> Any:
        """Run an operator if its arguments fit."""
        if why := _misfit(func, args, kwargs or {}):
            self.last_error = why
            raise ValueError(why)
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.last_error = str(error).partition("\n")[0]
            raise


def _misfit(operator: Any, args: tuple[Any, ...], kwargs: Given) -> str:
    """Return why an operator is not run; "" if its arguments fit."""
    schema = operator._schema
    if (check := _CHECKS.get(schema.name)) is None:
        return ""
    given = {one.name: one.default_value for one in schema.arguments}
    given |= dict(zip(given, args, strict=False)) | dict(kwargs)
    return "" if check(given) else f"the arguments of {schema.name} do not fit each other"


@cache
def _check_composite_operators() -> torch.library.Library:
    """Check the arguments of operators that a dispatch mode is not asked for, in this process.

    They read the memory of a tensor before the operators that they consist of run, and torch asks
    a dispatch mode for those alone. The check lasts as long as the library that is returned.
    """
    library = torch.library.Library("aten", "IMPL")
    for name in _OF_PACKED:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        for key in ("CPU", "AutogradCPU"):
            library.impl(name, _checked_composite(operator), key)
    return library


def _checked_composite(operator: Any) -> Callable[..., Any]:
    """Return an operator that consists of others, run if its arguments fit."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if why := _misfit(operator, args, kwargs):
            for mode in _get_current_dispatch_mode_stack():
                if isinstance(mode, CheckedArguments):
                    mode.last_error = why
            raise ValueError(why)
        return operator._op_dk(_COMPOSITE, *args, **kwargs)

    return run


def _normalization_fits(given: Given) -> bool:
    """Return whether the arguments of a batch normalization have a number for each channel."""
    data = given["input"]
    tensors = [
        given[name]
        for name in ("weight", "bias", "running_mean", "running_var")
        if given.get(name) is not None
    ]
    of_batch = given.get("training") or given.get("running_mean") is not None
    return (
        data.dim() >= 2
        and all(one.dim() == 1 and one.numel() == data.shape[1] for one in tensors)
        and bool(of_batch)
    )


def _bags_fit(given: Given) -> bool:
    """Return whether bags of an embedding lie in the list of rows, and the rows in the table."""
    table, rows, offsets = (given[name] for name in ("weight", "indices", "offsets"))
    factors = given["per_sample_weights"]
    if (
        table.dim() != 2
        or rows.dim() != 1
        or offsets.dim() != 1
        or not (table.is_contiguous() and rows.is_contiguous() and offsets.is_contiguous())
        or (factors is not None and (factors.shape != rows.shape or not factors.is_contiguous()))
    ):
        return False
    return _is_within(rows, 0, table.shape[0] - 1) and (
        not offsets.numel()
        or (
            int(offsets[0]) == 0
            and _is_within(offsets, 0, rows.numel())
            and bool((offsets[1:] >= offsets[:-1]).all())
        )
    )


def _is_within(values: torch.Tensor, least: int, most: int) -> bool:
    """Return whether all values lie between two numbers, these included."""
    return not values.numel() or (int(values.min()) >= least and int(values.max()) <= most)


def _weight_norm_fits(given: Given) -> bool:
    """Return whether there is a norm for each slice of the weights."""
    weights, norms, axis = given["v"], given["g"], given["dim"]
    return (
        axis in (0, weights.dim() - 1)
        and norms.numel() == weights.shape[axis]
        and weights.is_contiguous()
        and norms.is_contiguous()
    )


def _attention_fits(given: Given) -> bool:
    """Return whether query, key, value and mask have the shapes of one attention."""
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if any(
        one.dim() != 4 or (one.shape[3] > 1 and one.stride(3) != 1) for one in (query, key, value)
    ):
        return False
    wanted = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    mask = given["attn_mask"]
    of_queries, of_keys = query.shape[1], key.shape[1]
    return (
        query.shape[0] == key.shape[0]
        and key.shape[:2] == value.shape[:2]
        and of_keys > 0
        and of_queries % of_keys == 0  # several heads of queries may share a head of keys
        and key.shape[2] == value.shape[2]
        and key.shape[3] == query.shape[3] == value.shape[3]
        and (
            mask is None
            or (
                mask.dim() in (2, 4)
                and all(
                    have in (1, want)
                    for have, want in zip(mask.shape, wanted[-mask.dim() :], strict=True)
                )
            )
        )
    )


def _recurrent_layer_fits(given: Given) -> bool:
    """Return whether weights and states of an LSTM have the sizes of the layer."""
    data, hidden = given["input"], given["hidden_size"]
    weights, recurrent, *biases = (given[f"weight{place}"] for place in range(4))
    if data.dim() != 3 or hidden < 1 or weights.dim() != 2:
        return False
    rows, states = weights.shape[0], (given["hx_"], given["cx_"])
    return (
        given["mode"] == 2  # LSTM; the only one that torch gives to oneDNN
        and rows == 4 * hidden
        and weights.shape[1] == data.shape[2]
        and recurrent.shape == (rows, hidden)
        and all(bias.shape == (rows,) for bias in biases if given["has_biases"])
        and all(state.numel() == data.shape[1] * hidden for state in states)
        and not given["batch_sizes"]
    )


def _packed_sequence_fits(given: Given) -> bool:
    """Return whether the list of a packed sequence says how many sequences there are at each step.

    These are numbers from 1 on that do not grow. Other overloads have no such list.
    """
    sizes = given.get("batch_sizes")
    if sizes is None or isinstance(sizes, (FakeTensor, FunctionalTensor)):  # without memory
        return True
    return (
        sizes.dim() == 1
        and sizes.numel() > 0
        and sizes.dtype == torch.int64
        and sizes.device.type == "cpu"
        and sizes.is_contiguous()
        and int(sizes.min()) > 0
        and bool((sizes[1:] <= sizes[:-1]).all())
    )


def _lies_apart(given: Given) -> bool:
    """Return whether the elements of a tensor have memory of their own: those of expand do not."""
    data = given["self"]
    return all(
        stride or extent < 2 for extent, stride in zip(data.shape, data.stride(), strict=True)
    )


def _scales_fit(given: Given) -> bool:
    """Return whether the factors of an enlargement, if any, are those of its output."""
    data, size = given["self"], given["output_size"]
    factors = (given["scales_h"], given["scales_w"])
    return data.dim() == 4 and all(
        factor is None or (math.isfinite(factor) and -1e-3 <= factor * before - after < 1 + 1e-3)
        for factor, before, after in zip(factors, data.shape[2:], size, strict=True)
    )


def _scales_fit_if_quantized(given: Given) -> bool:
    """Return whether the factors of an enlargement fit, where the data are quantized.

    torch trusts them there alone.
    """
    return not given["self"].is_quantized or _scales_fit(given)


_CHECKS: dict[str, Callable[[Given], bool]] = {
    **dict.fromkeys(
        (
            "aten::native_batch_norm",
            "aten::_native_batch_norm_legit",
            "aten::_native_batch_norm_legit_functional",
            "aten::_native_batch_norm_legit_no_training",
        ),
        _normalization_fits,
    ),
    "aten::mkldnn_rnn_layer": _recurrent_layer_fits,
    **dict.fromkeys(
        (f"aten::{name.partition('.')[0]}" for name in _OF_PACKED), _packed_sequence_fits
    ),
    "aten::median": _lies_apart,
    "aten::nanmedian": _lies_apart,
    "aten::_embedding_bag": _bags_fit,
    "aten::_embedding_bag_forward_only": _bags_fit,
    "aten::_weight_norm_interface": _weight_norm_fits,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention_fits,
    "aten::upsample_bilinear2d": _scales_fit_if_quantized,
    "aten::_upsample_bilinear2d_aa": _scales_fit,
    "aten::_upsample_bicubic2d_aa": _scales_fit,
    "aten::_upsample_lanczos2d_aa": _scales_fit,
}
