"""Emit recurrent layers as one TIR kernel that loops over all steps.

The product of the inputs with their weights is computed before, by one matrix product. A block of
`lanes` hidden units keeps all of its gates in adjacent vectors, so that the accumulators of a step
stay in registers until the new state is computed from them. Hidden units are padded with zeros to
whole blocks. Symbols in the shapes below:

    T steps, B sequences, D directions (1 or 2), H hidden units, N blocks of L lanes, G gates
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

from farm.kernels.vector_math import let, polynomial

Expr: TypeAlias = Any  # a tirx expression; mypy has no type information for it
Function: TypeAlias = Callable[[Expr], Expr]
NAME = "recurrence"  # of the kernel and of its outermost block
# Numbers of axes of the input gates [T, B, D, N, G, L] and of the recurrent weights [D, N, H, G,
# L]. No other operand has as many.
INPUT_GATES_AXES, WEIGHTS_AXES = 6, 5
LSTM, GRU, RNN = "LSTM", "GRU", "RNN"
GATES = {LSTM: 4, GRU: 3, RNN: 1}
# Lanes of a block: times the number of gates, this is about as many accumulators as a core needs in
# flight.
_WIDEST = {LSTM: 16, GRU: 16, RNN: 64}
_FLOAT = "float32"
# tanh x = x p(x^2) / q(x^2) below the limit, fitted by weighted least squares; above the limit,
# tanh is 1 in float32. Error in float32: 4e-7.
_LIMIT = 8.6
_P = (
    2.0205596346775016e-11,
    -1.352729043206684e-08,
    9.512493304540586e-06,
    0.0029473364861562156,
    0.1294385835851959,
    0.99999996,
)
_Q = (0.00023178952942442976, 0.02387168239293953, 0.4627715839702654, 1.0)


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A recurrent layer: its cell, sizes and options.

    `activations` holds one tuple per direction, each with names of FUNCTIONS in the order of the
    cell's definition in ONNX.
    """

    cell: str
    steps: int
    batch: int
    hidden: int
    backwards: tuple[bool, ...]  # per direction
    activations: tuple[tuple[str, ...], ...]  # per direction
    reset_after: bool = False  # GRU: the reset gate is applied after the recurrent product
    masked: bool = False  # each sequence has its own length
    peepholes: bool = False  # LSTM: the gates read the cell state

    @property
    def gates(self) -> int:
        """Return the number of gates of the cell."""
        return GATES[self.cell]

    @property
    def lanes(self) -> int:
        """Return the number of hidden units in a block."""
        lanes = _WIDEST[self.cell]
        while lanes > 4 and lanes // 2 >= self.hidden:
            lanes //= 2
        return lanes

    @property
    def blocks(self) -> int:
        """Return the number of blocks that hold all hidden units."""
        return -(-self.hidden // self.lanes)


def emit_recurrent_layer(
    builder: relax.BlockBuilder, layer: RecurrentLayer, operands: Sequence[relax.Expr]
) -> relax.Expr:
    """Emit the kernel of all steps of a layer; return the tuple of its results.

    The results are the output of each step [T, D, B, N*L] and the last state [D, B, N*L] (LSTM:
    hidden and cell state). Operands, in order: the input gates, i.e. the inputs' product with their
    weights plus all biases [T, B, D, N, G, L]; the recurrent weights [D, N, H, G, L]; the first
    state [D, B, N*L] (LSTM: two). Then, if the layer has them: the recurrent bias of GRU's new
    state [D, N*L], the peepholes [D, 3, N*L] of the gates i, o, f, and the lengths [B] in int32.
    """
    full = layer.blocks * layer.lanes
    state = (len(layer.backwards), layer.batch, full)
    shapes = [(layer.steps, *state)] + [state] * (2 if layer.cell == LSTM else 1)

    def body(*tensors: te.Tensor) -> list[te.Tensor]:
        made = te.extern(
            shapes,
            list(tensors),
            lambda ins, outs: _program(layer, ins, outs),
            name=NAME,
            dtype=[_FLOAT] * len(shapes),
        )
        return list(made)

    return builder.emit(builder.call_te(body, *operands, primfunc_name_hint=NAME))


def _program(
    layer: RecurrentLayer, inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]
) -> tirx.Stmt:
    """Return the TIR statement of the layer: the directions run in parallel."""
    with IRBuilder() as program, T.parallel(0, len(layer.backwards)) as direction:
        if len(layer.backwards) == 1:
            _Direction(layer, inputs, outputs, 0, 0).write()
        else:
            with T.If(direction == 0):
                with T.Then():
                    _Direction(layer, inputs, outputs, 0, 0).write()
                with T.Else():
                    _Direction(layer, inputs, outputs, 1, 1).write()
    return program.get()


class _Direction:
    """Writer of the loops of one direction."""

    def __init__(
        self,
        layer: RecurrentLayer,
        inputs: Sequence[tirx.Buffer],
        outputs: Sequence[tirx.Buffer],
        index: int,
        where: Expr,
    ) -> None:
        self.layer, self.at, self.backwards = layer, where, layer.backwards[index]
        self.functions = [FUNCTIONS[name] for name in layer.activations[index]]
        rest = [T.buffer_proxy(buffer) for buffer in inputs]
        self.input_gates, self.weights = rest.pop(0), rest.pop(0)
        states = 2 if layer.cell == LSTM else 1
        self.first, rest = rest[:states], rest[states:]
        self.bias: Any = rest.pop(0) if layer.reset_after else None
        self.peepholes: Any = rest.pop(0) if layer.peepholes else None
        self.lengths: Any = rest.pop(0) if layer.masked else None
        self.output, *self.state = [T.buffer_proxy(buffer) for buffer in outputs]

    def write(self) -> None:
        """Write the copy of the first state, then the loops over steps and sequences."""
        layer = self.layer
        full = layer.blocks * layer.lanes
        self.sums = T.buffer_proxy(
            T.alloc_buffer((layer.gates, layer.lanes), _FLOAT, scope="local")
        )
        if layer.cell == GRU and not layer.reset_after:
            self.reset, self.update = (
                T.buffer_proxy(T.alloc_buffer((full,), _FLOAT)) for _ in range(2)
            )
        with T.serial(0, layer.batch) as row:
            for first, state in zip(self.first, self.state, strict=True):
                self._each_block(
                    lambda unit, first=first, state=state: _store(  # type: ignore[misc]
                        state, (self.at, row, unit), first[self.at, row, unit]
                    )
                )
        with T.serial(0, layer.steps) as step, T.serial(0, layer.batch) as row:
            if self.lengths is None:
                self._step(layer.steps - 1 - step if self.backwards else step, row)
            else:
                self._step_within_length(step, row)

    def _step_within_length(self, step: Expr, row: Expr) -> None:
        """Write a step of a sequence that has its own length; outputs after its end are 0."""
        length = self.lengths[row]
        with T.If(step < length):
            with T.Then():
                self._step(length - 1 - step if self.backwards else step, row)
            with T.Else():
                self._each_block(
                    lambda unit: _store(self.output, (step, self.at, row, unit), _f(0))
                )

    def _step(self, time: Expr, row: Expr) -> None:
        """Write one step: the cell, then the copy of its output to the state."""
        cell = {LSTM: self._lstm, GRU: self._gru, RNN: self._rnn}[self.layer.cell]
        cell(time, row)
        self._each_block(
            lambda unit: _store(
                self.state[0], (self.at, row, unit), self.output[time, self.at, row, unit]
            )
        )

    def _lstm(self, time: Expr, row: Expr) -> None:
        """Write a step of an LSTM with the gates i, o, f, c."""
        f, g, h = self.functions
        with T.serial(0, self.layer.blocks) as block:
            self._start(time, row, block, range(4))
            self._product(block, range(4), self.state[0], (self.at, row))
            with T.vectorized(0, self.layer.lanes) as lane:
                unit = block * self.layer.lanes + lane
                before = self.state[1][self.at, row, unit]
                into, forget = (
                    self._peeped(0, 0, lane, unit, before),
                    self._peeped(2, 2, lane, unit, before),
                )
                self.state[1][self.at, row, unit] = f(forget) * before + f(into) * g(
                    self.sums[3, lane]
                )
                after = self.state[1][self.at, row, unit]
                out = self._peeped(1, 1, lane, unit, after)
                self.output[time, self.at, row, unit] = f(out) * h(after)

    def _peeped(self, gate: int, peephole: int, lane: Expr, unit: Expr, state: Expr) -> Expr:
        """Return the accumulator of a gate, plus the peephole's product if there is one."""
        total = self.sums[gate, lane]
        return (
            total
            if self.peepholes is None
            else total + self.peepholes[self.at, peephole, unit] * state
        )

    def _gru(self, time: Expr, row: Expr) -> None:
        """Write a step of a GRU with the gates z, r, h.

        If the reset gate is applied before the product, it must be known for all units before any
        new state is computed; this takes two loops over the blocks.
        """
        f, g = self.functions
        lanes = self.layer.lanes
        state = self.state[0]
        if not self.layer.reset_after:
            with T.serial(0, self.layer.blocks) as block:
                self._start(time, row, block, range(2))
                self._product(block, range(2), state, (self.at, row))
                with T.vectorized(0, lanes) as lane:
                    unit = block * lanes + lane
                    self.update[unit] = f(self.sums[0, lane])
                    self.reset[unit] = f(self.sums[1, lane]) * state[self.at, row, unit]
            with T.serial(0, self.layer.blocks) as block:
                self._start(time, row, block, range(2, 3))
                self._product(block, range(2, 3), self.reset, ())
                with T.vectorized(0, lanes) as lane:
                    unit = block * lanes + lane
                    self._mixed(time, row, unit, self.update[unit], g(self.sums[2, lane]))
            return
        with T.serial(0, self.layer.blocks) as block:
            self._start(time, row, block, range(2))
            with T.vectorized(0, lanes) as lane:
                self.sums[2, lane] = self.bias[self.at, block * lanes + lane]
            self._product(block, range(3), state, (self.at, row))
            with T.vectorized(0, lanes) as lane:
                new = g(
                    self.input_gates[time, row, self.at, block, 2, lane]
                    + f(self.sums[1, lane]) * self.sums[2, lane]
                )
                self._mixed(time, row, block * lanes + lane, f(self.sums[0, lane]), new)

    def _mixed(self, time: Expr, row: Expr, unit: Expr, kept: Expr, new: Expr) -> None:
        """Write the output z * old state + (1 - z) * new state, where z is `kept`."""
        self.output[time, self.at, row, unit] = (_f(1) - kept) * new + kept * self.state[0][
            self.at, row, unit
        ]

    def _rnn(self, time: Expr, row: Expr) -> None:
        """Write a step of a plain RNN."""
        lanes = self.layer.lanes
        with T.serial(0, self.layer.blocks) as block:
            self._start(time, row, block, range(1))
            self._product(block, range(1), self.state[0], (self.at, row))
            with T.vectorized(0, lanes) as lane:
                self.output[time, self.at, row, block * lanes + lane] = self.functions[0](
                    self.sums[0, lane]
                )

    def _start(self, time: Expr, row: Expr, block: Expr, gates: range) -> None:
        """Initialise the accumulators with the input gates of the step."""
        for gate in gates:
            with T.vectorized(0, self.layer.lanes) as lane:
                self.sums[gate, lane] = self.input_gates[time, row, self.at, block, gate, lane]

    def _product(
        self, block: Expr, gates: range, state: tirx.Buffer, where: tuple[Expr, ...]
    ) -> None:
        """Add the product of the state and a block's weights to the accumulators."""
        with T.serial(0, self.layer.hidden) as other:
            for gate in gates:
                with T.vectorized(0, self.layer.lanes) as lane:
                    at, weight = (*where, other), self.weights[self.at, block, other, gate, lane]
                    self.sums[gate, lane] = self.sums[gate, lane] + state[at] * weight

    def _each_block(self, body: Callable[[Expr], None]) -> None:
        """Write `body(unit)` for every hidden unit, vectorized over the lanes of a block."""
        with T.serial(0, self.layer.blocks) as block, T.vectorized(0, self.layer.lanes) as lane:
            body(block * self.layer.lanes + lane)


def _store(buffer: Any, where: tuple[Expr, ...], value: Expr) -> None:
    buffer[where] = value


def _tanh(x: Expr) -> Expr:
    """Return tanh as vectorizable arithmetic; NaN stays NaN.

    The C library's function takes one number at a time.
    """
    within = tirx.max(_f(-_LIMIT), tirx.min(_f(_LIMIT), x))

    def value(x: Expr) -> Expr:
        ratio = let(x * x, lambda square: x * polynomial(_P, square) / polynomial(_Q, square))
        return tirx.Select(x >= _f(_LIMIT), _f(1), tirx.Select(x <= _f(-_LIMIT), _f(-1), ratio))

    return let(within, value)


def _sigmoid(x: Expr) -> Expr:
    return _f(0.5) + _f(0.5) * _tanh(_f(0.5) * x)


def _f(value: float) -> Expr:
    return tirx.const(value, _FLOAT)


FUNCTIONS: dict[str, Function] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": lambda x: tirx.max(_f(0), x),
}
