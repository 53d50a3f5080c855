"""Convert norms of float64, for which TVM has no kernels, and group norms without a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tvm import relax

from farm.importers.torch.converters.operators import node_argument

Converter = Callable[[Any, Any], Any]  # (node, importer) -> Relax expression of the node


def converters() -> dict[str, Converter]:
    """Return the converters for `custom_convert_map` of `from_exported_program`."""
    return {
        "native_layer_norm.default": _layer_norm,
        "layer_norm.default": _layer_norm,
        "native_group_norm.default": _group_norm,
        "_native_batch_norm_legit.no_stats": _norm_by_own_statistics,
    }


def _norm_by_own_statistics(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a batch norm without running statistics, which torch makes of an instance norm.

    TVM's kernel takes no float64.
    """
    data, weight, bias = (importer.env.get(node.args[place]) for place in range(3))
    if str(data.ty.dtype) != "float64":
        return importer.create_convert_map()["_native_batch_norm_legit.no_stats"](node)
    emit = importer.block_builder.emit
    rank = int(data.ty.ndim)
    epsilon = node_argument(node, 5, "eps", 1e-5)
    made = emit(_normalized(emit, data, [0, *range(2, rank)], epsilon))
    by_channel = [-1, *[1] * (rank - 2)]
    for operator, given in ((relax.op.multiply, weight), (relax.op.add, bias)):
        if given is not None:
            made = emit(operator(made, emit(relax.op.reshape(given, by_channel))))
    return relax.Tuple([made])


def _group_norm(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a group norm; TVM's converter wants a weight and a bias, its kernel no float64."""
    data, weight, bias, _, channels, _, groups, epsilon = node.args
    wide = data.meta["val"].dtype == torch.float64
    if weight is not None and bias is not None and not wide:
        return importer.create_convert_map()["native_group_norm.default"](node)
    value, emit = importer.env[data], importer.block_builder.emit
    gamma, beta = (
        relax.const(np.full(channels, default), value.ty.dtype)
        if given is None
        else importer.env[given]
        for given, default in ((weight, 1.0), (bias, 0.0))
    )
    extents = list(value.ty.shape)
    if wide:
        rows = emit(relax.op.reshape(value, [extents[0], groups, -1]))
        made = emit(relax.op.reshape(_normalized(emit, rows, [-1], epsilon), extents))
        by_channel = [-1, *[1] * (len(extents) - 2)]
        gamma, beta = (emit(relax.op.reshape(one, by_channel)) for one in (gamma, beta))
        return emit(relax.op.add(emit(relax.op.multiply(made, gamma)), beta))
    return emit(
        relax.op.nn.group_norm(
            value,
            gamma,
            beta,
            num_groups=groups,
            channel_axis=1,
            axes=list(range(2, len(extents))),
            epsilon=epsilon,
        )
    )


def _layer_norm(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a layer norm of float64, for which TVM has no kernel, by its parts."""
    name, emit = node.target.__name__, importer.block_builder.emit
    if node.args[0].meta["val"].dtype != torch.float64:
        return importer.create_convert_map()[name](node)
    value, extents = importer.env[node.args[0]], node.args[1]
    weight, bias = (node_argument(node, *of, None) for of in ((2, "weight"), (3, "bias")))
    axes = list(range(-len(extents), 0))
    made = _normalized(emit, value, axes, node_argument(node, 4, "eps", 1e-5))
    if weight is not None:
        made = emit(relax.op.multiply(made, importer.env[weight]))
    if bias is not None:
        made = emit(relax.op.add(made, importer.env[bias]))
    return relax.Tuple([made]) if name.startswith("native") else made


def _normalized(emit: Any, value: relax.Expr, axes: list[int], epsilon: float) -> relax.Expr:
    """Return float64 numbers less their mean over axes, divided by their deviation."""
    centred = emit(relax.op.subtract(value, emit(relax.op.mean(value, axes, True))))
    spread = emit(relax.op.mean(emit(relax.op.multiply(centred, centred)), axes, True))
    least = relax.const(epsilon, "float64")
    return emit(relax.op.divide(centred, emit(relax.op.sqrt(emit(relax.op.add(spread, least))))))
