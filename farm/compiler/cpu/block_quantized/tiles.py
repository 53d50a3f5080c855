"""Flatten the rows of data with several axes, and unroll tiles of rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from farm.compiler.cpu.register_tiles import largest_divisor
from farm.compiler.target.cpu_model import CpuModel
from farm.kernels.block_quantized import PRODUCT

TILE_ROWS = 4


def row_count(data: te.Tensor) -> Any:
    """Return the rows of [..., K], which may be open."""
    *outer, _ = data.shape
    return math.prod(outer) if outer else 1


def flat_rows(data: te.Tensor) -> Callable[[tirx.Expr, tirx.Expr], tirx.Expr]:
    """Return the function of a row and a place in it that is an element of [..., K]."""
    *outer, _ = data.shape

    def element(row: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        at: list[tirx.Expr] = []
        for extent in reversed(outer):
            at.append(tirx.floormod(row, extent))
            row = tirx.floordiv(row, extent)
        return data(*reversed(at), place)

    return element


def with_outer_axes(flat: te.Tensor, data: te.Tensor) -> te.Tensor:
    """Return [..., N] of [rows, N], in which rows of tiles that data does not have are dropped."""
    *outer, _ = data.shape

    def element(*at: tirx.Expr) -> tirx.Expr:
        row: Any = 0
        for place, extent in zip(at, outer, strict=False):
            row = row * extent + place
        return flat[row, at[-1]]

    return te.compute((*outer, flat.shape[1]), element, name=PRODUCT)


@dataclass(frozen=True, slots=True)
class TileRow:
    """A row of a tile: how many vectors it has, and how many lanes a vector has."""

    vectors: int
    lanes: int


def tile_row(columns: int, column_block: int, rows: int, cpu: CpuModel) -> TileRow:
    """Return the row of a tile of so many rows.

    Besides the sums of a tile, a vector of codes and one of numbers for each vector of columns are
    in registers.
    """
    lanes = min(cpu.lanes, column_block)
    most = 4 if rows == 1 or cpu.registers >= 32 else 2
    return TileRow(largest_divisor(columns // lanes, most), lanes)


def unroll_and_vectorize(sch: Schedule, unrolled: Sequence[LoopRV], lane: LoopRV) -> None:
    """Vectorize a loop and unroll those around it."""
    sch.vectorize(lane)
    for loop in unrolled:
        sch.unroll(loop)
