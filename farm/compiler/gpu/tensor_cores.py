"""Schedule float16 matrix products and convolutions on NVIDIA's tensor cores, by dlight's rule.

The rule's tiles are large, and products that do not fill them are padded. Up to which size this is
faster has not been measured on a GPU yet.
"""

from __future__ import annotations

import inspect
import sys
from math import prod
from types import FrameType, SimpleNamespace
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import get_root_block
from tvm.s_tir.dlight.gpu import matmul

RULE = "tensor cores"
# Tile of a block of threads
_TILE = {matmul.IterKind.kIter_I: 128, matmul.IterKind.kIter_J: 128, matmul.IterKind.kIter_K: 64}
# Largest ratio of padded to useful arithmetic: tensor cores are at least this many times as fast as
# a GPU's other arithmetic
_MOST = 8
_FIRST = 70  # compute capability of the first GPUs with tensor cores


def schedule_on_tensor_cores(function: tirx.PrimFunc, target: tvm.target.Target) -> Any | None:
    """Return the schedule of a kernel on tensor cores; None if the kernel is not suitable."""
    if (
        target.kind.name != "cuda"
        or matmul.check_sm_version(str(target.attrs["arch"]).rstrip("af")) < _FIRST
    ):
        return None
    extents = _extents(function)
    if extents is None or prod(
        -(-extents[kind] // tile) * tile for kind, tile in _TILE.items()
    ) > _MOST * prod(extents.values()):
        return None
    register_intrinsics()
    return matmul.MatmulTensorization().apply(function, target, False)


def _extents(function: tirx.PrimFunc) -> dict[matmul.IterKind, int] | None:
    """Return the rows, columns and summands of a kernel that is a product of float16 values.

    The sums are float32. A dynamic batch counts as one. Returns None for any other kernel.
    """
    work = Schedule(function)
    found = matmul.get_reduction_blocks(work, work.get_child_blocks(get_root_block(work)))
    block = work.get(found[0]) if found else None
    if block is None or [str(region.source.dtype) for region in (*block.reads, *block.writes)] != [
        "float16",
        "float16",
        "float32",
    ]:
        return None
    traits = matmul.detect_iter_traits(block)
    if traits is None:
        return None
    extents = dict.fromkeys(_TILE, 1)
    for trait in traits[3]:
        if trait.kind in extents:
            extents[trait.kind] *= int(trait.extent) if isinstance(trait.extent, tirx.IntImm) else 1
    return extents


def register_intrinsics() -> None:
    """Register TVM's tensor intrinsics, which the schedule names: operations on whole tiles.

    They are 248 functions in TVM's script. Each reads the whole stack with the source lines of all
    frames, which takes over a minute. During the import it gets the frames without source lines,
    which only functions in classes need; the import then takes 5 s, once per process.
    """
    from tvm.tirx.script.parser import entry

    if "tvm.s_tir.tensor_intrin" in sys.modules:
        return
    original = entry.inspect
    entry.inspect = SimpleNamespace(**{**vars(inspect), "stack": _frames})
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401
    finally:
        entry.inspect = original


def _frames() -> list[inspect.FrameInfo]:
    """Return the stack of the caller as inspect.stack() does, without source lines."""
    found = list[inspect.FrameInfo]()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        found.append(
            inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        )
        frame = frame.f_back
    return found
