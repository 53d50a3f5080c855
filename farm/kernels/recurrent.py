"""Emit recurrent layers as one TIR kernel that loops over all steps.

The product of the inputs with their weights is computed before, by one matrix product. A block of
`lanes` hidden units keeps all of its gates in adjacent vectors, so that the accumulators of a step
stay in registers until the new state is computed from them. Hidden units are padded with zeros to
whole blocks. Symbols in the shapes below:

    T steps, B sequences, D directions (1 or 2), H hidden units, N blocks of L lanes, G gates
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
_LAYER = "farm.recurrent_layer"  # the annotation of a kernel
# Of the recurrent weights: layers of 147 KiB and more were faster with two threads on Zen 5.
_DIVIDED_BYTES = 1 << 17
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
    rows_together: int = 1  # sequences that share a weight while it is in a register

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

    @property
    def divides_blocks(self) -> bool:
        """Return whether the blocks of a step are divided among threads.

        The threads wait for one another after each step, which pays only if a step has enough work.
        Of two directions, each has a thread of its own.
        """
        weights = 4 * self.gates * self.hidden * self.blocks * self.lanes
        return len(self.backwards) == 1 and self.blocks > 1 and weights >= _DIVIDED_BYTES


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
            attrs={_LAYER: json.dumps(asdict(layer))},
        )
        return list(made)

    return builder.emit(builder.call_te(body, *operands, primfunc_name_hint=NAME))


def layer_of_kernel(kernel: tirx.PrimFunc) -> RecurrentLayer | None:
    """Return the layer that a kernel of `emit_recurrent_layer` computes; None for any other."""
    block = getattr(kernel.body, "block", None)
    text = None if block is None else block.annotations.get(_LAYER)
    if text is None:
        return None
    fields = json.loads(str(text))
    activations = tuple(tuple(names) for names in fields.pop("activations"))
    backwards = tuple(fields.pop("backwards"))
    return RecurrentLayer(**fields, activations=activations, backwards=backwards)


def _program(
    layer: RecurrentLayer, inputs: Sequence[tirx.Buffer], outputs: Sequence[tirx.Buffer]
) -> tirx.Stmt:
    """Return the TIR statement of the layer.

    Two directions run in parallel, or the blocks of a single one if `divides_blocks`.
    """
    directions = len(layer.backwards)
    kind = T.serial if directions == 1 else T.parallel
    with IRBuilder() as program, kind(0, directions) as direction:
        if directions == 1:
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
        """Write the copies of the first state, the loops over steps, and a copy of the last state.

        The hidden state has two buffers: a step writes one while its blocks read the other.
        """
        layer = self.layer
        full = layer.blocks * layer.lanes
        self.hidden = T.buffer_proxy(T.alloc_buffer((2, layer.batch, full), _FLOAT))
        if layer.cell == GRU and not layer.reset_after:
            self.reset, self.update = (
                T.buffer_proxy(T.alloc_buffer((layer.batch, full), _FLOAT)) for _ in range(2)
            )

        def begin(row: Expr, unit: Expr) -> None:
            self.hidden[0, row, unit] = self.first[0][self.at, row, unit]
            if layer.cell == LSTM:
                self.state[1][self.at, row, unit] = self.first[1][self.at, row, unit]

        def end(row: Expr, unit: Expr) -> None:
            self.state[0][self.at, row, unit] = self.hidden[layer.steps % 2, row, unit]

        self._each_unit(begin)
        with contextlib.ExitStack() as launch:
            if layer.divides_blocks:
                launch.enter_context(_pragma("parallel_launch_point"))
            step = launch.enter_context(T.serial(0, layer.steps))
            {LSTM: self._lstm, GRU: self._gru, RNN: self._rnn}[layer.cell](step)
        self._each_unit(end)

    def _each_unit(self, body: Callable[[Expr, Expr], None]) -> None:
        """Write `body(row, unit)` for every hidden unit, vectorized over the lanes of a block."""
        rows, blocks, lanes = self.layer.batch, self.layer.blocks, self.layer.lanes
        with T.serial(0, rows) as row, T.serial(0, blocks) as block, T.vectorized(0, lanes) as lane:
            body(row, block * lanes + lane)

    def _each_block(self, step: Expr, body: Callable[[Expr, list[Expr], Expr], None]) -> None:
        """Write `body(time, rows, block)` for every block and all sequences that have this step.

        The outputs of the other sequences are 0, and their states stay. One thread takes the blocks
        in reverse order in odd steps: a step then begins with the weights that are still in the
        cache. Several threads do not, so that each keeps its own blocks.
        """
        layer = self.layer
        with contextlib.ExitStack() as loops:
            if layer.divides_blocks:
                loops.enter_context(_pragma("parallel_barrier_when_finish"))
                block = loops.enter_context(T.parallel(0, layer.blocks))
            else:
                index = loops.enter_context(T.serial(0, layer.blocks))
                block = tirx.Select(step % 2 == 0, index, layer.blocks - 1 - index)
            together = layer.rows_together
            self.sums = T.buffer_proxy(
                T.alloc_buffer((together * layer.gates, layer.lanes), _FLOAT, scope="local")
            )
            if self.lengths is None:
                time = layer.steps - 1 - step if self.backwards else step
                whole, rest = divmod(layer.batch, together)
                with T.serial(0, whole) as tile:
                    body(time, [tile * together + place for place in range(together)], block)
                if rest:
                    body(time, [whole * together + place for place in range(rest)], block)
                return
            row = loops.enter_context(T.serial(0, layer.batch))
            length = self.lengths[row]
            with T.If(step < length):
                with T.Then():
                    body(length - 1 - step if self.backwards else step, [row], block)
                with T.Else(), T.vectorized(0, layer.lanes) as lane:
                    unit = block * layer.lanes + lane
                    self.output[step, self.at, row, unit] = _f(0)
                    self.hidden[1 - step % 2, row, unit] = self.hidden[step % 2, row, unit]

    def _write_hidden(self, time: Expr, step: Expr, row: Expr, unit: Expr, value: Expr) -> None:
        """Write the hidden state of a unit after a step, and the output, which is the same."""
        self.output[time, self.at, row, unit] = value
        self.hidden[1 - step % 2, row, unit] = self.output[time, self.at, row, unit]

    def _lstm(self, step: Expr) -> None:
        """Write a step of an LSTM with the gates i, o, f, c."""
        f, g, h = self.functions

        def write(time: Expr, rows: list[Expr], block: Expr) -> None:
            self._start(time, rows, block, range(4))
            self._product(block, range(4), self.hidden, [(step % 2, row) for row in rows])
            for place, row in enumerate(rows):
                with T.vectorized(0, self.layer.lanes) as lane:
                    unit = block * self.layer.lanes + lane
                    before = self.state[1][self.at, row, unit]
                    into, out, forget, new = (self._sum(place, gate, lane) for gate in range(4))
                    into = self._peeped(into, 0, unit, before)
                    forget = self._peeped(forget, 2, unit, before)
                    self.state[1][self.at, row, unit] = f(forget) * before + f(into) * g(new)
                    after = self.state[1][self.at, row, unit]
                    out = self._peeped(out, 1, unit, after)
                    self._write_hidden(time, step, row, unit, f(out) * h(after))

        self._each_block(step, write)

    def _sum(self, place: int, gate: int, lane: Expr) -> Expr:
        """Return the accumulator of a gate of one of the sequences that are computed together."""
        return self.sums[place * self.layer.gates + gate, lane]

    def _peeped(self, total: Expr, peephole: int, unit: Expr, state: Expr) -> Expr:
        """Return the sum of a gate, plus the peephole's product if there is one."""
        return (
            total
            if self.peepholes is None
            else total + self.peepholes[self.at, peephole, unit] * state
        )

    def _gru(self, step: Expr) -> None:
        """Write a step of a GRU with the gates z, r, h.

        If the reset gate is applied before the product, it must be known for all units before any
        new state is computed; this takes two loops over the blocks.
        """
        f, g = self.functions
        lanes, before = self.layer.lanes, step % 2

        def write_gates(time: Expr, rows: list[Expr], block: Expr) -> None:
            self._start(time, rows, block, range(2))
            self._product(block, range(2), self.hidden, [(before, row) for row in rows])
            for place, row in enumerate(rows):
                with T.vectorized(0, lanes) as lane:
                    unit = block * lanes + lane
                    old = self.hidden[before, row, unit]
                    self.update[row, unit] = f(self._sum(place, 0, lane))
                    self.reset[row, unit] = f(self._sum(place, 1, lane)) * old

        def write_state(time: Expr, rows: list[Expr], block: Expr) -> None:
            self._start(time, rows, block, range(2, 3))
            self._product(block, range(2, 3), self.reset, [(row,) for row in rows])
            for place, row in enumerate(rows):
                with T.vectorized(0, lanes) as lane:
                    unit = block * lanes + lane
                    new = g(self._sum(place, 2, lane))
                    self._mix(time, step, row, unit, self.update[row, unit], new)

        def write(time: Expr, rows: list[Expr], block: Expr) -> None:
            self._start(time, rows, block, range(2))
            for place in range(len(rows)):
                with T.vectorized(0, lanes) as lane:
                    at = place * self.layer.gates + 2
                    self.sums[at, lane] = self.bias[self.at, block * lanes + lane]
            self._product(block, range(3), self.hidden, [(before, row) for row in rows])
            for place, row in enumerate(rows):
                with T.vectorized(0, lanes) as lane:
                    update, reset, new = (self._sum(place, gate, lane) for gate in range(3))
                    new = g(self.input_gates[time, row, self.at, block, 2, lane] + f(reset) * new)
                    self._mix(time, step, row, block * lanes + lane, f(update), new)

        for part in (write,) if self.layer.reset_after else (write_gates, write_state):
            self._each_block(step, part)

    def _mix(self, time: Expr, step: Expr, row: Expr, unit: Expr, kept: Expr, new: Expr) -> None:
        """Write the output z * old state + (1 - z) * new state, where z is `kept`."""
        value = (_f(1) - kept) * new + kept * self.hidden[step % 2, row, unit]
        self._write_hidden(time, step, row, unit, value)

    def _rnn(self, step: Expr) -> None:
        """Write a step of a plain RNN."""

        def write(time: Expr, rows: list[Expr], block: Expr) -> None:
            self._start(time, rows, block, range(1))
            self._product(block, range(1), self.hidden, [(step % 2, row) for row in rows])
            for place, row in enumerate(rows):
                with T.vectorized(0, self.layer.lanes) as lane:
                    unit = block * self.layer.lanes + lane
                    value = self.functions[0](self._sum(place, 0, lane))
                    self._write_hidden(time, step, row, unit, value)

        self._each_block(step, write)

    def _start(self, time: Expr, rows: list[Expr], block: Expr, gates: range) -> None:
        """Initialise the accumulators with the input gates of the step."""
        for place, row in enumerate(rows):
            for gate in gates:
                with T.vectorized(0, self.layer.lanes) as lane:
                    at = place * self.layer.gates + gate
                    self.sums[at, lane] = self.input_gates[time, row, self.at, block, gate, lane]

    def _product(
        self, block: Expr, gates: range, state: tirx.Buffer, where: list[tuple[Expr, ...]]
    ) -> None:
        """Add the products of each sequence's state and a block's weights to the accumulators.

        `where` are the places of the states in the buffer.
        """
        with T.serial(0, self.layer.hidden) as other:
            for gate in gates:
                for place, row in enumerate(where):
                    with T.vectorized(0, self.layer.lanes) as lane:
                        weight = self.weights[self.at, block, other, gate, lane]
                        at = place * self.layer.gates + gate
                        total = self.sums[at, lane] + state[(*row, other)] * weight
                        self.sums[at, lane] = total


def _pragma(name: str) -> Any:
    """Return the scope of one of TVM's pragmas for statements that threads run together."""
    return T.attr(tirx.const(0, "int32"), f"pragma_{name}", 1)


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
