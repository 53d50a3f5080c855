"""Convert operators on complex numbers, which Relax has no element type for.

A complex tensor is a tensor of reals with one more axis, the last, which has the real and the
imaginary part: the tensor that `torch.view_as_real` returns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import tvm_ffi
from torch.export.graph_signature import InputKind
from tvm import relax

from farm.errors import ModelError
from farm.importers.fourier import fourier_transform, inverse_transform_to_reals
from farm.importers.torch.converters.operators import node_argument

Converter = Callable[[Any, Any], Any]  # (node, importer) -> Relax expression of the node


def is_complex(node: Any) -> bool:
    """Return whether a node of a torch graph has a complex tensor."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()


def with_real_weights(program: torch.export.ExportedProgram, what: str) -> Any:
    """Return the program with its complex weights as tensors of reals.

    The program itself is not changed. Raises ModelError if an input or output is complex.
    """
    _check_interface(program, what)
    specs = program.graph_signature.input_specs
    weights = {spec.target for spec in specs if spec.kind is not InputKind.USER_INPUT}
    tensors = {**program.state_dict, **program.constants}
    if not any(name in tensors and tensors[name].is_complex() for name in weights):
        return program
    changed = copy.copy(program)
    for name in ("_state_dict", "_constants"):
        setattr(
            changed,
            name,
            {
                key: torch.view_as_real(value.detach().resolve_conj())
                if isinstance(value, torch.Tensor) and value.is_complex()
                else value
                for key, value in getattr(program, name).items()
            },
        )
    return changed


def _check_interface(program: torch.export.ExportedProgram, what: str) -> None:
    """Raise ModelError for complex inputs and outputs."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    for side, names in (("input", signature.user_inputs), ("output", signature.user_outputs)):
        for name in names:
            if isinstance(name, str) and name in nodes and is_complex(nodes[name]):
                where = "" if side == "output" else f" {name!r}"
                fix = (
                    "export a module that takes and returns real numbers: torch.view_as_complex of "
                    "its inputs, torch.view_as_real of its outputs"
                )
                raise ModelError(
                    f"{what}: an {side}{where} has complex numbers",
                    "boards are fed real numbers, and return them",
                    fix,
                )


def converters(others: Mapping[str, Converter]) -> dict[str, Converter]:
    """Return converters of operators that may have complex operands or results.

    `others` are farm's converters for real numbers; TVM's convert what is not in it.
    """
    return {name: _for_both(name, rule, others.get(name)) for name, rule in _RULES.items()}


def lacks_converter(node: torch.fx.Node) -> bool:
    """Return whether a node has complex operands or results, and no converter for these."""
    return _has_complex(node) and node.target.__name__ not in _RULES


def _has_complex(node: torch.fx.Node) -> bool:
    """Return whether an operand or the result of a node is complex."""
    return is_complex(node) or any(map(is_complex, node.all_input_nodes))


def _for_both(name: str, rule: Converter, other: Converter | None) -> Converter:
    """Return a converter by `rule` where numbers are complex, else by `other` or TVM's."""

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        if _has_complex(node):
            return rule(node, importer)
        if other is not None:
            return other(node, importer)
        theirs = importer.create_convert_map().get(name)
        if theirs is None:
            raise NotImplementedError(f"{name} of real numbers")
        return theirs(node)

    return convert


def _real_dtype(node: torch.fx.Node) -> str:
    """Return the type of the real numbers of a node."""
    return str(node.meta["val"].dtype.to_real()).removeprefix("torch.")


def _parts(operand: Any, dtype: str, importer: Any) -> tuple[relax.Expr, relax.Expr | None]:
    """Return the real and the imaginary part of an operand in a type; None for a real one's."""
    emit = importer.block_builder.emit
    if not isinstance(operand, torch.fx.Node):
        number = complex(operand)
        imaginary = relax.const(number.imag, dtype) if isinstance(operand, complex) else None
        return relax.const(number.real, dtype), imaginary
    value = importer.env[operand]
    if str(value.ty.dtype) != dtype:
        value = emit(relax.op.astype(value, dtype))
    if not is_complex(operand):
        return value, None
    real, imaginary = _both(value, importer)
    return real, imaginary


def _joined(real: relax.Expr, imaginary: relax.Expr | None, importer: Any) -> relax.Expr:
    """Return the complex tensor of two parts, which are broadcast; None stands for zeros."""
    emit = importer.block_builder.emit
    if imaginary is None:
        imaginary = emit(relax.op.zeros_like(real))
    elif not tvm_ffi.structural_equal(real.ty.shape, imaginary.ty.shape):
        zeros = [emit(relax.op.zeros_like(part)) for part in (imaginary, real)]
        real, imaginary = (
            emit(relax.op.add(part, zero))
            for part, zero in zip((real, imaginary), zeros, strict=True)
        )
    return emit(relax.op.stack([real, imaginary], -1))


def _identity(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert an operator that changes no element: view_as_real and clone, among others."""
    return importer.env[node.args[0]]


def _to_copy(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a change of the element type; a real number gets the imaginary part 0."""
    real, imaginary = _parts(node.args[0], _real_dtype(node), importer)
    return _joined(real, imaginary, importer) if is_complex(node) else real


def _complex(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert torch.complex, which joins two real tensors."""
    return _joined(importer.env[node.args[0]], importer.env[node.args[1]], importer)


def _polar(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert torch.polar: numbers of an absolute value and an angle."""
    return _of_polar(importer.env[node.args[0]], importer.env[node.args[1]], importer)


def _of_polar(size: relax.Expr, angle: relax.Expr, importer: Any) -> relax.Expr:
    """Return the complex tensor of absolute values and angles."""
    emit = importer.block_builder.emit
    return _joined(
        _times(size, emit(relax.op.cos(angle)), emit),
        _times(size, emit(relax.op.sin(angle)), emit),
        importer,
    )


def _full(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a tensor of one number, such as zeros."""
    number, dtype = complex(node.args[1]), _real_dtype(node)
    shape = [importer.env[one] if isinstance(one, torch.fx.Node) else one for one in node.args[0]]
    parts = [
        importer.block_builder.emit(relax.op.full(shape, relax.const(part, dtype), dtype))
        for part in (number.real, number.imag)
    ]
    return _joined(parts[0], parts[1], importer)


def _sum_or_difference(operator: Callable[..., relax.Expr]) -> Converter:
    """Return the converter of add or sub, whose `alpha` is a factor of the second operand."""

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        dtype, emit = _real_dtype(node), importer.block_builder.emit
        left = _parts(node.args[0], dtype, importer)
        factor = relax.const(float(node.kwargs.get("alpha", 1)), dtype)
        right = [
            None if part is None else _times(part, factor, emit)
            for part in _parts(node.args[1], dtype, importer)
        ]
        real = emit(operator(left[0], right[0]))
        if left[1] is not None and right[1] is not None:
            return _joined(real, emit(operator(left[1], right[1])), importer)
        if right[1] is None:
            return _joined(real, left[1], importer)
        zero = relax.const(0, dtype)
        return _joined(real, emit(operator(zero, right[1])), importer)

    return convert


def _mul(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a product element by element."""
    return _product(relax.op.multiply, node, importer)


def _matmul(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a product of matrices."""
    return _product(relax.op.matmul, node, importer)


def _linear(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a product with a transposed matrix, and a sum with a bias."""

    def by_transposed(data: relax.Expr, weight: relax.Expr) -> relax.Expr:
        transposed = importer.block_builder.emit(relax.op.permute_dims(weight))
        return relax.op.matmul(data, transposed)

    made = _product(by_transposed, node, importer)
    bias = node_argument(node, 2, "bias", None)
    if bias is None:
        return made
    emit = importer.block_builder.emit
    real, imaginary = _parts(bias, _real_dtype(node), importer)
    return emit(relax.op.add(made, _joined(real, imaginary, importer)))


def _product(operator: Callable[..., relax.Expr], node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Return the product of two operands by a bilinear operator of their parts."""
    dtype, emit = _real_dtype(node), importer.block_builder.emit
    (a, b), (c, d) = (_parts(one, dtype, importer) for one in node.args[:2])

    def by(left: relax.Expr, right: relax.Expr) -> relax.Expr:
        return emit(operator(left, right))

    if b is None:
        return _joined(by(a, c), by(a, d), importer)
    if d is None:
        return _joined(by(a, c), by(b, c), importer)
    return _joined(
        emit(relax.op.subtract(by(a, c), by(b, d))),
        emit(relax.op.add(by(a, d), by(b, c))),
        importer,
    )


def _div(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a quotient: (a + bi) / (c + di) is (a + bi) (c - di) / (c^2 + d^2)."""
    dtype, emit = _real_dtype(node), importer.block_builder.emit
    (a, b), (c, d) = (_parts(one, dtype, importer) for one in node.args[:2])
    if d is None:
        return _joined(emit(relax.op.divide(a, c)), emit(relax.op.divide(b, c)), importer)
    if b is None:
        real, imaginary = _times(a, c, emit), emit(relax.op.negative(_times(a, d, emit)))
    else:
        real = emit(relax.op.add(_times(a, c, emit), _times(b, d, emit)))
        imaginary = emit(relax.op.subtract(_times(b, c, emit), _times(a, d, emit)))
    return _over_square(real, imaginary, (c, d), importer)


def _reciprocal(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a reciprocal: that of c + di is (c - di) / (c^2 + d^2)."""
    c, d = _parts(node.args[0], _real_dtype(node), importer)
    return _over_square(c, importer.block_builder.emit(relax.op.negative(d)), (c, d), importer)


def _over_square(
    real: relax.Expr, imaginary: relax.Expr, divisor: tuple[relax.Expr, relax.Expr], importer: Any
) -> relax.Expr:
    """Return a complex tensor divided by the square of the absolute value of another."""
    emit = importer.block_builder.emit
    squares = [_times(part, part, emit) for part in divisor]
    square = emit(relax.op.add(*squares))
    return _joined(
        emit(relax.op.divide(real, square)), emit(relax.op.divide(imaginary, square)), importer
    )


def _copy(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert copy: the second operand in the type and shape of the first."""
    emit = importer.block_builder.emit
    made = _joined(*_parts(node.args[1], _real_dtype(node), importer), importer)
    return emit(relax.op.add(emit(relax.op.zeros_like(importer.env[node.args[0]])), made))


def _times(left: relax.Expr, right: relax.Expr, emit: Callable[[Any], Any]) -> relax.Expr:
    """Return the product of two real tensors."""
    return emit(relax.op.multiply(left, right))


def _neg(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert a negation."""
    return importer.block_builder.emit(relax.op.negative(importer.env[node.args[0]]))


def _conj(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert the conjugate: the imaginary part with the other sign."""
    signs = relax.const(np.array([1, -1]), _real_dtype(node))
    return importer.block_builder.emit(relax.op.multiply(importer.env[node.args[0]], signs))


def _abs(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert the absolute value."""
    value, emit = importer.env[node.args[0]], importer.block_builder.emit
    return emit(relax.op.sqrt(emit(relax.op.sum(_times(value, value, emit), [-1]))))


def _angle(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert the angle of complex numbers."""
    real, imaginary = _parts(node.args[0], _real_dtype(node), importer)
    return importer.block_builder.emit(relax.op.atan2(imaginary, real))


def _exp(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert the exponential function: exp(a + bi) has the size exp(a) and the angle b."""
    emit = importer.block_builder.emit
    real, imaginary = _parts(node.args[0], _real_dtype(node), importer)
    return _of_polar(emit(relax.op.exp(real)), imaginary, importer)


def _over_axes(place: int) -> Converter:
    """Return the converter of an operator whose argument `place` is an axis or a list of axes.

    Axes that count from the end would count the axis of the parts; they are counted from the front.
    """

    def convert(node: torch.fx.Node, importer: Any) -> relax.Expr:
        adds_axis = node.target.__name__ == "unsqueeze.default"
        rank = _rank(node) + adds_axis
        axes = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
        if axes is None or axes == []:
            axes = list(range(rank))
        counted = axes % rank if isinstance(axes, int) else [axis % rank for axis in axes]
        others = [*node.args[:place], counted, *node.args[place + 1 :]]
        return _by_real_operator(node, others, importer)

    return convert


def _rank(node: torch.fx.Node) -> int:
    """Return the number of axes of the first complex operand."""
    found = next(one for one in node.all_input_nodes if is_complex(one))
    return int(found.meta["val"].dim())


def _permute(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert permute; the axis of the parts stays the last."""
    rank = _rank(node)
    order = [*(axis % rank for axis in node.args[1]), rank]
    return _by_real_operator(node, [node.args[0], order], importer)


def _with_shape(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert view or expand; the axis of the parts is added to the shape."""
    return _by_real_operator(node, [node.args[0], [*node.args[1], 2]], importer)


def _pad(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert constant_pad_nd, whose widths begin with those of the last axis."""
    number = node.args[2] if len(node.args) > 2 else 0
    if number != 0:
        raise NotImplementedError("padding of complex numbers with another number than 0")
    return _by_real_operator(node, [node.args[0], [0, 0, *node.args[1]], 0.0], importer)


def _by_real_operator(node: torch.fx.Node, arguments: Any, importer: Any) -> relax.Expr:
    """Return the result of the operator's converter for real tensors, on both parts at once."""
    value = node.meta["val"]
    real = SimpleNamespace(
        args=tuple(arguments),
        kwargs={key: item for key, item in node.kwargs.items() if key != "dim"},
        meta={"val": torch.view_as_real(value) if value.is_complex() else value},
        all_input_nodes=[],
        name=node.name,
        target=node.target,
    )
    return importer.convert_map[node.target.__name__](real, importer)


def _transform_of_reals(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert _fft_r2c: a transform of real numbers, one-sided along its last axis."""
    data, axes, normalization, one_sided = node.args
    rank, counts = data.meta["val"].dim(), _lengths(data, axes)
    *others, last = (axis % rank for axis in axes)
    count = counts[-1]
    bins = count // 2 + 1 if one_sided else count
    dtype = _real_dtype(node)
    value = importer.env[data]
    if str(value.ty.dtype) != dtype:
        value = importer.block_builder.emit(relax.op.astype(value, dtype))
    made = _transformed(value, last, bins, importer, parts=1)
    for axis, length in zip(others, counts, strict=False):
        made = _transformed(made, axis, length, importer, parts=2)
    return _scaled(made, _factor(normalization, counts), importer)


def _transform(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert _fft_c2c: a transform of complex numbers, or the inverse one."""
    data, axes, normalization, forward = node.args
    rank, counts = _rank(node), _lengths(data, axes)
    made = importer.env[data]
    for axis, length in zip(axes, counts, strict=True):
        made = _transformed(made, axis % rank, length, importer, parts=2, inverse=not forward)
    return _scaled(made, _factor(normalization, counts), importer)


def _transform_to_reals(node: torch.fx.Node, importer: Any) -> relax.Expr:
    """Convert _fft_c2r: the inverse transform of what _fft_r2c returns, one-sided."""
    data, axes, normalization, count = node.args
    rank, counts = _rank(node), [*_lengths(data, axes[:-1]), int(count)]
    *others, last = (axis % rank for axis in axes)
    made = importer.env[data]
    for axis, length in zip(others, counts, strict=False):
        made = _transformed(made, axis, length, importer, parts=2, inverse=True)
    half = counts[-1] // 2 + 1
    if int(data.meta["val"].shape[last]) != half:
        raise NotImplementedError("an inverse transform of more or fewer numbers than one side")
    order, back = _last_and_back(rank, last)
    builder = importer.block_builder
    parts = [builder.emit(relax.op.permute_dims(part, order)) for part in _both(made, importer)]
    reals = builder.emit(
        relax.op.permute_dims(inverse_transform_to_reals(builder, parts, counts[-1]), back)
    )
    return _scaled(reals, _factor(normalization, counts), importer)


def _lengths(data: torch.fx.Node, axes: Any) -> list[int]:
    """Return the extents that are transformed; refuse open ones."""
    extents = [data.meta["val"].shape[axis] for axis in axes]
    if any(not isinstance(extent, int) for extent in extents):
        raise NotImplementedError("a Fourier transform along an open axis")
    return extents


def _factor(normalization: int, counts: list[int]) -> float:
    """Return the factor of a transform: 1 by the root of its points for 1, by these for 2."""
    return math.pow(math.prod(counts), -normalization / 2)


def _transformed(
    value: relax.Expr, axis: int, bins: int, importer: Any, *, parts: int, inverse: bool = False
) -> relax.Expr:
    """Return the first `bins` sums of the transform along an axis, of numbers of so many parts."""
    builder = importer.block_builder
    order, back = _last_and_back(len(value.ty.shape) - (parts - 1), axis)
    rows = [value] if parts == 1 else _both(value, importer)
    rows = [builder.emit(relax.op.permute_dims(part, order)) for part in rows]
    made = fourier_transform(builder, rows, bins, inverse=inverse)
    pairs = builder.emit(relax.op.stack(made, -1))
    return builder.emit(relax.op.permute_dims(pairs, [*back, len(back)]))


def _last_and_back(rank: int, axis: int) -> tuple[list[int], list[int]]:
    """Return the order of axes in which one is the last, and the order that undoes it."""
    order = [*(other for other in range(rank) if other != axis), axis]
    return order, [order.index(other) for other in range(rank)]


def _both(value: relax.Expr, importer: Any) -> list[relax.Expr]:
    """Return the real and the imaginary part of a complex tensor."""
    axis = int(value.ty.ndim) - 1
    return [
        importer.block_builder.emit(relax.op.take(value, relax.const(part, "int64"), axis))
        for part in (0, 1)
    ]


def _scaled(value: relax.Expr, factor: float, importer: Any) -> relax.Expr:
    if factor == 1:
        return value
    number = relax.const(factor, str(value.ty.dtype))
    return importer.block_builder.emit(relax.op.multiply(value, number))


_RULES: dict[str, Converter] = {
    **dict.fromkeys(
        (
            *("view_as_real.default", "view_as_complex.default", "clone.default", "alias.default"),
            *("lift_fresh_copy.default", "detach.default", "resolve_conj.default"),
            *("contiguous.default", "lift.default"),
        ),
        _identity,
    ),
    "_to_copy.default": _to_copy,
    "complex.default": _complex,
    "polar.default": _polar,
    "full.default": _full,
    "add.Tensor": _sum_or_difference(relax.op.add),
    "sub.Tensor": _sum_or_difference(relax.op.subtract),
    "mul.Tensor": _mul,
    "div.Tensor": _div,
    "reciprocal.default": _reciprocal,
    "copy.default": _copy,
    "mm.default": _matmul,
    "bmm.default": _matmul,
    "matmul.default": _matmul,
    "linear.default": _linear,
    "neg.default": _neg,
    "_conj.default": _conj,
    "_conj_physical.default": _conj,
    "conj_physical.default": _conj,
    "abs.default": _abs,
    "angle.default": _angle,
    "exp.default": _exp,
    "_fft_r2c.default": _transform_of_reals,
    "_fft_c2c.default": _transform,
    "_fft_c2r.default": _transform_to_reals,
    "permute.default": _permute,
    "view.default": _with_shape,
    "_unsafe_view.default": _with_shape,
    "reshape.default": _with_shape,
    "expand.default": _with_shape,
    "constant_pad_nd.default": _pad,
    "select.int": _over_axes(1),
    "index_select.default": _over_axes(1),
    "slice.Tensor": _over_axes(1),
    "unsqueeze.default": _over_axes(1),
    "squeeze.dim": _over_axes(1),
    "squeeze.dims": _over_axes(1),
    "flip.default": _over_axes(1),
    "sum.dim_IntList": _over_axes(1),
    "mean.dim": _over_axes(1),
    "cat.default": _over_axes(1),
    "slice_scatter.default": _over_axes(2),
}
