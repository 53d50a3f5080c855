"""Operators of torch programs that TVM 0.27's importer has no converter for, as torch documents them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import relax

_PRODUCTS = ("mm.default", "bmm.default", "addmm.default", "baddbmm.default", "matmul.default", "linear.default", "convolution.default")
Converter = Callable[[Any, Any], Any]  # (node, importer) -> what the node is


def decompositions() -> dict[Any, Callable[..., torch.Tensor]]:
    """For torch's table of decompositions: what torch runs in one piece where no gradients are wanted, as a trace records it."""
    return {torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer}


def converters() -> dict[str, Converter]:
    """What `from_exported_program` takes as `custom_convert_map`."""
    return {
        "amax.default": lambda node, importer: _extreme(relax.op.max, node, importer),
        "amin.default": lambda node, importer: _extreme(relax.op.min, node, importer),
        "min.dim": _min_dim,
        "prod.dim_int": _prod_dim,
        "any.default": _any,
        "div.Scalar_mode": _div,
        "div.Tensor_mode": _div,
        "scatter_add.default": _scatter_add,
        **{name: _in_single(name) for name in _PRODUCTS},
        **{f"reflection_pad{count}d.default": _pad("reflect") for count in (1, 2, 3)},
        **{f"replication_pad{count}d.default": _pad("replicate") for count in (1, 2, 3)},
    }


def _in_single(name: str) -> Converter:
    """TVM's converters of products write float32 whatever they read. In half precision, that is what they read, and is rounded after:
    as torch adds up on a CPU."""

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        theirs, emit = importer.create_convert_map()[name], importer.block_builder.emit
        if node.meta["val"].dtype != torch.float16:
            return theirs(node)
        kept = {one: importer.env[one] for one in node.all_input_nodes if one.meta["val"].dtype == torch.float16}
        importer.env.update({one: emit(relax.op.astype(value, "float32")) for one, value in kept.items()})
        try:
            return emit(relax.op.astype(theirs(node), "float16"))
        finally:
            importer.env.update(kept)

    return convert


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> torch.Tensor:
    """torch.nn.TransformerEncoderLayer in evaluation, by its parts. `rest`: weights and biases of two norms and two products; a mask."""
    norms, products, mask = (rest[0:2], rest[2:4]), (rest[4:6], rest[6:8]), rest[8] if len(rest) > 8 else None
    if mask is not None:
        raise NotImplementedError("a traced transformer layer with a mask; trace it with torch.backends.mha.set_fastpath_enabled(False)")
    functional = torch.nn.functional

    def attend(x: torch.Tensor) -> torch.Tensor:
        count, tokens, _ = x.shape
        parts = functional.linear(x, qkv_weight, qkv_bias).view(count, tokens, 3, num_heads, embed_dim // num_heads).permute(2, 0, 3, 1, 4)
        made = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return functional.linear(made.transpose(1, 2).reshape(count, tokens, embed_dim), proj_weight, proj_bias)

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, *products[0])
        return functional.linear(functional.gelu(inner) if use_gelu else functional.relu(inner), *products[1])

    for branch, (weight, bias) in zip((attend, feed), norms, strict=True):
        if norm_first:
            src = src + branch(functional.layer_norm(src, (embed_dim,), weight, bias, eps))
        else:
            src = functional.layer_norm(src + branch(src), (embed_dim,), weight, bias, eps)
    return src


def _argument(node: torch.fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _extreme(operator: Callable[..., relax.Expr], node: torch.fx.Node, importer: Any) -> relax.Expr:
    axes = list(_argument(node, 1, "dim", ())) or None
    return importer.block_builder.emit(operator(importer.env[node.args[0]], axes, bool(_argument(node, 2, "keepdim", False))))


def _min_dim(node: torch.fx.Node, importer: Any) -> relax.Expr:
    data, axis, keep = importer.env[node.args[0]], node.args[1], bool(_argument(node, 2, "keepdim", False))
    values = importer.block_builder.emit(relax.op.min(data, axis, keep))
    return relax.Tuple([values, importer.block_builder.emit(relax.op.argmin(data, axis, keep))])


def _prod_dim(node: torch.fx.Node, importer: Any) -> relax.Expr:
    data = importer.env[node.args[0]]
    wanted = str(node.meta["val"].dtype).removeprefix("torch.")
    if str(data.ty.dtype) != wanted:  # integers are multiplied as int64
        data = importer.block_builder.emit(relax.op.astype(data, wanted))
    return importer.block_builder.emit(relax.op.prod(data, node.args[1], bool(_argument(node, 2, "keepdim", False))))


def _any(node: torch.fx.Node, importer: Any) -> relax.Expr:
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    holds = data if str(data.ty.dtype) == "bool" else emit(relax.op.not_equal(data, relax.const(0, str(data.ty.dtype))))
    return emit(relax.op.astype(emit(relax.op.max(emit(relax.op.astype(holds, "int8")))), "bool"))


def _div(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Division, by a number too. The result is of floating point unless both are whole and the quotient is rounded."""
    mode, emit = node.kwargs.get("rounding_mode"), importer.block_builder.emit
    wanted = str(node.meta["val"].dtype).removeprefix("torch.")

    def typed(argument: Any) -> relax.Expr:
        if not isinstance(argument, torch.fx.Node):
            return relax.const(argument, wanted)
        value = importer.env[argument]
        return value if str(value.ty.dtype) == wanted else emit(relax.op.astype(value, wanted))

    data, number = (typed(argument) for argument in node.args[:2])
    if mode == "floor":
        return emit(relax.op.floor_divide(data, number))
    if "float" not in wanted:
        raise NotImplementedError("the division of integers that rounds towards zero")
    quotient = emit(relax.op.divide(data, number))
    return emit(relax.op.trunc(quotient)) if mode == "trunc" else quotient


def _scatter_add(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Of the source, only the part that the indices cover counts."""
    data, index, source = (importer.env[node.args[position]] for position in (0, 2, 3))
    extents = [int(extent) for extent in index.ty.shape]
    if extents != [int(extent) for extent in source.ty.shape]:
        axes = list(range(len(extents)))
        source = importer.block_builder.emit(relax.op.strided_slice(source, axes, [0] * len(axes), extents))
    return importer.block_builder.emit(relax.op.scatter_elements(data, index, source, node.args[1], "add"))


def _pad(mode: str) -> Converter:
    """torch gives the last axis first, and both ends of it."""

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        data, widths = importer.env[node.args[0]], list(node.args[1])
        pairs = [widths[at : at + 2] for at in range(0, len(widths), 2)]
        pairs += [[0, 0]] * (len(data.ty.shape) - len(pairs))
        return importer.block_builder.emit(relax.op.nn.pad(data, [width for pair in reversed(pairs) for width in pair], mode))

    return convert
