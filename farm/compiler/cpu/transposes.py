"""Compute transposes by register tiles: vectors are loaded, transposed by shuffles, and stored.

Otherwise each element is loaded by itself. The rule is for kernels that only move elements of 32
bits, and whose result has fixed strides in the input along each of its axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation

from farm.compiler.cpu.general_schedule import inline_elementwise, takes_long_enough
from farm.compiler.ir.blocks import is_loop_nest
from farm.compiler.ir.dynamic_extents import is_dynamic
from farm.compiler.ir.unchecked_schedule import UncheckedSchedule
from farm.compiler.target.cpu_model import CpuModel

TRANSPOSE = "transpose"  # the name of the rule
_WIDEST = 8  # elements of a vector: shuffles of wider ones are slower
_LANE = 4  # elements of 128 bits, within which one instruction interleaves two vectors
_LINE_BYTES = 64  # of a cache line: a block of tiles uses whole lines along both axes
_ELEMENT_BYTES = 4
_DTYPES = ("float32", "int32")


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of the result, with its strides in the input and the result, in elements."""

    extent: int
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class _Copy:
    """Elements that move: `axes` are those of the result, `first` is the first that is read."""

    axes: Sequence[_Axis]
    first: int

    def contiguous(self) -> tuple[_Axis, _Axis] | None:
        """Return the axes that are contiguous in the input and in the result, if they differ."""
        read = next((axis for axis in self.axes if axis.read == 1), None)
        written = next((axis for axis in self.axes if axis.written == 1), None)
        return None if read is None or written is None or read == written else (read, written)


def transpose_by_register_tiles(function: tirx.PrimFunc, cpu: CpuModel) -> tirx.PrimFunc | None:
    """Return a kernel with register tiles for a kernel that is a transpose; None for others."""
    if not is_loop_nest(function) or len(function.params) != 2:
        return None
    copy, lanes = _copy_of(function), min(cpu.lanes, _WIDEST)
    if copy is None:
        return None
    contiguous = copy.contiguous()
    if contiguous is None or min(axis.extent for axis in contiguous) < lanes:
        return None
    if _lines_share_sets(*contiguous, cpu):
        return None
    source, result = (
        te.placeholder(buffer.shape, buffer.dtype, name)
        for buffer, name in zip(function.params, ("source", "result"), strict=True)
    )
    moved = te.extern(
        [result.shape],
        [source],
        lambda inputs, outputs: _program(inputs[0], outputs[0], copy, contiguous, lanes, cpu),
        name=TRANSPOSE,
        dtype=[result.dtype],
    )
    made = te.create_prim_func([source, moved]).without_attr("global_symbol")
    return made.with_attrs(function.attrs)


def _copy_of(function: tirx.PrimFunc) -> _Copy | None:
    """Return what a kernel copies; None if it computes something, or has no fixed strides."""
    if not all(map(_is_tensor_of_32_bits, function.params)):
        return None
    sch = UncheckedSchedule(tvm.IRModule({"main": function}))
    blocks = inline_elementwise(sch, sch.get_child_blocks(sch.get_sblock("root")))
    block = sch.get(blocks[-1])
    value = getattr(block.body, "value", None)
    if len(blocks) != 1 or not isinstance(value, TensorLoad):
        return None
    variables = [axis.var for axis in block.iter_vars]
    extents = [int(axis.dom.extent) for axis in block.iter_vars]
    analyzer = Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    strides = []
    for indices, buffer in ((value.indices, value.source), (block.body.indices, block.body.buffer)):
        place = _linear(indices, [int(extent) for extent in buffer.shape])
        found = detect_linear_equation(analyzer.simplify(place), variables)
        if not found or any(is_dynamic(number) for number in found):
            return None
        strides.append([int(number) for number in found])
    *read, first = strides[0]
    *written, start = strides[1]
    if start:
        return None
    if 0 in extents:
        return None
    axes = [_Axis(*numbers) for numbers in zip(extents, read, written, strict=True)]
    return _Copy(_joined([axis for axis in axes if axis.extent > 1]), first)


def _lines_share_sets(along: _Axis, across: _Axis, cpu: CpuModel) -> bool:
    """Return whether the lines of a block of tiles evict each other from the L1 cache.

    They do if the vectors that are read, and those that are written, are a multiple of half a way
    apart: all lie in few sets.
    """
    half = cpu.l1_way_bytes // 2 // _ELEMENT_BYTES
    return across.read % half == 0 and along.written % half == 0


def _is_tensor_of_32_bits(parameter: Any) -> bool:
    """Return whether a parameter is a tensor of 32-bit elements, with places of 32 bits."""
    shape = getattr(parameter, "shape", None)
    if shape is None or str(parameter.dtype) not in _DTYPES or any(map(is_dynamic, shape)):
        return False
    return math.prod(map(int, shape)) < 2**31


def _linear(indices: Sequence[Any], shape: Sequence[int]) -> Any:
    """Return the place of an element in memory."""
    place: Any = tirx.const(0, str(indices[0].ty.dtype)) if indices else tirx.const(0, "int32")
    for index, extent in zip(indices, shape, strict=True):
        place = place * extent + index
    return place


def _joined(axes: Sequence[_Axis]) -> list[_Axis]:
    """Join neighbouring axes that are neighbours in the input and in the result."""
    found: list[_Axis] = []
    for axis in sorted(axes, key=lambda one: -one.written):
        if found and (found[-1].read, found[-1].written) == (
            axis.read * axis.extent,
            axis.written * axis.extent,
        ):
            axis = _Axis(found.pop().extent * axis.extent, axis.read, axis.written)
        found.append(axis)
    return found


def _program(
    source: tirx.Buffer,
    result: tirx.Buffer,
    copy: _Copy,
    contiguous: tuple[_Axis, _Axis],
    lanes: int,
    cpu: CpuModel,
) -> tirx.Stmt:
    """Return the loops over blocks of tiles.

    A block at the end of an axis overlaps the one before it. Both write the same elements there,
    maybe at the same time.
    """
    along, across = contiguous
    outer = [axis for axis in copy.axes if axis not in contiguous]
    most = _LINE_BYTES // (_ELEMENT_BYTES * lanes)
    tiles = [min(most, axis.extent // lanes) for axis in contiguous]
    (wide, deep), (columns, rows) = (
        [count * lanes for count in tiles],
        [-(-axis.extent // (count * lanes)) for axis, count in zip(contiguous, tiles, strict=True)],
    )
    tasks = math.prod(axis.extent for axis in outer) * rows
    elements = math.prod(axis.extent for axis in copy.axes)
    with IRBuilder() as program:
        divided = tasks > 1 and takes_long_enough(elements, cpu)
        with T.parallel(0, tasks) if divided else T.serial(0, tasks) as task:
            views = [
                T.decl_buffer((math.prod(map(int, one.shape)),), one.dtype, data=one.data)
                for one in (source, result)
            ]
            down = tirx.min(task % rows * deep, across.extent - deep)
            place, read, written = task // rows, copy.first + down * across.read, down
            for axis in reversed(outer):
                index, place = place % axis.extent, place // axis.extent
                read, written = read + index * axis.read, written + index * axis.written
            with T.serial(0, columns) as column:
                right = tirx.min(column * wide, along.extent - wide)
                for below, beside in itertools.product(
                    range(0, deep, lanes), range(0, wide, lanes)
                ):
                    _move_tile(
                        views,
                        (read + right + beside + below * across.read, across.read),
                        (written + (right + beside) * along.written + below, along.written),
                        lanes,
                    )
    return program.get()


def _move_tile(
    views: Sequence[tirx.Buffer], read: tuple[Any, int], written: tuple[Any, int], lanes: int
) -> None:
    """Move a tile; `read` and `written` are its first element and the distance of its vectors."""
    source, result = views

    def vector(place: tuple[Any, int], at: int) -> tirx.Ramp:
        return tirx.Ramp(place[0] + at * place[1], tirx.const(1, "int32"), lanes)

    rows = [T.Bind(tirx.BufferLoad(source, [vector(read, at)])) for at in range(lanes)]
    for at, column in enumerate(_transposed(rows, lanes)):
        T.buffer_store(result, column, [vector(written, at)])


def _transposed(rows: Sequence[tirx.Var], lanes: int) -> list[tirx.Var]:
    """Return the columns of a square of vectors: first of each four rows, within 128 bits."""
    columns: list[tirx.Var] = []
    for first in range(0, lanes, _LANE):
        pairs = [rows[first : first + 2], rows[first + 2 : first + 4]]
        halves = [[_interleaved(pair, lanes, 1, half) for pair in pairs] for half in (0, 1)]
        columns += [_interleaved(halves[at // 2], lanes, 2, at % 2) for at in range(_LANE)]
    if lanes == _LANE:
        return columns
    pairs = list(zip(columns[:_LANE], columns[_LANE:], strict=True))
    return [
        _shuffled(
            pair, [*range(first, first + _LANE), *range(first + lanes, first + lanes + _LANE)]
        )
        for first in (0, _LANE)
        for pair in pairs
    ]


def _interleaved(pair: Sequence[tirx.Var], lanes: int, size: int, half: int) -> tirx.Var:
    """Return runs of `size` elements of two vectors in turns, of one half of each 128 bits."""
    order = []
    for first in range(half * _LANE // 2, lanes, _LANE):
        for start in range(first, first + _LANE // 2, size):
            run = range(start, start + size)
            order += [*run, *(place + lanes for place in run)]
    return _shuffled(pair, order)


def _shuffled(pair: Sequence[tirx.Var], order: Sequence[int]) -> tirx.Var:
    """Return the elements of two vectors, one after the other, in an order."""
    places = [tirx.const(place, "int32") for place in order]
    return T.Bind(tirx.Shuffle(list(pair), places))
