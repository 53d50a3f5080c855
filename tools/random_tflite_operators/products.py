"""Rules of operators that are sums of products."""

from __future__ import annotations

from random_tflite_operators.drawing import Draw, Rule
from random_tflite_operators.elementwise import ACTIVATIONS
from random_tflite_operators.images import bias, weights

_TANH = 4


def _fully_connected(draw: Draw) -> None:
    dtype = draw.one_of(("float32", "float32", "int8", "int8", "uint8", "int16"))
    depth, out = draw.whole(1, 17), draw.whole(1, 9)
    shape = (*draw.shape(1, 3), depth)
    data = draw.data(shape, dtype)
    if dtype == "float32" and draw.chance(0.2):
        weight = draw.feed(draw.array((out, depth)))
    else:
        weight = weights(draw, (out, depth), dtype, 0)
    given = [data, weight, bias(draw, out, data, weight)]
    result = draw.made(dtype)
    one = draw.case.tensors[result]
    if one.scale is not None:
        one.scale = float(one.scale * draw.one_of((1, 3, 10)))
    fields = {"fusedActivationFunction": draw.one_of(ACTIVATIONS), "keepNumDims": draw.chance(0.4)}
    draw.op(given, [result], "FullyConnectedOptions", **fields)


def _batch_matmul(draw: Draw) -> None:
    dtype = draw.one_of(("float32", "float32", "float32", "int8", "int16"))
    batch = draw.shape(0, 2)
    batches = [batch, batch]
    if draw.chance(0.4):
        place = draw.whole(0, 1)
        part = batch[draw.whole(0, len(batch)) :]
        batches[place] = tuple(1 if draw.chance(0.4) else one for one in part)
    rows, depth, columns = (draw.whole(1, 8) for _ in range(3))
    adjoint = {"adjX": draw.chance(0.4), "adjY": draw.chance(0.4)}
    sides = [(rows, depth), (depth, columns)]
    given = []
    for which, side, turned in zip(batches, sides, adjoint.values(), strict=True):
        shape = (*which, *(side[::-1] if turned else side))
        if given and draw.chance(0.4):
            given.append(draw.constant(draw.values(shape, dtype), **draw.quantization(dtype)))
        else:
            given.append(draw.data(shape, dtype))
    result = draw.made(dtype)
    one = draw.case.tensors[result]
    if one.scale is not None:
        one.scale = float(one.scale * draw.one_of((3, 10)))
    draw.op(given, [result], "BatchMatMulOptions", **adjoint)


def _sequence_lstm(draw: Draw) -> None:
    batch, steps, size, cells = (draw.whole(1, 4) for _ in range(4))
    major = draw.chance(0.5)
    data = draw.data((steps, batch, size) if major else (batch, steps, size), "float32")

    def weight(*shape: int) -> int:
        return draw.constant(draw.array(shape, scale=0.5))

    coupled, peephole = draw.chance(0.2), draw.chance(0.25)
    into = [-1 if coupled and not at else weight(cells, size) for at in range(4)]
    project = draw.chance(0.25)
    outputs = draw.whole(1, 3) if project else cells
    across = [-1 if coupled and not at else weight(cells, outputs) for at in range(4)]
    peep = [weight(cells) if peephole and not (coupled and not at) else -1 for at in range(3)]
    biases = [-1 if coupled and not at else weight(cells) for at in range(4)]
    projection = (
        [weight(outputs, cells), weight(outputs) if draw.chance(0.5) else -1]
        if project
        else [-1, -1]
    )
    states = [draw.state((batch, outputs)), draw.state((batch, cells))]
    given = [data, *into, *across, *peep, *biases, *projection, *states]
    if draw.chance(0.15):
        given += [-1 if coupled and not at else weight(cells) for at in range(4)]
    else:
        given += [-1] * 4
    fields = {"fusedActivationFunction": _TANH, "timeMajor": major}
    fields |= draw.some(cellClip=[0.5], projClip=[0.5])
    draw.op(given, [draw.made("float32")], "UnidirectionalSequenceLSTMOptions", **fields)


def _sequence_rnn(draw: Draw) -> None:
    batch, steps, size, cells = (draw.whole(1, 4) for _ in range(4))
    major = draw.chance(0.5)
    data = draw.data((steps, batch, size) if major else (batch, steps, size), "float32")
    parts = [
        draw.constant(draw.array(shape, scale=0.5))
        for shape in ((cells, size), (cells, cells), (cells,))
    ]
    fields = {"timeMajor": major, "fusedActivationFunction": draw.one_of((1, 3, _TANH))}
    given = [data, *parts, draw.state((batch, cells))]
    draw.op(given, [draw.made("float32")], "SequenceRNNOptions", **fields)


RULES: dict[str, Rule] = {
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence_lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _sequence_rnn,
}
