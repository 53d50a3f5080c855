"""Rules of operators that are sums of products: matrices, recurrent layers, quantized layers,
Fourier transforms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from random_operators.drawing import Draw, Rule
from random_operators.random_values import Shape

_TYPES = ("float32", "float32", "float64", "float16")
_EQUATIONS = (  # with the letters' extents drawn
    *("ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "bij,bkj->bik", "ij->ji", "ij->i", "ii->i", "ij->"),
    *("i,j->ij", "i,i->", "bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd", "nctkv,kvw->nctw", "ij,ij->ij"),
    *("...ij,...jk->...ik", "abc,cd->abd", "ij,jk,kl->il", "bi,bi->b", "ij,jk", "ba,ca->cb"),
    *("abcd,cde->abe", "ab,cd->dbca"),
)


def _matmul(draw: Draw) -> None:
    draw.node(*_fed(draw, [draw.array(one, dtype) for one, dtype in _factors(draw, _TYPES)]))


def _factors(draw: Draw, types: Any) -> list[tuple[Shape, str]]:
    """Return shapes of matrices, or of batches or a vector, that can be multiplied."""
    dtype = draw.dtype(types)
    rows, inner, columns = (draw.one_of([1, 2, 3, 5, 8, 17]) for _ in "ric")
    batch = draw.shape(0, 2, least=1)
    batch = tuple(min(extent, 4) for extent in batch)
    left: Shape = (*batch[draw.whole(0, len(batch)) :], rows, inner)
    right: Shape = (*(1 if draw.chance(0.3) else one for one in batch), inner, columns)
    which = draw.whole(0, 9)
    if which == 0:
        left = (inner,)
    elif which == 1:
        right = (inner,)
    return [(left, dtype), (right, dtype)]


def _fed(draw: Draw, arrays: list[Any]) -> list[str]:
    fed = draw.whole(0, len(arrays) - 1)
    return [
        draw.feed(array) if place == fed else draw.given(array)
        for place, array in enumerate(arrays)
    ]


def _gemm(draw: Draw) -> None:
    dtype = draw.dtype(_TYPES)
    rows, inner, columns = (draw.one_of([1, 2, 3, 5, 8, 17]) for _ in "ric")
    attributes = draw.some(transA=[0, 1, 1], transB=[0, 1, 1], alpha=[0.5, -2.0], beta=[0.3, 3.0])
    left = (inner, rows) if attributes.get("transA") else (rows, inner)
    right = (columns, inner) if attributes.get("transB") else (inner, columns)
    arrays = [draw.array(left, dtype), draw.array(right, dtype)]
    if draw.opset < 11 or draw.chance(0.8):
        added = draw.one_of([(), (columns,), (1, columns), (rows, 1), (rows, columns)])
        arrays.append(draw.array(added, dtype))
    draw.node(*_fed(draw, arrays), **attributes)


def _bytes(draw: Draw, shape: Any, dtype: str = "uint8") -> Any:
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    return np.asarray(draw.random.integers(low, high, shape)).astype(dtype)


def _matmul_integer(draw: Draw) -> None:
    (left, _), (right, _) = _factors(draw, ("uint8",))
    types = draw.one_of(["uint8", "int8"]), draw.one_of(["uint8", "int8"])
    matrices = _fed(draw, [_bytes(draw, left, types[0]), _bytes(draw, right, types[1])])
    each = (right[-1],) if len(right) > 1 and draw.chance(0.3) else ()
    zeros = [
        draw.constant(_bytes(draw, of, kind)) if draw.chance(0.6) else ""
        for of, kind in zip(((), each), types, strict=True)
    ]
    draw.node(*matrices, *zeros)


def _einsum(draw: Draw) -> None:
    equation = str(draw.one_of(_EQUATIONS))
    extents = {letter: draw.whole(1, 6) for letter in equation if letter.isalpha()}
    more = [draw.whole(1, 3) for _ in range(draw.whole(0, 2))]
    arrays = []
    for labels in equation.partition("->")[0].split(","):
        lead = more if labels.startswith("...") else []
        shape = [*lead, *(extents[one] for one in labels if one.isalpha())]
        arrays.append(draw.array(shape, "float32", scale=1.0))
    draw.node(*_fed(draw, arrays), equation=equation)


def _quantized_parts(draw: Draw, shape: Shape) -> tuple[dict[str, Any], Shape]:
    """Return the attribute axis, and the shape of scales: one, or one for each of an axis."""
    if draw.opset < 13 or draw.chance(0.4):
        return {}, ()
    axis = draw.axis(len(shape))
    stated = {} if axis == 1 and draw.chance(0.5) else {"axis": axis}
    return stated, (shape[axis],)


def _quantize(draw: Draw) -> None:
    shape = draw.shape(2, 4)
    stated, each = _quantized_parts(draw, shape)
    kinds = ["uint8", "int8", *(["int16", "uint16"] if draw.opset >= 21 else [])]
    kind = draw.one_of(kinds)
    scale = draw.between(0.05, 0.6, each, "float32")
    value = draw.array(shape, "float32", scale=30 if kind.endswith("8") else 3000)
    # Not halfway between two steps, where rounding of the scale decides.
    zero = np.asarray(draw.random.integers(0, 90, each)).astype(kind)
    inputs = [draw.feed(value), draw.constant(scale)]
    if draw.chance(0.8) or kind != "uint8":
        inputs.append(draw.constant(zero))
    draw.node(*inputs, **stated)


def _dequantize(draw: Draw) -> None:
    shape = draw.shape(2, 4)
    stated, each = _quantized_parts(draw, shape)
    kind = draw.one_of(["uint8", "int8", "int32"])
    scale = draw.between(0.05, 0.6, each, "float32")
    zero = np.asarray(draw.random.integers(0, 90, each)).astype(kind)
    inputs = [draw.feed(_bytes(draw, shape, kind)), draw.constant(scale)]
    if kind != "int32" and draw.chance(0.8):
        inputs.append(draw.constant(zero))
    draw.node(*inputs, **stated)


def _dynamic_quantize(draw: Draw) -> None:
    value = draw.array(draw.shape(1, 4)) + draw.one_of([0, 0, 7, -7])
    draw.node(draw.feed(value.astype("float32")), outputs=3)


def _qlinear_matmul(draw: Draw) -> None:
    (left, _), (right, _) = _factors(draw, ("uint8",))
    if len(left) < 2 or len(right) < 2:
        left, right = (3, 4), (4, 5)
    kind = draw.one_of(["uint8", "int8"])
    inputs = [
        draw.feed(_bytes(draw, left, kind)),
        draw.constant(np.float32(0.02)),
        draw.constant(_bytes(draw, (), kind)),
        draw.constant(_bytes(draw, right, kind)),
        draw.constant(np.float32(draw.one_of([0.013, 0.03]))),
        draw.constant(_bytes(draw, (), kind)),
        draw.constant(np.float32(draw.one_of([0.37, 0.11]))),
        draw.constant(_bytes(draw, (), kind)),
    ]
    draw.case.steps = 1
    draw.node(*inputs)


def _qlinear_conv(draw: Draw) -> None:
    groups = draw.one_of([1, 1, 2])
    depth, made = groups * draw.whole(1, 3), groups * draw.whole(1, 3)
    kernel = [draw.whole(1, 3), draw.whole(1, 3)]
    attributes = draw.some(
        strides=[[2, 1], [1, 3]], dilations=[[1, 2], [2, 1]], pads=[[1, 0, 0, 1], [1, 1, 1, 1]]
    )
    kind = draw.one_of(["uint8", "int8"])
    each = (made,) if draw.chance(0.4) else ()
    inputs = [
        draw.feed(_bytes(draw, (draw.whole(1, 2), depth, 7, 8), kind)),
        draw.constant(np.float32(0.02)),
        draw.constant(_bytes(draw, (), kind)),
        draw.constant(_bytes(draw, (made, depth // groups, *kernel), "int8")),
        draw.constant(draw.between(0.01, 0.04, each, "float32")),
        draw.constant(np.zeros(each, "int8")),
        draw.constant(np.float32(draw.one_of([0.37, 0.11]))),
        draw.constant(_bytes(draw, (), kind)),
    ]
    if draw.chance(0.5):
        inputs.append(draw.constant(draw.random.integers(-900, 900, made).astype("int32")))
    draw.case.steps = 1
    draw.node(*inputs, kernel_shape=kernel, group=groups, **attributes)


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}


def _recurrent(draw: Draw) -> None:
    operator = draw.case.operator
    steps, batch, depth, hidden = (
        draw.whole(1, 5),
        draw.whole(1, 3),
        draw.whole(1, 5),
        draw.one_of([1, 3, 5, 8, 17]),
    )
    attributes: dict[str, Any] = {"hidden_size": hidden}
    attributes |= draw.some(direction=["forward", "reverse", "bidirectional"])
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    gates, count = _GATES[operator], _ACTIVATIONS[operator]
    if draw.chance(0.3):
        attributes["activations"] = [
            draw.one_of(["Tanh", "Sigmoid", "Relu"]) for _ in range(count * directions)
        ]
    if operator == "GRU":
        attributes |= draw.some(linear_before_reset=[0, 1])
    layout = draw.opset >= 14 and draw.chance(0.4)
    lead = (batch, steps) if layout else (steps, batch)
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    made = {
        "X": draw.feed(draw.array((*lead, depth), scale=0.7)),
        "W": draw.given(draw.array((directions, gates * hidden, depth), scale=0.4)),
        "R": draw.given(draw.array((directions, gates * hidden, hidden), scale=0.4)),
        "B": "",
        "lengths": "",
        "h": "",
        "c": "",
        "P": "",
    }
    if draw.chance(0.7):
        made["B"] = draw.given(draw.array((directions, 2 * gates * hidden), scale=0.4))
    if draw.chance(0.4):
        lengths = draw.random.integers(1, steps + 1, batch)
        made["lengths"] = draw.given(lengths.astype("int32"))
    if draw.chance(0.5):
        made["h"] = draw.given(draw.array(state, scale=0.6))
    if operator == "LSTM" and draw.chance(0.5):
        made["c"] = draw.given(draw.array(state, scale=0.6))
    if operator == "LSTM" and draw.chance(0.3):
        made["P"] = draw.given(draw.array((directions, 3 * hidden), scale=0.4))
    outputs = 3 if operator == "LSTM" else 2
    draw.node(*made.values(), outputs=outputs, **attributes, **({"layout": 1} if layout else {}))
    if layout:  # which ONNX Runtime has not
        _in_the_other_layout(draw, made, outputs)


def _in_the_other_layout(draw: Draw, made: dict[str, str], outputs: int) -> None:
    """Write the reference: the layer with time first, between transpositions."""
    case = draw.case
    nodes, inputs = [], dict(made)
    for name in ("X", "h", "c"):
        if made[name]:
            inputs[name] = f"{name}_turned"
            nodes.append(
                helper.make_node("Transpose", [made[name]], [inputs[name]], perm=[1, 0, 2])
            )
    layer = case.nodes[-1].__class__.FromString(case.nodes[-1].SerializeToString())
    del layer.attribute[[one.name for one in layer.attribute].index("layout")]
    layer.input[:] = list(inputs.values())[: len(layer.input)]
    layer.output[:] = [f"{name}_turned" for name in case.outputs]
    nodes.append(layer)
    for place, name in enumerate(case.outputs[:outputs]):
        perm = [2, 0, 1, 3] if place == 0 else [1, 0, 2]
        nodes.append(helper.make_node("Transpose", [f"{name}_turned"], [name], perm=perm))
    case.reference = nodes


def _dft(draw: Draw) -> None:
    attributes = draw.some(inverse=[0, 1], onesided=[0, 1])
    if attributes.get("inverse"):
        attributes["onesided"] = 0
    parts = 1 if attributes.get("onesided") else draw.whole(1, 2)
    shape = (*draw.shape(2, 3, least=2), parts)
    shape = tuple(min(extent, 12) for extent in shape[:-1]) + shape[-1:]
    rank = len(shape)
    axis = draw.whole(1 if draw.opset < 20 else 0, rank - 2)
    axis = axis - rank if draw.chance(0.4) else axis
    length = draw.constant(np.asarray(draw.whole(2, 14), np.int64)) if draw.chance(0.4) else ""
    data = draw.feed(draw.array(shape))
    if draw.opset < 20:
        attributes |= {} if axis == 1 and draw.chance(0.5) else {"axis": axis}
        draw.node(data, length, **attributes)
        return
    along = "" if axis == -2 else draw.constant(np.asarray(axis, np.int64))
    draw.node(data, length, along, **attributes)


def _stft(draw: Draw) -> None:
    count, step = draw.whole(2, 9), draw.whole(1, 4)
    signal = draw.feed(draw.array((draw.whole(1, 2), count + draw.whole(0, 12), 1)))
    window = draw.constant(draw.between(0.2, 1, (count,), "float32")) if draw.chance(0.6) else ""
    length = draw.constant(np.asarray(count, np.int64)) if not window or draw.chance(0.6) else ""
    by = draw.constant(np.asarray(step, np.int64))
    draw.node(signal, by, window, length, **draw.some(onesided=[0, 1]))


def _attention(draw: Draw) -> None:
    batch, queries, keys = draw.whole(1, 2), draw.whole(1, 5), draw.whole(1, 6)
    shared, groups, size = draw.whole(1, 2), draw.one_of([1, 1, 2]), draw.one_of([2, 4, 8])
    heads, value_size = shared * groups, draw.one_of([2, 4, 8])
    shapes: list[Shape] = [
        (batch, heads, queries, size),
        (batch, shared, keys, size),
        (batch, shared, keys, value_size),
    ]
    attributes = draw.some(scale=[0.3, 1.0], is_causal=[0, 1], softcap=[0.0, 2.0])
    if draw.chance(0.4):
        shapes = [(one[0], one[2], one[1] * one[3]) for one in shapes]
        attributes |= {"q_num_heads": heads, "kv_num_heads": shared}
    arrays = [draw.feed(draw.array(one, scale=0.8)) for one in shapes]
    mask = ""
    if not attributes.get("is_causal") and draw.chance(0.5):
        kind = draw.one_of(["float32", "bool"])
        drawn = draw.array((queries, keys), kind)
        drawn[:, 0] = kind == "bool"
        mask = draw.feed(drawn)
    draw.node(*arrays, mask, **attributes)


def _rotary(draw: Draw) -> None:
    batch, heads, steps, size = draw.whole(1, 2), draw.whole(1, 3), draw.whole(1, 5), 8
    attributes = draw.some(interleaved=[0, 1], rotary_embedding_dim=[0, 4])
    half = (attributes.get("rotary_embedding_dim") or size) // 2
    shape: Shape = (batch, heads, steps, size)
    if draw.chance(0.4):
        shape = (batch, steps, heads * size)
        attributes["num_heads"] = heads
    data = draw.feed(draw.array(shape))
    if draw.chance(0.5):
        tables = [draw.constant(draw.between(-1, 1, (9, half), "float32")) for _ in "cs"]
        places = draw.feed(draw.random.integers(0, 9, (batch, steps)).astype(np.int64))
        draw.node(data, *tables, places, **attributes)
    else:
        tables = [draw.given(draw.between(-1, 1, (batch, steps, half), "float32")) for _ in "cs"]
        draw.node(data, *tables, **attributes)


RULES: dict[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "MatMulInteger": _matmul_integer,
    "Einsum": _einsum,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
    **dict.fromkeys(_GATES, _recurrent),
    "DFT": _dft,
    "STFT": _stft,
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
}
