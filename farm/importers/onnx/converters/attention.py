"""Convert the attentions of ONNX Runtime's contributed operators, with caches of keys and values.

The definitions: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md

Extents: B batch, H heads, K heads of keys and values, S new positions, P positions of the cache, T
positions after the step, D numbers of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.importers.onnx.converters.missing import Attributes, Inputs, require_constant
from farm.importers.onnx.converters.rotary_embedding import rotate

_FILTER = -10000.0  # the default score of masked keys


@dataclass(frozen=True, slots=True)
class _Scores:
    """Holds what is done to the products of queries and keys before the softmax, in this order."""

    scale: float
    softcap: float = 0.0
    summand: relax.Expr | None = None  # broadcasts to [B, H, S, T]
    sink: relax.Expr | None = None  # [H]: one more score of each row, without a value


class Attention(OnnxOpConverter):  # type: ignore[misc]
    """Attention of ONNX Runtime: the projection of one input to queries, keys and values, too."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        data, weight, bias, mask, past, summand, shared = [*inputs, *[None] * 7][:7]
        _refuse(attributes, "Attention", "do_rotary", "past_present_share_buffer")
        if shared is not None:
            raise ValueError("Attention whose cache is longer than the past")
        emit, heads = builder.emit, int(attributes["num_heads"])
        width = int(weight.ty.shape[1])
        sizes = [int(size) for size in attributes.get("qkv_hidden_sizes", [width // 3] * 3)]
        projected = emit(relax.op.matmul(data, weight))
        if bias is not None:
            projected = emit(relax.op.add(projected, bias))
        ends = [int(end) for end in np.cumsum(sizes)[:-1]]
        parts = emit(relax.op.split(projected, ends, axis=2))
        queries, keys, values = (_by_heads(builder, emit(parts[at]), heads) for at in range(3))
        if past is not None:
            halves = emit(relax.op.split(past, 2, axis=0))
            keys, values = (
                emit(relax.op.concat([emit(relax.op.squeeze(emit(halves[at]), [0])), new], axis=2))
                for at, new in enumerate((keys, values))
            )
        scores = _scores_of_mask(builder, queries, keys, mask, summand, attributes)
        made = _attend(builder, queries, keys, values, scores)
        if sizes[1] != sizes[2]:  # there is no cache of both
            return made
        return relax.Tuple([made, emit(relax.op.stack([keys, values], axis=0))])


class MultiHeadAttention(OnnxOpConverter):  # type: ignore[misc]
    """MultiHeadAttention of ONNX Runtime: the projections are done, but for their bias."""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        given = [*inputs, *[None] * 10][:10]
        queries, keys, values, bias, mask, summand, past_keys, past_values = given[:8]
        if any(one is not None for one in given[8:]):
            raise ValueError("MultiHeadAttention whose cache is longer than the past")
        emit, heads = builder.emit, int(attributes["num_heads"])
        if keys is None or values is None:
            raise ValueError("MultiHeadAttention with packed projections")
        if bias is not None:
            width = int(queries.ty.shape[-1])
            parts = emit(relax.op.split(bias, [width, 2 * width], axis=0))
            queries, keys, values = (
                emit(relax.op.add(one, emit(parts[at]))) if int(one.ty.ndim) == 3 else one
                for at, one in enumerate((queries, keys, values))
            )
        queries, keys, values = (
            _by_heads(builder, one, heads) if int(one.ty.ndim) == 3 else one
            for one in (queries, keys, values)
        )
        if past_keys is not None:
            keys = emit(relax.op.concat([past_keys, keys], axis=2))
            values = emit(relax.op.concat([past_values, values], axis=2))
        scores = _scores_of_mask(builder, queries, keys, mask, summand, attributes)
        return relax.Tuple([_attend(builder, queries, keys, values, scores), keys, values])


class GroupQueryAttention(OnnxOpConverter):  # type: ignore[misc]
    """GroupQueryAttention of ONNX Runtime: several heads of queries share keys and values.

    The lengths of the sequences are data, and the new keys and values lie behind each sequence's
    own past. A cache of one extent holds them (P >= T), or it grows to T positions.
    """

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes, _: Any
    ) -> relax.Expr:
        given = [*inputs, *[None] * 17][:17]
        queries, keys, values, past_keys, past_values, lengths, total = given[:7]
        cosines, sines, position_ids, summand, sink = given[7:12]
        _refuse(attributes, "GroupQueryAttention", "smooth_softmax", "qk_output")
        if any(one is not None for one in given[12:]):
            raise ValueError("GroupQueryAttention with a quantized cache, norms or padded chunks")
        emit = builder.emit
        heads, kv_heads = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
        if keys is None:
            size = int(queries.ty.shape[2]) // (heads + 2 * kv_heads)
            ends = [heads * size, (heads + kv_heads) * size]
            parts = emit(relax.op.split(queries, ends, axis=2))
            queries, keys, values = (emit(parts[at]) for at in range(3))
        queries, keys, values = (
            _by_heads(builder, one, count)
            for one, count in ((queries, heads), (keys, kv_heads), (values, kv_heads))
        )
        end = int(require_constant(total, "GroupQueryAttention", "total_sequence_length"))
        if attributes.get("sliding_window_cache", 0):
            _check_window(past_keys, lengths, end)
        step = _Step(builder, lengths, int(queries.ty.shape[2]), end)
        if attributes.get("do_rotary", 0):
            places = step.rotary_positions(position_ids)
            interleaved = bool(attributes.get("rotary_interleaved", 0))
            queries, keys = (
                rotate(builder, one, places, cosines, sines, interleaved) for one in (queries, keys)
            )
        keys = step.with_past(past_keys, keys)
        values = step.with_past(past_values, values)
        mask = step.mask(
            int(keys.ty.shape[2]),
            str(queries.ty.dtype),
            bool(attributes.get("causal", 1)),
            int(attributes.get("local_window_size", -1)),
        )
        if summand is not None:
            mask = emit(relax.op.add(mask, _padded(builder, summand, int(keys.ty.shape[2]))))
        scores = _Scores(
            float(attributes.get("scale", 0.0)) or 1 / math.sqrt(int(queries.ty.shape[-1])),
            float(attributes.get("softcap", 0.0)),
            mask,
            sink,
        )
        return relax.Tuple([_attend(builder, queries, keys, values, scores), keys, values])


class _Step:
    """The positions of one step: each sequence has S new ones after those of its own past."""

    def __init__(
        self, builder: relax.BlockBuilder, lengths: relax.Expr, new: int, total: int
    ) -> None:
        """Take [B] or [B, 1] lengths of the sequences after the step, less one."""
        self._builder, self._new, self._total = builder, new, total
        self._first = new == total  # the first step of a sequence, which may be padded
        self._last: relax.Expr  # the last position of each sequence, [B, 1]
        if isinstance(lengths, GenericConst):
            last = lengths.value.numpy().reshape(-1, 1)
            self._last, past = _whole(last), _whole(last + 1 - new)
        else:
            emit, batch = builder.emit, lengths.ty.shape[0]
            self._last = emit(relax.op.astype(lengths, "int64"))
            if int(lengths.ty.ndim) == 1:
                self._last = emit(relax.op.reshape(self._last, [batch, 1]))
            past = emit(relax.op.add(self._last, _whole(1 - new)))
        self._past = _whole(np.zeros([1, 1])) if self._first else past  # [B or 1, 1]

    def rotary_positions(self, given: relax.Expr | None) -> relax.Expr:
        """Return the positions of the new elements, [B or 1, S]."""
        emit, steps = self._builder.emit, _whole(np.arange(self._new)[None])
        if given is None:
            return emit(relax.op.add(self._past, steps))
        given = emit(relax.op.astype(given, "int64"))
        if not self._first:
            return given
        # ONNX Runtime reads the first one only.
        first = emit(relax.op.strided_slice(given, [0, 1], [0, 0], [1, 1]))
        return emit(relax.op.add(first, steps))

    def with_past(self, past: relax.Expr | None, new: relax.Expr) -> relax.Expr:
        """Return [B, K, L, D] of the past and the new elements [B, K, S, D].

        What lies behind the end of a sequence is zero.
        """
        emit, held = self._builder.emit, 0 if past is None else int(past.ty.shape[2])
        extent = max(held, self._total)
        if held == 0 and self._first:
            return new
        if isinstance(self._past, GenericConst):
            begins = {int(begin) for begin in self._past.value.numpy().reshape(-1)}
            if begins == {held} and extent == held + self._new:
                return emit(relax.op.concat([past, new], axis=2))
        dtype, count = str(new.ty.dtype), int(new.ty.shape[3])
        places = _whole(np.arange(extent)[None])
        distances = emit(relax.op.subtract(places, self._past))  # [B or 1, L], from the first new
        zero = _whole(0)
        is_past = self._for_heads(emit(relax.op.less(distances, zero)), extent)
        is_new = self._for_heads(
            emit(
                relax.op.logical_and(
                    emit(relax.op.greater_equal(distances, zero)),
                    emit(relax.op.less(distances, _whole(self._new))),
                )
            ),
            extent,
        )
        nothing = relax.const(0, dtype)
        longer = nothing if past is None else self._extended(past, extent)
        old = emit(relax.op.where(is_past, longer, nothing))
        if self._new > 1:
            last = _whole(self._new - 1)
            taken = emit(relax.op.minimum(emit(relax.op.maximum(distances, zero)), last))
            rows, kv_heads = new.ty.shape[0], int(new.ty.shape[1])
            index = self._for_heads(taken, extent)
            index = emit(relax.op.broadcast_to(index, [rows, kv_heads, extent, count]))
            new = emit(relax.op.gather_elements(new, index, axis=2))
        return emit(relax.op.where(is_new, new, old))

    def _for_heads(self, values: relax.Expr, extent: int) -> relax.Expr:
        """Return [B or 1, L] values as [B or 1, 1, L, 1]."""
        rows = values.ty.shape[0]
        return self._builder.emit(relax.op.reshape(values, [rows, 1, extent, 1]))

    def _extended(self, past: relax.Expr, extent: int) -> relax.Expr:
        """Return the past with zeros behind it."""
        more = extent - int(past.ty.shape[2])
        if more == 0:
            return past
        width = [0, 0, 0, 0, 0, more, 0, 0]
        return self._builder.emit(relax.op.nn.pad(past, width))

    def mask(self, extent: int, dtype: str, causal: bool, window: int) -> relax.Expr:
        """Return [B or 1, 1, S, L] summands of the scores: 0, or minus infinity without a key.

        A window of -1 is none; otherwise a query reads so many keys, of which the last is that
        of its own position.
        """
        emit = self._builder.emit
        rows = _whole(np.arange(self._new).reshape(1, self._new, 1))
        begins, ends = (
            emit(relax.op.reshape(one, [one.ty.shape[0], 1, 1])) for one in (self._past, self._last)
        )
        own = emit(relax.op.add(begins, rows))  # [B or 1, S, 1]
        places = _whole(np.arange(extent).reshape(1, 1, extent))
        known = emit(relax.op.less_equal(places, ends))
        if causal:
            known = emit(relax.op.logical_and(known, emit(relax.op.less_equal(places, own))))
        if window >= 0:
            near = emit(relax.op.subtract(own, _whole(window)))
            known = emit(relax.op.logical_and(known, emit(relax.op.greater(places, near))))
        summand = emit(relax.op.where(known, relax.const(0, dtype), relax.const(-np.inf, dtype)))
        return emit(relax.op.expand_dims(summand, 1))


def _whole(value: Any) -> relax.Expr:
    """Return a constant of int64."""
    return relax.const(value, "int64")


def _refuse(attributes: Attributes, operator: str, *names: str) -> None:
    """Raise ValueError for the first attribute that is set."""
    for name in names:
        if attributes.get(name, 0):
            raise ValueError(f"{operator} with {name}")


def _check_window(past: relax.Expr, lengths: relax.Expr, total: int) -> None:
    """Refuse a cache of a window that positions have left, or that they do not fill.

    ONNX Runtime leaves undefined what lies behind them.
    """
    extent = int(past.ty.shape[2])
    if not isinstance(lengths, GenericConst) or np.any(lengths.value.numpy() + 1 != extent):
        raise ValueError(
            "GroupQueryAttention with a cache of a window that is not known to be full: state "
            "the mask with --value, and as many positions as the cache has"
        )
    if total > extent:
        raise ValueError("GroupQueryAttention with more positions than its cache of a window")


def _by_heads(builder: relax.BlockBuilder, data: relax.Expr, heads: int) -> relax.Expr:
    """Return [B, S, heads * D] as [B, heads, S, D]."""
    batch, steps, width = data.ty.shape
    split = builder.emit(relax.op.reshape(data, [batch, steps, heads, int(width) // heads]))
    return builder.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))


def _padded(builder: relax.BlockBuilder, summand: relax.Expr, extent: int) -> relax.Expr:
    """Return [.., T] summands for a cache of more positions."""
    more = extent - int(summand.ty.shape[3])
    return builder.emit(relax.op.nn.pad(summand, [0] * 7 + [more])) if more else summand


def _scores_of_mask(
    builder: relax.BlockBuilder,
    queries: relax.Expr,
    keys: relax.Expr,
    mask: relax.Expr | None,
    summand: relax.Expr | None,
    attributes: Attributes,
) -> _Scores:
    """Return the scores' scale, and what the mask, the summand and causality add to them."""
    emit, dtype = builder.emit, str(queries.ty.dtype)
    steps, total, size = (int(one) for one in (queries.ty.shape[2], *list(keys.ty.shape)[2:]))
    summands = [] if summand is None else [summand]
    if mask is not None:
        is_key = _keys_of_mask(builder, mask, queries.ty.shape[0], total)
        low = relax.const(float(attributes.get("mask_filter_value", _FILTER)), dtype)
        summands.append(emit(relax.op.where(is_key, relax.const(0, dtype), low)))
    if attributes.get("unidirectional", 0):
        later = np.triu(np.ones([steps, total], np.bool_), total - steps + 1)
        summands.append(relax.const(np.where(later, -np.inf, 0)[None, None], dtype))
    while len(summands) > 1:
        summands.append(emit(relax.op.add(summands.pop(), summands.pop())))
    scale = float(attributes.get("scale", 0.0)) or 1 / math.sqrt(size)
    return _Scores(scale, 0.0, summands[0] if summands else None)


def _keys_of_mask(
    builder: relax.BlockBuilder, mask: relax.Expr, batch: Any, total: int
) -> relax.Expr:
    """Return whether a key is read, as a shape that broadcasts to [B, H, S, T].

    A mask is [B, T], [B, S, T], or [B] lengths, or [2 * B] ends and then beginnings.
    """
    emit, shape = builder.emit, list(mask.ty.shape)
    if len(shape) in (2, 3):
        middle = [1] if len(shape) == 3 else [1, 1]
        given = emit(relax.op.reshape(mask, [shape[0], *middle, *shape[1:]]))
        return emit(relax.op.greater(given, relax.const(0, str(mask.ty.dtype))))
    count = int(shape[0]) // int(batch) if len(shape) == 1 else 0
    if count not in (1, 2) or int(shape[0]) % int(batch):
        raise ValueError(f"an attention whose mask has the shape {[str(one) for one in shape]}")
    places = _whole(np.arange(total).reshape(1, 1, 1, total))
    limits = emit(relax.op.astype(mask, "int64"))
    each = [
        emit(
            relax.op.reshape(
                emit(relax.op.strided_slice(limits, [0], [at * batch], [(at + 1) * batch])),
                [batch, 1, 1, 1],
            )
        )
        for at in range(count)
    ]
    is_key = emit(relax.op.less(places, each[0]))
    if count == 1:
        return is_key
    return emit(relax.op.logical_and(is_key, emit(relax.op.greater_equal(places, each[1]))))


def _attend(
    builder: relax.BlockBuilder,
    queries: relax.Expr,
    keys: relax.Expr,
    values: relax.Expr,
    scores: _Scores,
) -> relax.Expr:
    """Return [B, S, H * D] of queries [B, H, S, D], keys and values [B, K, T, D].

    The rows of the heads that share keys are one product.
    """
    emit = builder.emit
    (batch, heads, steps, size), (_, kv_heads, extent, _) = queries.ty.shape, keys.ty.shape
    heads, steps, kv_heads, extent = (int(one) for one in (heads, steps, kv_heads, extent))
    dtype, rows = str(queries.ty.dtype), heads // kv_heads * steps
    if kv_heads != heads:
        queries = emit(relax.op.reshape(queries, [batch, kv_heads, rows, size]))
    turned = emit(relax.op.permute_dims(keys, [0, 1, 3, 2]))
    made = emit(relax.op.matmul(queries, turned))
    made = emit(relax.op.multiply(made, relax.const(scores.scale, dtype)))
    if scores.softcap:
        cap = relax.const(scores.softcap, dtype)
        made = emit(relax.op.multiply(emit(relax.op.tanh(emit(relax.op.divide(made, cap)))), cap))
    if scores.summand is not None:
        made = emit(relax.op.add(made, _for_rows(builder, scores.summand, heads, kv_heads, steps)))
    if scores.sink is None:
        weights = emit(relax.op.nn.softmax(made, axis=-1))
    else:
        sink = emit(relax.op.reshape(scores.sink, [1, kv_heads, heads // kv_heads, 1, 1]))
        sink = emit(relax.op.broadcast_to(sink, [batch, kv_heads, heads // kv_heads, steps, 1]))
        sink = emit(relax.op.reshape(sink, [batch, kv_heads, rows, 1]))
        longer = emit(relax.op.nn.softmax(emit(relax.op.concat([made, sink], axis=3)), axis=-1))
        weights = emit(relax.op.strided_slice(longer, [3], [0], [extent]))
    result = emit(relax.op.matmul(weights, values))
    width = int(values.ty.shape[3])
    if kv_heads != heads:
        result = emit(relax.op.reshape(result, [batch, heads, steps, width]))
    result = emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
    return emit(relax.op.reshape(result, [batch, steps, heads * width]))


def _for_rows(
    builder: relax.BlockBuilder, summand: relax.Expr, heads: int, kv_heads: int, steps: int
) -> relax.Expr:
    """Return [.., H or 1, S, T] summands for rows of [.., K, H / K * S, T]."""
    emit, (batch, of_heads, of_steps, extent) = builder.emit, summand.ty.shape
    group = heads // kv_heads
    if group == 1 or (int(of_heads) == 1 and int(of_steps) == 1):
        return summand
    if int(of_heads) == 1:
        spread = emit(relax.op.broadcast_to(summand, [batch, group, steps, extent]))
        return emit(relax.op.reshape(spread, [batch, 1, group * steps, extent]))
    if int(of_steps) != steps:
        summand = emit(relax.op.broadcast_to(summand, [batch, heads, steps, extent]))
    return emit(relax.op.reshape(summand, [batch, kv_heads, group * steps, extent]))


CONVERTERS = {
    "Attention": Attention,
    "MultiHeadAttention": MultiHeadAttention,
    "GroupQueryAttention": GroupQueryAttention,
}
