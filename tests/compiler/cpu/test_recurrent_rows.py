"""Sequences of a recurrent layer that are computed together have the answers of each alone."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import CPUS, compute, lowered, target
from tvm import relax

from farm.compiler.cpu.rows.recurrent_rows import rows_together
from farm.compiler.target.cpu_model import cpu_model_of
from farm.kernels.recurrent import RecurrentLayer, emit_recurrent_layer

numbers = np.random.default_rng(31)
ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


def layer_of(cell, batch, hidden=20, **options):
    directions = options.pop("directions", 1)
    return RecurrentLayer(
        *(cell, 5, batch, hidden, (False, True)[:directions]),
        (ACTIVATIONS[cell],) * directions,
        **options,
    )


def operands_of(layer):
    directions, full = len(layer.backwards), layer.blocks * layer.lanes
    shapes = [
        (layer.steps, layer.batch, directions, layer.blocks, layer.gates, layer.lanes),
        (directions, layer.blocks, layer.hidden, layer.gates, layer.lanes),
        *[(directions, layer.batch, full)] * (2 if layer.cell == "LSTM" else 1),
        *([(directions, full)] if layer.reset_after else []),
        *([(directions, 3, full)] if layer.peepholes else []),
    ]
    made = [numbers.standard_normal(shape).astype("float32") / 2 for shape in shapes]
    if layer.masked:
        made.append(numbers.integers(0, layer.steps + 1, layer.batch).astype("int32"))
    return made


def module_of(layer, operands):
    """Its inputs, and what they are made of."""
    inputs = {f"x{place}": operand for place, operand in enumerate(operands)}

    def body(emit, *variables):
        made = emit_recurrent_layer(relax.BlockBuilder.current(), layer, list(variables))
        return [emit(made[place]) for place in range(2 + (layer.cell == "LSTM"))]

    return inputs, body


def results(layer, operands, cpu="native"):
    return compute(*module_of(layer, operands), cpu=cpu)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    ("cell", "batch", "options"),
    [
        ("LSTM", 2, {}),
        ("LSTM", 13, {"peepholes": True, "directions": 2}),
        ("GRU", 7, {}),
        ("GRU", 13, {"reset_after": True}),
        ("RNN", 7, {"directions": 2}),
        ("LSTM", 7, {"masked": True}),
    ],
    ids=str,
)
def test_each_sequence_has_the_answer_that_it_has_alone(cell, batch, options, cpu):
    layer = layer_of(cell, batch, **options)
    operands = operands_of(layer)
    together = results(layer, operands, cpu).outputs
    alone = layer_of(cell, 1, **options)
    for row in (0, batch - 1):  # the last is of a smaller tile
        own = [operands[0][:, row : row + 1], operands[1]]
        for operand in operands[2:]:
            if operand.ndim == 1:
                own.append(operand[row : row + 1])
            elif operand.shape[:2] == (len(layer.backwards), batch):
                own.append(operand[:, row : row + 1])
            else:
                own.append(operand)
        for ours, single in zip(together, results(alone, own, cpu).outputs, strict=True):
            np.testing.assert_allclose(
                ours[..., row, :], single[..., 0, :], atol=1e-6, err_msg=f"sequence {row}"
            )


def test_the_kernel_is_written_again_for_the_cpu():
    layer = layer_of("GRU", 12)
    written = str(lowered(*module_of(layer, operands_of(layer)), cpu="x86-64-v4").module)
    assert '"rows_together\\": 6' in written


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (4, 4), (7, 4), (12, 6), (13, 5)])
def test_sequences_are_divided_evenly_among_the_registers_of_avx512(batch, rows):
    cpu = cpu_model_of(target("x86-64-v4"))
    assert rows_together(layer_of("LSTM", batch), cpu) == rows
    assert rows_together(layer_of("LSTM", batch, masked=True), cpu) == 1


def test_one_sequence_fills_the_registers_of_avx2():
    cpu = cpu_model_of(target("x86-64-v3"))
    assert rows_together(layer_of("LSTM", 12), cpu) == 1
