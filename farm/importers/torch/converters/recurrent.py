"""Convert LSTM, GRU and RNN of torch to farm's recurrent kernel, instead of unrolling all steps.

The kernel is that of ONNX's operators (see farm.kernels.recurrent). Layers, directions and gates
are as documented for torch.nn.LSTM, GRU and RNN: the gates of an LSTM are i, f, g, o and those of a
GRU r, z, n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from farm.importers.onnx.converters.recurrent import LayoutOps, Value, emit_onnx_recurrent_layer
from farm.kernels.recurrent import GRU, LSTM, RNN, RecurrentLayer

_CELLS = {"lstm.input": LSTM, "gru.input": GRU, "rnn_tanh.input": RNN, "rnn_relu.input": RNN}
_ACTIVATIONS = {
    "lstm.input": ("sigmoid", "tanh", "tanh"),
    "gru.input": ("sigmoid", "tanh"),
    "rnn_tanh.input": ("tanh",),
    "rnn_relu.input": ("relu",),
}
# ONNX's order of the gates (i, o, f, c and z, r, h) as indices into torch's order.
_ONNX_ORDER = {LSTM: (0, 3, 1, 2), GRU: (1, 0, 2), RNN: (0,)}
# (position of the value's argument, the value without one).
_ZEROS = {"zeros.default": (None, 0), "full.default": (1, None)}


def decompositions_without_recurrent_layers(program: torch.export.ExportedProgram) -> Any:
    """Return torch's table of decompositions without the layers that have a kernel of farm's.

    These are layers of float32 without a projection.
    """
    table = torch.export.default_decompositions()
    called = [node for node in program.graph.nodes if _name(node) in _CELLS]
    for name in {_name(node) for node in called}:
        if all(_has_kernel(node) for node in called if _name(node) == name):
            operator, _, overload = name.partition(".")
            table.pop(getattr(getattr(torch.ops.aten, operator), overload), None)
    return table


def converters(
    program: torch.export.ExportedProgram,
) -> dict[str, Callable[[Any, Any], relax.Tuple]]:
    """Return the converters of this program for `custom_convert_map` of `from_exported_program`.

    They pack the program's weights during the import.
    """
    signature = program.graph_signature
    kept = {**program.constants, **program.state_dict}
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    weights = {
        placeholder: kept[name].detach().numpy()
        for placeholder, name in names.items()
        if name in kept and _is_plain(kept[name])
    }
    return {name: lambda node, importer: _Stack(node, importer, weights).emit() for name in _CELLS}


def _is_plain(value: Any) -> bool:
    """Return whether a value is a float32 tensor."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _name(node: torch.fx.Node) -> str:
    """Return the name of the operator that a node calls; "" for other nodes."""
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _has_kernel(node: torch.fx.Node) -> bool:
    """Return whether farm's kernel supports a layer."""
    data, weights, biased = node.args[0], node.args[2], bool(node.args[3])
    # With a projection there is one more weight.
    per_layer = (4 if biased else 2) * int(node.args[4]) * (2 if node.args[7] else 1)
    shape = data.meta["val"].shape
    return (
        len(weights) == per_layer
        and data.meta["val"].dtype == torch.float32
        and all(isinstance(axis, int) for axis in shape)
    )


class _Stack:
    """All layers of one call.

    The call's arguments are (input, first states, weights, biased, layers, dropout, training,
    bidirectional, batch first).
    """

    def __init__(
        self, node: torch.fx.Node, importer: Any, weights: Mapping[str, np.ndarray]
    ) -> None:
        self.node, self.importer, self.weights = node, importer, weights
        self.builder, self.layout = importer.block_builder, LayoutOps(importer.block_builder)
        self.cell = _CELLS[_name(node)]
        self.biased, self.layers, self.bidirectional, self.batch_first = (
            bool(node.args[3]),
            int(node.args[4]),
            node.args[7],
            node.args[8],
        )
        self.directions = 2 if self.bidirectional else 1
        states = node.args[1] if self.cell == LSTM else [node.args[1]]
        self.first = [self._states(state) for state in states]

    def emit(self) -> relax.Tuple:
        """Emit all layers; return the output of the last one and the last states of all."""
        data = self.importer.env[self.node.args[0]]
        if self.batch_first:
            data = self._emit(relax.op.permute_dims(data, [1, 0, 2]))
        last: list[list[relax.Expr]] = []
        for index in range(self.layers):
            output, *states = self._layer(index, data).fields
            last.append(states)
            data = self._joined(output, [0, 2, 1, 3])
        if self.batch_first:
            data = self._joined(output, [2, 0, 1, 3])
        return relax.Tuple(
            [
                data,
                *(
                    self._emit(relax.op.concat(list(states), 0))
                    for states in zip(*last, strict=True)
                ),
            ]
        )

    def _layer(self, index: int, data: relax.Expr) -> relax.Tuple:
        """Emit a layer; return the output [T, D, B, H] and the last states [D, B, H]."""
        each = 4 if self.biased else 2
        begin = index * self.directions * each
        parts = [
            self._weight(node) for node in self.node.args[2][begin : begin + self.directions * each]
        ]
        given: dict[str, Any] = {"X": data, "B": None, "sequence_lens": None, "P": None}
        given["W"], given["R"] = (self._stacked(parts[which::each]) for which in range(2))
        if self.biased:
            given["B"] = self.layout.joined(
                [self._stacked(parts[which::each]) for which in (2, 3)], 1
            )
        for name, states in zip(("initial_h", "initial_c"), (*self.first, None), strict=False):
            given[name] = None if states is None else states[index]
        steps, batch = (int(extent) for extent in list(data.ty.shape)[:2])
        hidden = int(_shape(given["R"])[2])
        layer = RecurrentLayer(
            self.cell,
            steps,
            batch,
            hidden,
            (False, True)[: self.directions],
            (_ACTIVATIONS[_name(self.node)],) * self.directions,
            reset_after=self.cell == GRU,
        )
        return emit_onnx_recurrent_layer(self.builder, layer, self.layout, given, False)

    def _stacked(self, parts: Sequence[Value]) -> Value:
        """Return the weights of all directions as [D, G*H, ...], with the gates in ONNX's order.

        `parts` holds the weights [G*H, ...] of each direction in torch's order.
        """
        order, stacked = _ONNX_ORDER[self.cell], []
        for part in parts:
            gates = self.layout.split(part, 0, len(order)) if len(order) > 1 else [part]
            part = self.layout.joined([gates[gate] for gate in order], 0)
            stacked.append(self.layout.reshaped(part, (1, *_shape(part))))
        return self.layout.joined(stacked, 0)

    def _weight(self, node: torch.fx.Node) -> Value:
        """Return a weight as an array if it is constant, else as an expression."""
        return self.weights.get(node.name, self.importer.env[node])

    def _states(self, node: torch.fx.Node) -> list[relax.Expr] | None:
        """Return the first states [D, B, H] of each layer; None if they are zeros."""
        if (name := _name(node)) in _ZEROS:
            position, value = _ZEROS[name]
            if (value if position is None else node.args[position]) == 0:
                return None
        state = self.importer.env[node]
        made = self._emit(relax.op.split(state, self.layers, 0)) if self.layers > 1 else [state]
        return (
            [self._emit(made[index]) for index in range(self.layers)]
            if self.layers > 1
            else [state]
        )

    def _joined(self, output: relax.Expr, axes: list[int]) -> relax.Expr:
        """Return [T, D, B, H] with its axes permuted and the last two axes, D and H, merged."""
        turned = self._emit(relax.op.permute_dims(output, axes))
        first, second, directions, hidden = (int(extent) for extent in turned.ty.shape)
        return self._emit(relax.op.reshape(turned, (first, second, directions * hidden)))

    def _emit(self, expression: relax.Expr) -> relax.Expr:
        """Emit an expression and return its variable."""
        return self.builder.emit(expression)


def _shape(value: Value) -> tuple[int, ...]:
    """Return the extents of an array or expression."""
    return tuple(
        int(extent) for extent in (value.shape if isinstance(value, np.ndarray) else value.ty.shape)
    )
