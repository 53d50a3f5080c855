"""The kernels that measure the most that a GPU can do: what farm.compiler.probe has for cores, shared out among a GPU's threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as everywhere in TVM)

TILE = 16  # sums of a thread side by side, which hides how long a multiply-add takes
STEPS = 256
THREADS = 256  # of a block
WIDTH = THREADS * TILE
_LANES = 4  # floats in the widest load, of 16 bytes
_FLOAT = "float32"

Program = Callable[[Any, Any, Any, Any], None]  # writes what the thread `thread` of the block `block` makes of `given` into `result`


def functions(block_bytes: int) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """The arithmetic's kernel, over any number of blocks, and the memory's, each of whose blocks copies so many bytes."""
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
    """From one tensor to another, a block of threads for each row of it; each from its first byte on, as the widest loads want it."""

    def body(inputs: list[tirx.Buffer], outputs: list[tirx.Buffer]) -> tirx.Stmt:
        with (
            IRBuilder() as made,
            T.thread_binding(0, shape[0], thread="blockIdx.x") as block,
            T.thread_binding(0, THREADS, thread="threadIdx.x") as thread,
        ):
            program(T.buffer_proxy(inputs[0]), T.buffer_proxy(outputs[0]), block, thread)
        return made.get()

    before, after = (tirx.decl_buffer(extents, _FLOAT, name) for extents, name in ((given.shape, "given"), (shape, "made")))
    made = te.extern(shape, [given], body, name="made", dtype=_FLOAT, in_buffers=[before], out_buffers=[after])
    return te.create_prim_func([given, made]).with_attr("tirx.is_scheduled", True)
