"""Kernels that measure the peak of a GPU: those of `roofline_probe`, bound to a GPU's threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

TILE = 16  # independent accumulators of a thread, which hide the latency of a multiply-add
STEPS = 256
THREADS = 256  # threads of a block
WIDTH = THREADS * TILE
_LANES = 4  # float32 values in the widest load, which has 16 bytes
_FLOAT = "float32"

# program(given, result, block, thread) emits the code of one thread
Program = Callable[[Any, Any, Any, Any], None]


def probe_kernels(block_bytes: int) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Return the arithmetic kernel and the memory kernel.

    The arithmetic kernel runs with any number of blocks. Each block of the memory kernel copies
    `block_bytes` bytes.
    """
    return _arithmetic(), _memory(block_bytes // 4)


def _arithmetic() -> tirx.PrimFunc:
    blocks = tirx.Var("blocks", "int64")
    factors = te.placeholder((2, 1), _FLOAT, "factors")

    def program(given: Any, result: Any, block: Any, thread: Any) -> None:
        sums = T.buffer_proxy(T.alloc_buffer((TILE,), _FLOAT, scope="local"))
        with T.unroll(0, TILE) as row:
            sums[row] = given[1, 0] + tirx.Cast(_FLOAT, row)
        with T.serial(0, STEPS), T.unroll(0, TILE) as row:
            sums[row] = sums[row] * given[0, 0] + given[1, 0]
        with T.unroll(0, TILE) as row:
            result[block, row * THREADS + thread] = sums[row]

    return _function(factors, (blocks, WIDTH), program)


def _memory(floats: int) -> tirx.PrimFunc:
    blocks = tirx.Var("blocks", "int64")
    source = te.placeholder((blocks, floats), _FLOAT, "source")

    def program(given: Any, result: Any, block: Any, thread: Any) -> None:
        with T.serial(0, floats // (THREADS * _LANES)) as step, T.vectorized(0, _LANES) as lane:
            place = (step * THREADS + thread) * _LANES + lane
            result[block, place] = given[block, place]

    return _function(source, (blocks, floats), program)


def _function(given: te.Tensor, shape: tuple[Any, ...], program: Program) -> tirx.PrimFunc:
    """Return a kernel from one tensor to another, with one block of threads per row of the result.

    Both tensors start at their buffer's first byte, because the widest loads need aligned
    addresses.
    """

    def body(inputs: list[tirx.Buffer], outputs: list[tirx.Buffer]) -> tirx.Stmt:
        with (
            IRBuilder() as made,
            T.thread_binding(0, shape[0], thread="blockIdx.x") as block,
            T.thread_binding(0, THREADS, thread="threadIdx.x") as thread,
        ):
            program(T.buffer_proxy(inputs[0]), T.buffer_proxy(outputs[0]), block, thread)
        return made.get()

    before, after = (
        tirx.decl_buffer(extents, _FLOAT, name)
        for extents, name in ((given.shape, "given"), (shape, "made"))
    )
    made = te.extern(
        shape, [given], body, name="made", dtype=_FLOAT, in_buffers=[before], out_buffers=[after]
    )
    return te.create_prim_func([given, made]).with_attr("tirx.is_scheduled", True)
