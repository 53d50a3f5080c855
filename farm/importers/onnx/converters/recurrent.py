"""Convert LSTM, GRU and RNN of ONNX, which TVM 0.27 has no converters for.

The product of all inputs with their weights is one matrix product; the steps are one kernel (see
farm.kernels.recurrent). Options that ONNX allows and no exporter writes are refused by name:
activations other than Sigmoid, Tanh and Relu, clip, and types other than float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter

from farm.kernels import recurrent as kernels_recurrent
from farm.kernels.recurrent import FUNCTIONS, GRU, LSTM, RNN, RecurrentLayer

Value = Any  # a numpy array if it is constant, else a relax expression
_DEFAULTS = {LSTM: ("sigmoid", "tanh", "tanh"), GRU: ("sigmoid", "tanh"), RNN: ("tanh",)}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


class UnsupportedOption(NotImplementedError):
    """A defined option that farm does not implement; the message names it."""


class _Recurrent(OnnxOpConverter):  # type: ignore[misc]
    """Base of the converters of ONNX's recurrent operators."""

    cell = ""

    @classmethod
    def _impl_v1(
        cls, builder: relax.BlockBuilder, inputs: Sequence[Any], attributes: dict[str, Any], _: Any
    ) -> relax.Tuple:
        given = {name: inputs[index] for index, name in enumerate(_INPUTS)}
        return emit_onnx_recurrent_layer(
            builder,
            _layer(cls.cell, given, attributes),
            LayoutOps(builder),
            given,
            bool(attributes.get("layout", 0)),
        )


class Lstm(_Recurrent):
    """LSTM."""

    cell = LSTM


class Gru(_Recurrent):
    """GRU."""

    cell = GRU


class Rnn(_Recurrent):
    """RNN."""

    cell = RNN


CONVERTERS = {LSTM: Lstm, GRU: Gru, RNN: Rnn}


def _layer(cell: str, given: dict[str, Any], attributes: dict[str, Any]) -> RecurrentLayer:
    """Return the layer that an operator's inputs and attributes describe.

    Raises Unsupported for options that farm does not implement.
    """
    if "clip" in attributes:
        raise UnsupportedOption(f"{cell} with the attribute clip")
    if attributes.get("input_forget", 0):
        raise UnsupportedOption(f"{cell} with input_forget=1")
    direction = _text(attributes.get("direction", "forward"))
    if direction not in _DIRECTIONS:
        raise UnsupportedOption(f"{cell} with direction={direction!r}")
    if str(given["X"].ty.dtype) != "float32":
        raise UnsupportedOption(f"{cell} of {given['X'].ty.dtype}; float32 is supported")
    steps, batch, _ = _shape(given["X"], cell)
    if attributes.get("layout", 0):
        steps, batch = batch, steps
    hidden, backwards = _shape(given["R"], cell)[2], _DIRECTIONS[direction]
    return RecurrentLayer(
        cell,
        steps,
        batch,
        hidden,
        backwards,
        _activations(cell, attributes, len(backwards)),
        reset_after=cell == GRU and bool(attributes.get("linear_before_reset", 0)),
        masked=given["sequence_lens"] is not None,
        peepholes=cell == LSTM and given["P"] is not None,
    )


def _activations(
    cell: str, attributes: dict[str, Any], directions: int
) -> tuple[tuple[str, ...], ...]:
    """Return the activations of each direction, in lower case."""
    names = [_text(name).lower() for name in attributes.get("activations", ())] or list(
        _DEFAULTS[cell]
    ) * directions
    if others := sorted(set(names) - set(FUNCTIONS)):
        raise UnsupportedOption(
            f"{cell} with the activation {others[0]}; Sigmoid, Tanh and Relu are supported"
        )
    each = len(_DEFAULTS[cell])
    if len(names) != each * directions:
        raise UnsupportedOption(
            f"{cell} with {len(names)} activations instead of {each * directions}"
        )
    return tuple(tuple(names[index * each : (index + 1) * each]) for index in range(directions))


def emit_onnx_recurrent_layer(
    builder: relax.BlockBuilder,
    layer: RecurrentLayer,
    layout: LayoutOps,
    given: dict[str, Any],
    batch_first: bool,
) -> relax.Tuple:
    """Emit a recurrent layer; return its output and last states in ONNX's layout.

    `given` holds the operator's inputs by ONNX's names; absent ones are None.

    The results are [T, D, B, H] and [D, B, H]; if `batch_first`, [B, T, D, H] and [B, D, H].
    """
    data = builder.emit(relax.op.permute_dims(given["X"], [1, 0, 2])) if batch_first else given["X"]
    operands = [
        _input_gates(builder, layer, layout, data, given),
        layout.packed(layer, _value(given["R"])),
    ]
    states = [given["initial_h"], given["initial_c"]][: 2 if layer.cell == LSTM else 1]
    operands += [layout.state(layer, state, batch_first) for state in states]
    if layer.reset_after:
        operands.append(layout.filled(layer, layout.split(_biases(layer, given["B"]), 1, 6)[5]))
    if layer.peepholes:
        separate = layout.reshaped(_value(given["P"]), (len(layer.backwards), 3, layer.hidden))
        operands.append(layout.filled(layer, separate))
    if layer.masked:
        operands.append(relax.op.astype(given["sequence_lens"], "int32"))
    made = kernels_recurrent.emit_recurrent_layer(
        builder, layer, [layout.expression(operand) for operand in operands]
    )
    output, *states = [_unfilled(builder, layer, made[index]) for index in range(len(states) + 1)]
    if batch_first:
        output = relax.op.permute_dims(output, [2, 0, 1, 3])
        states = [relax.op.permute_dims(state, [1, 0, 2]) for state in states]
    return relax.Tuple([builder.emit(one) for one in (output, *states)])


def _input_gates(
    builder: relax.BlockBuilder,
    layer: RecurrentLayer,
    layout: LayoutOps,
    data: relax.Expr,
    given: dict[str, Any],
) -> relax.Expr:
    """Return the input gates [T, B, D, N, G, L], with all biases.

    The bias that GRU's reset gate scales is left out.
    """
    directions, depth = len(layer.backwards), int(data.ty.shape[2])
    weights = layout.packed(layer, _value(given["W"]))  # [D, N, I, G, L], where I is the input size
    columns = directions * layer.blocks * layer.gates * layer.lanes
    weights = layout.reshaped(layout.permuted(weights, [2, 0, 1, 3, 4]), (depth, columns))
    rows = builder.emit(relax.op.reshape(data, (layer.steps * layer.batch, depth)))
    gates = builder.emit(relax.op.matmul(rows, layout.expression(weights)))
    if given["B"] is not None:
        inner, recurrent = layout.split(_biases(layer, given["B"]), 1, 2)
        if layer.reset_after:
            recurrent = layout.without_last_gate(layer, recurrent)
        bias = layout.packed(
            layer,
            layout.reshaped(
                layout.added(inner, recurrent), (directions, layer.gates * layer.hidden, 1)
            ),
        )
        gates = builder.emit(
            relax.op.add(gates, layout.expression(layout.reshaped(bias, (columns,))))
        )
    return builder.emit(
        relax.op.reshape(
            gates, (layer.steps, layer.batch, directions, layer.blocks, layer.gates, layer.lanes)
        )
    )


def _biases(layer: RecurrentLayer, bias: Any) -> Value:
    """Return the biases [D, 2*G*H]; zeros if the layer has none."""
    return (
        np.zeros((len(layer.backwards), 2 * layer.gates * layer.hidden), np.float32)
        if bias is None
        else _value(bias)
    )


def _unfilled(builder: relax.BlockBuilder, layer: RecurrentLayer, value: relax.Expr) -> relax.Expr:
    """Return a value without the padding of its last axis to whole blocks."""
    value = builder.emit(value)
    if layer.blocks * layer.lanes == layer.hidden:
        return value
    return builder.emit(
        relax.op.strided_slice(value, [len(value.ty.shape) - 1], [0], [layer.hidden])
    )


class LayoutOps:
    """Layout changes that are computed by numpy if a value is constant.

    Weights are thus packed once, during the import.
    """

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder

    def expression(self, value: Value) -> relax.Expr:
        """Return a value as a relax expression."""
        return (
            relax.const(np.ascontiguousarray(value))
            if isinstance(value, np.ndarray)
            else self._builder.emit(value)
        )

    def reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Return the value in another shape."""
        return (
            value.reshape(shape)
            if isinstance(value, np.ndarray)
            else self._builder.emit(relax.op.reshape(value, shape))
        )

    def permuted(self, value: Value, axes: list[int]) -> Value:
        """Return the value with its axes permuted."""
        return (
            value.transpose(axes)
            if isinstance(value, np.ndarray)
            else self._builder.emit(relax.op.permute_dims(value, axes))
        )

    def added(self, left: Value, right: Value) -> Value:
        """Return the sum of two values."""
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            return left + right
        return self._builder.emit(relax.op.add(self.expression(left), self.expression(right)))

    def split(self, value: Value, axis: int, parts: int) -> list[Value]:
        """Return equal parts of a value along an axis."""
        if isinstance(value, np.ndarray):
            return np.split(value, parts, axis)
        made = self._builder.emit(relax.op.split(value, parts, axis))
        return [self._builder.emit(made[index]) for index in range(parts)]

    def joined(self, values: list[Value], axis: int) -> Value:
        """Return the concatenation of values along an axis."""
        if all(isinstance(value, np.ndarray) for value in values):
            return np.concatenate(values, axis)
        return self._builder.emit(
            relax.op.concat([self.expression(value) for value in values], axis)
        )

    def filled(self, layer: RecurrentLayer, value: Value) -> Value:
        """Return the value with its last axis padded with zeros from H to N*L."""
        shape = (
            list(value.shape)
            if isinstance(value, np.ndarray)
            else [int(extent) for extent in value.ty.shape]
        )
        missing = layer.blocks * layer.lanes - layer.hidden
        return (
            self.joined([value, np.zeros((*shape[:-1], missing), np.float32)], len(shape) - 1)
            if missing
            else value
        )

    def packed(self, layer: RecurrentLayer, value: Value) -> Value:
        """Return weights in the layout [D, N, K, G, L], given ONNX's [D, G*H, K]."""
        directions, _, depth = (
            value.shape
            if isinstance(value, np.ndarray)
            else tuple(int(extent) for extent in value.ty.shape)
        )
        value = self.reshaped(value, (directions, layer.gates, layer.hidden, depth))
        value = self.filled(layer, self.permuted(value, [0, 3, 1, 2]))  # [D, K, G, N*L]
        value = self.reshaped(value, (directions, depth, layer.gates, layer.blocks, layer.lanes))
        return self.permuted(value, [0, 3, 1, 2, 4])

    def without_last_gate(self, layer: RecurrentLayer, bias: Value) -> Value:
        """Return a bias [D, G*H] with zeros for the last gate."""
        *first, _ = self.split(bias, 1, layer.gates)
        zero = np.zeros((len(layer.backwards), layer.hidden), np.float32)
        return self.joined([*first, zero], 1)

    def state(self, layer: RecurrentLayer, state: Any, batch_first: bool) -> Value:
        """Return the first state as [D, B, N*L]; zeros if it is None."""
        if state is None:
            return np.zeros(
                (len(layer.backwards), layer.batch, layer.blocks * layer.lanes), np.float32
            )
        value = _value(state)
        return self.filled(layer, self.permuted(value, [1, 0, 2]) if batch_first else value)


def _value(expression: Any) -> Value:
    """Return the numpy array of a constant; other expressions unchanged."""
    return expression.value.numpy() if isinstance(expression, GenericConst) else expression


def _shape(expression: relax.Expr, cell: str) -> tuple[int, ...]:
    """Return the extents of a tensor; raise Unsupported if one is open."""
    extents = list(expression.ty.shape or ())
    if not extents or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        raise UnsupportedOption(
            f"{cell} over a sequence of open length; fix the shape with --shape"
        )
    return tuple(int(extent) for extent in extents)


def _text(value: Any) -> str:
    """Return an attribute as text."""
    return value.decode() if isinstance(value, bytes) else str(value)
