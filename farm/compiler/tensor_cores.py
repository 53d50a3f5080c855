"""Products and convolutions of float16 on the tensor cores of NVIDIA's GPUs, by dlight's rule for them.

Its tiles are large, and what does not fill them is computed all the same. How far that pays was not measured on a GPU yet.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.s_tir.dlight.gpu import matmul

from farm.compiler import intrinsics

RULE = "tensor cores"
_TILE = {matmul.IterKind.kIter_I: 128, matmul.IterKind.kIter_J: 128, matmul.IterKind.kIter_K: 64}  # of a block of threads
_MOST = 8  # times the arithmetic: so many times as fast as their other arithmetic are tensor cores, at the least
_FIRST = 70  # the architecture that first had them


def apply(function: tirx.PrimFunc, target: tvm.target.Target) -> Any | None:
    """The schedule of a kernel, None where it has nothing for tensor cores."""
    if target.kind.name != "cuda" or matmul.check_sm_version(str(target.attrs["arch"]).rstrip("af")) < _FIRST:
        return None
    extents = _extents(function)
    if extents is None or prod(-(-extents[kind] // tile) * tile for kind, tile in _TILE.items()) > _MOST * prod(extents.values()):
        return None
    intrinsics.load()
    return matmul.MatmulTensorization().apply(function, target, False)


def _extents(function: tirx.PrimFunc) -> dict[matmul.IterKind, int] | None:
    """Rows, columns and summands of a kernel that is a product of float16 summed up in float32, of a batch of one where it is open."""
    work = Schedule(function)
    found = matmul.get_reduction_blocks(work, work.get_child_blocks(get_root_block(work)))
    block = work.get(found[0]) if found else None
    if block is None or [str(region.source.dtype) for region in (*block.reads, *block.writes)] != ["float16", "float16", "float32"]:
        return None
    traits = matmul.detect_iter_traits(block)
    if traits is None:
        return None
    extents = dict.fromkeys(_TILE, 1)
    for trait in traits[3]:
        if trait.kind in extents:
            extents[trait.kind] *= int(trait.extent) if isinstance(trait.extent, tirx.IntImm) else 1
    return extents
