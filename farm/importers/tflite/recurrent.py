"""Convert UNIDIRECTIONAL_SEQUENCE_LSTM, of which TVM has one form only.

The products of all inputs are one product; what depends on the step before follows step by step.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter

_INPUT_GATE, _FORGET_GATE, _CELL, _OUTPUT_GATE = range(4)  # in the order of the inputs
# Below it, LiteRT's tanh of a cell state of int16 has no case (lstm_eval.cc, ApplyTanh)
_LEAST_CELL_SCALE = 2.0**-15
_ACROSS, _PEEPHOLES, _BIASES, _PROJECTION, _SCALES = 5, 9, 12, 16, 20


def convert_sequence_lstm(converter: OperatorConverter, op: Any, options: Any) -> Any:
    """Return the outputs of all steps; raise ValueError if gates are normalized."""
    emit = converter.bb.emit
    indices = [int(index) for index in op.InputsAsNumpy()]

    def given(place: int) -> Any:
        index = indices[place] if place < len(indices) else -1
        return None if index < 0 else converter.bb.normalize(converter.get_expr(index))

    if any(given(_SCALES + gate) is not None for gate in range(4)):
        raise ValueError("an LSTM whose gates are normalized is not supported")
    states = [one for one in converter.get_input_tensors(op) if _is_quantized_state(one)]
    if any(float(one.qnn_params["scale"].value.numpy()) < _LEAST_CELL_SCALE for one in states):
        raise ValueError(
            "an LSTM of int8 whose cell state has a scale below 2**-15, which LiteRT itself "
            "computes wrongly; convert it with data for which its states reach 1"
        )
    # Without its own gate, an input is what is not forgotten.
    gates = [gate for gate in range(4) if given(1 + gate) is not None]
    into = emit(relax.op.permute_dims(emit(relax.op.concat([given(1 + at) for at in gates], 0))))
    across = emit(relax.op.concat([given(_ACROSS + at) for at in gates], 0))
    across = emit(relax.op.permute_dims(across))
    biases = emit(relax.op.concat([given(_BIASES + at) for at in gates], 0))
    data = given(0)
    if not options.TimeMajor():
        data = emit(relax.op.permute_dims(data, [1, 0, 2]))
    steps, batch = (int(extent) for extent in list(data.ty.shape)[:2])
    cells, outputs = int(given(1 + _CELL).ty.shape[0]), int(across.ty.shape[0])
    products = emit(relax.op.add(emit(relax.op.matmul(data, into)), biases))
    hidden = emit(relax.op.zeros((batch, outputs), "float32"))
    cell = emit(relax.op.zeros((batch, cells), "float32"))

    def active(value: Any) -> Any:
        kind = options.FusedActivationFunction()
        return converter.bb.normalize(converter.convert_fused_activation_function(value, kind))

    def clipped(value: Any, limit: float) -> Any:
        return emit(relax.op.clip(value, -limit, limit)) if limit > 0 else value

    def opened(value: Any, gate: int, seen: Any) -> Any:
        peephole = given(_PEEPHOLES + (_INPUT_GATE, _FORGET_GATE, -1, 2)[gate])
        if peephole is not None:
            value = emit(relax.op.add(value, emit(relax.op.multiply(peephole, seen))))
        return emit(relax.op.sigmoid(value))

    made = []
    for step in range(steps):
        row = emit(relax.op.strided_slice(products, [0], [step], [step + 1]))
        row = emit(relax.op.reshape(row, (batch, cells * len(gates))))
        row = emit(relax.op.add(row, emit(relax.op.matmul(hidden, across))))
        split = emit(relax.op.split(row, len(gates), 1))
        part = {gate: emit(relax.TupleGetItem(split, at)) for at, gate in enumerate(gates)}
        kept = opened(part[_FORGET_GATE], _FORGET_GATE, cell)
        if _INPUT_GATE in part:
            taken = opened(part[_INPUT_GATE], _INPUT_GATE, cell)
        else:
            taken = emit(relax.op.subtract(relax.const(1.0, "float32"), kept))
        new = emit(relax.op.multiply(taken, active(part[_CELL])))
        cell = emit(relax.op.add(emit(relax.op.multiply(kept, cell)), new))
        cell = clipped(cell, float(options.CellClip()))
        shown = opened(part[_OUTPUT_GATE], _OUTPUT_GATE, cell)
        hidden = emit(relax.op.multiply(shown, active(cell)))
        if (projection := given(_PROJECTION)) is not None:
            hidden = emit(relax.op.matmul(hidden, emit(relax.op.permute_dims(projection))))
            if (bias := given(_PROJECTION + 1)) is not None:
                hidden = emit(relax.op.add(hidden, bias))
            hidden = clipped(hidden, float(options.ProjClip()))
        made.append(hidden)
    return relax.op.stack(made, 0 if options.TimeMajor() else 1)


def _is_quantized_state(tensor: Any) -> bool:
    """Return whether a tensor is a cell state of int16."""
    from tflite.TensorType import TensorType

    return (
        tensor.qnn_params is not None
        and tensor.tensor.IsVariable()
        and tensor.tensor.Type() == TensorType.INT16
    )
