"""Attention and encoder layers that torch runs fused if no gradients are needed.

A trace records them so. Vaswani et al., "Attention Is All You Need", 2017.
"""

from __future__ import annotations

from typing import Any

import torch

_OF_QUERIES, _OF_KEYS = 0, 1  # torch's types of masks; others are of each head


def _multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute torch.nn.MultiheadAttention; a mask is true, or not zero, where nobody attends."""
    functional = torch.nn.functional
    parts = []
    for x, weight, bias in zip(
        (query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True
    ):
        made = functional.linear(x, weight, bias)
        parts.append(made.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2))
    masked = None if mask is None else _broadcast_mask(mask, mask_type)
    if need_weights:
        scores = parts[0] @ parts[1].mT * (embed_dim // num_head) ** -0.5
        if masked is not None:
            scores = scores.masked_fill(masked, -torch.inf)
        weights = scores.softmax(-1)
        made = weights @ parts[2]
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        attended = None if masked is None else ~masked
        made = functional.scaled_dot_product_attention(*parts, attended)
        weights = query.new_empty((0,))
    joined = made.transpose(1, 2).flatten(2)
    return functional.linear(joined, proj_weight, proj_bias), weights


def _broadcast_mask(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Return a mask as [B, heads, L, S]."""
    masked = mask.to(torch.bool)
    if mask_type == _OF_KEYS:
        return masked[:, None, None, :]
    if mask_type == _OF_QUERIES:
        return masked[None, None]
    return masked


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
    """Compute torch.nn.TransformerEncoderLayer in evaluation mode by its parts.

    `rest` holds weight and bias of two norms and of two products, then a mask and its type.
    """
    norms, products = (rest[0:2], rest[2:4]), (rest[4:6], rest[6:8])
    mask, mask_type = (*rest[8:], None, None)[:2]
    functional = torch.nn.functional

    def attend(x: torch.Tensor) -> torch.Tensor:
        operands = (qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)
        return _multi_head_attention(x, x, x, embed_dim, num_heads, *operands)[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, *products[0])
        return functional.linear(
            functional.gelu(inner) if use_gelu else functional.relu(inner), *products[1]
        )

    for branch, (weight, bias) in zip((attend, feed), norms, strict=True):
        if norm_first:
            src = src + branch(functional.layer_norm(src, (embed_dim,), weight, bias, eps))
        else:
            src = functional.layer_norm(src + branch(src), (embed_dim,), weight, bias, eps)
    return src


DECOMPOSITIONS = {
    "_native_multi_head_attention": _multi_head_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
