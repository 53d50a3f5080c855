"""Insert compiler barriers for in-order AArch64 CPUs into loops.

The barriers stop LLVM from interleaving loads with multiply-adds, from deriving address counters
from a known trip count, and from keeping loaded values in registers across iterations.

On an in-order 64-bit ARM CPU a load waits for the multiply-adds before it, so that the loads of
many multiply-adds should go together. LLVM does the contrary: it spreads loads among multiply-adds,
to start both in one cycle. A fence is an empty piece of inline assembly that takes the sums in
their registers and returns them, so that multiply-adds stay on their side of it, and loads on
theirs. It costs no instruction. Packed weights start with four vectors that one instruction loads:
it takes longer than others, and so need not wait so long. In loops with few multiply-adds
(depthwise convolution), address and loop arithmetic is separated as well, with an empty `asm goto`
(LLVM's `callbr`) that emits no instruction: LLVM moves nothing across it. All are LLVM IR functions
that TVM links in and LLVM inlines, see load_fences_llvm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer

from farm.compiler.cpu.tir_passes import load_fences_llvm as llvm
from farm.compiler.ir.annotated_loops import copy_loop, rewrite_loops
from farm.compiler.ir.annotations import COLUMN_AXIS, FENCE, IMPORT_LLVM, FenceKind, fence_kind


@dataclass(frozen=True, slots=True)
class _Vectors:
    """`count` vectors of four float32 values from an element of a buffer, one after another."""

    buffer: tirx.Buffer
    first: Sequence[tirx.Expr]
    count: int

    @property
    def address(self) -> tirx.Expr:
        return tirx.address_of(tirx.BufferLoad(self.buffer, list(self.first)))


def insert_load_fences(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with its FENCE loops changed, see FenceKind; else itself."""
    return rewrite_loops(function, FENCE, _fenced)


def _fenced(loop: tirx.For, around: Sequence[tirx.For]) -> tirx.For:
    kept = {name: value for name, value in loop.annotations.items() if name != FENCE}
    kind = fence_kind(loop)
    if kind == FenceKind.OPAQUE_TRIP_COUNT:
        inner = _fenced(loop.body, [*around, loop])
        counted = copy_loop(
            inner,
            [inner.body],
            {**inner.annotations, IMPORT_LLVM: f"{inner.annotations[IMPORT_LLVM]}\n{llvm.COUNT}"},
        )
        count = tirx.call_extern("int64", "farm_count", loop.extent.astype("int64")).astype(
            str(loop.loop_var.ty.dtype)
        )
        return tirx.For(
            loop.loop_var, loop.min, count, loop.kind, counted, loop.thread_binding, kept, loop.step
        )
    if kind == FenceKind.RELOAD_EACH_ITERATION:
        body, functions = [emit_fence_call("farm_anew"), *loop.body.seq], [llvm.ANEW]
    elif kind == FenceKind.SEPARATE_LOADS:
        given, functions = _copied_vector(loop.body), [llvm.EACH]
        body = [
            loop.body
            if given is None
            else emit_fence_call("farm_each", stored_vectors(loop.body), given)
        ]
    else:
        body, functions = _grouped(loop, kind)
    return copy_loop(loop, body, {**kept, IMPORT_LLVM: "\n".join(functions)})


def _grouped(loop: tirx.For, kind: FenceKind) -> tuple[list[tirx.Stmt], list[str]]:
    """Return the body of a loop with its loads separated, and the functions that it calls.

    GROUPED_PACKED: the weights are at least four adjacent vectors. If the inputs have constant
    strides, the load instructions are given explicitly. GROUPED_ROWS: neither holds; the iterations
    are rows of a window, and those beyond the image are skipped.
    """
    inputs, weights, products = loop.body.seq
    sums = stored_vectors(products)
    fence, border = (
        emit_fence_call(name := f"farm_fence_{sums.count}", sums),
        emit_fence_call("farm_border"),
    )
    functions = [llvm.fence_llvm_ir(name, sums.count)]
    if kind == FenceKind.GROUPED_ROWS:
        there, inputs = extract_row_bounds_check(inputs)
        body = [fence, border, inputs, weights, fence, border, products, fence, border]
        whole = body if there is None else [tirx.IfThenElse(there, tirx.SeqStmt(body), None)]
        return whole, [*functions, llvm.BORDER]
    loaded, packed, lying = (
        stored_vectors(weights),
        loaded_vectors(weights),
        _strided_load(inputs, loop),
    )
    if lying is None:
        functions.append(
            llvm.vector_loads_llvm_ir(load := f"farm_load_{loaded.count}", loaded.count)
        )
        return [
            fence,
            _backwards(inputs),
            emit_fence_call(load, loaded, packed),
            fence,
            products,
        ], functions
    count, apart = lying.vectors.count, lying.apart
    functions.append(
        llvm.weight_and_input_loads_llvm_ir(
            load := f"farm_loads_{loaded.count}_{count}_{apart}", loaded.count, count, apart
        )
    )
    places = [each.address for each in (loaded, stored_vectors(inputs), packed, lying.vectors)]
    loads = tirx.Evaluate(
        tirx.call_extern("int32", load, *places, (loop.loop_var * lying.step).astype("int32"))
    )
    return [loads, fence, products, fence], functions


def emit_fence_call(name: str, *groups: _Vectors) -> tirx.Stmt:
    """Return a call of a function in load_fences_llvm with the addresses of vectors."""
    return tirx.Evaluate(tirx.call_extern("int32", name, *(group.address for group in groups)))


def loops_and_inner_block(statement: tirx.Stmt) -> tuple[list[tirx.For], SBlockRealize]:
    """Return the loops of a nest around one block, from the outermost, and the block."""
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    return loops, statement


def stored_vectors(statement: tirx.Stmt) -> _Vectors:
    """Return the vectors that a nest of loops around one block writes."""
    loops, realize = loops_and_inner_block(statement)
    return _region_vectors(loops, realize, realize.block.writes[0])


def loaded_vectors(statement: tirx.Stmt) -> _Vectors:
    """Return the vectors that a nest of loops around one block reads from its first operand."""
    loops, realize = loops_and_inner_block(statement)
    return _region_vectors(loops, realize, realize.block.reads[0])


def _region_vectors(
    loops: Sequence[tirx.For], realize: SBlockRealize, region: tirx.BufferRegion
) -> _Vectors:
    return _vectors(loops, realize, region.source, [part.min for part in region.region])


def _copied_vector(statement: tirx.Stmt) -> _Vectors | None:
    """Return the vector that a loop over lanes around one block copies.

    Returns None if the block computes something, or copies one value to all lanes.
    """
    (lanes,), realize = loops_and_inner_block(statement)
    value = realize.block.body.value
    if not isinstance(value, TensorLoad) or str(value.source.dtype) != "float32":
        return None
    variables = [axis.var for axis in realize.block.iter_vars]
    at = tirx.IndexMap(variables, list(value.indices), None).map_indices(list(realize.iter_values))
    first, second = (
        list(tirx.IndexMap([lanes.loop_var], list(at), None).map_indices([lane])) for lane in (0, 1)
    )
    beside = [*first[:-1], first[-1] + 1]
    along = all(
        Analyzer().can_prove_equal(one, other) for one, other in zip(second, beside, strict=True)
    )
    return _Vectors(value.source, first, 1) if along and int(lanes.extent) == 4 else None


@dataclass(frozen=True, slots=True)
class _StridedLoad:
    """Vectors `apart` bytes from one another; those of the next group are `step` bytes on."""

    vectors: _Vectors
    apart: int
    step: int


def _strided_load(copy: tirx.Stmt, groups: tirx.For) -> _StridedLoad | None:
    """Return the vectors that a copy reads for a group.

    Returns None if they have no constant stride, or one beyond the reach of an instruction.
    """
    loops, realize = loops_and_inner_block(copy)
    value = realize.block.body.value
    if not isinstance(value, TensorLoad) or str(value.source.dtype) != "float32":
        return None
    number = Analyzer().simplify(_number(value.source, list(value.indices)))
    numbers = tirx.IndexMap(
        [axis.var for axis in realize.block.iter_vars], [number], None
    ).map_indices(list(realize.iter_values))
    around = [groups, *loops]
    at = tirx.IndexMap([loop.loop_var for loop in around], list(numbers), None)

    def distance(loop: tirx.For) -> int | None:
        """Return the bytes from one iteration to the next; None if they are not constant."""
        places = [
            at.map_indices([step if other is loop else 0 for other in around])[0]
            for step in range(int(loop.extent))
        ]
        between = [Analyzer().simplify(after - before) for before, after in pairwise(places)]
        same = {int(each) for each in between if isinstance(each, tirx.IntImm)}
        return (
            4 * same.pop()
            if len(same) == 1 and all(isinstance(each, tirx.IntImm) for each in between)
            else None
        )

    across = [loop for loop in loops[:-1] if int(loop.extent) > 1]
    apart = distance(across[0]) if len(across) == 1 else None
    if apart is None or distance(loops[-1]) != 4:
        return None
    vectors = replace(loaded_vectors(copy), count=int(across[0].extent))
    step, last, iterations = (
        distance(groups) or 0,
        (vectors.count - 1) * apart,
        int(groups.extent) - 1,
    )
    if not llvm.fits_load_offset(apart) or not llvm.fits_load_offset(last):
        return None
    farthest, pairs = step * iterations, apart == llvm.BYTES
    if step % llvm.BYTES or not all(
        llvm.fits_load_offset(farthest + one, pairs) for one in (apart, last)
    ):
        return _StridedLoad(vectors, apart, 0)
    first = tirx.IndexMap([groups.loop_var], list(vectors.first), None).map_indices([0])
    return _StridedLoad(replace(vectors, first=list(first)), apart, step)


def _number(buffer: tirx.Buffer, place: Sequence[tirx.Expr]) -> tirx.Expr:
    """Return the linear index of an element."""
    number: tirx.Expr = place[0]
    for extent, index in zip(buffer.shape[1:], place[1:], strict=True):
        number = number * extent + index
    return number


def _vectors(
    loops: Sequence[tirx.For],
    realize: SBlockRealize,
    buffer: tirx.Buffer,
    place: Sequence[tirx.Expr],
) -> _Vectors:
    """Return the vectors of all iterations of the loops.

    `place` is the index of one iteration, in terms of the block's variables.
    """
    variables = [axis.var for axis in realize.block.iter_vars]
    indices = tirx.IndexMap(variables, list(place), None).map_indices(list(realize.iter_values))
    at = tirx.IndexMap([loop.loop_var for loop in loops], list(indices), None)
    first = list(at.map_indices([0] * len(loops)))
    moved = [
        str(list(at.map_indices([int(loop is other) for other in loops]))) != str(first)
        for loop in loops
    ]
    values = math.prod(int(loop.extent) for loop, moves in zip(loops, moved, strict=True) if moves)
    return _Vectors(buffer, first, values // 4)


def extract_row_bounds_check(copy: tirx.Stmt) -> tuple[tirx.Expr | None, tirx.Stmt]:
    """Return the condition that a copied row of the input is in the image, and the copy without it.

    The condition is None if there is none. It is then tested once for the whole row.
    """
    loops, realize = loops_and_inner_block(copy)
    block = realize.block
    store = block.body
    if not (isinstance(store.value, Call) and store.value.op.name == "prim.if_then_else"):
        return None, copy
    column = next(axis.var for axis in block.iter_vars if axis.var.name == COLUMN_AXIS)
    asked, inside, outside = store.value.args
    of_rows: list[tirx.Expr] = []
    of_columns: list[tirx.Expr] = []
    for part in _conjuncts(asked):
        asks_column = any(
            variable.same_as(column) for variable in tirx.analysis.undefined_vars(part)
        )
        (of_columns if asks_column else of_rows).append(part)
    if not of_rows:
        return None, copy
    variables = [axis.var for axis in block.iter_vars]
    at = tirx.IndexMap(variables, [tirx.all(*of_rows)], None).map_indices(list(realize.iter_values))
    (there,) = tirx.IndexMap([loop.loop_var for loop in loops], list(at), None).map_indices(
        [0] * len(loops)
    )
    rest = (block.init, block.alloc_buffers, block.match_buffers, block.annotations)
    value = tirx.if_then_else(tirx.all(*of_columns), inside, outside) if of_columns else inside
    stored = tirx.BufferStore(store.buffer, value, store.indices)
    row = SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, stored, *rest)
    body: tirx.Stmt = SBlockRealize(list(realize.iter_values), realize.predicate, row)
    for loop in reversed(loops):
        body = copy_loop(loop, [body], dict(loop.annotations))
    return there, body


def _conjuncts(condition: tirx.Expr) -> list[tirx.Expr]:
    """Return the conditions of a conjunction."""
    return (
        [*_conjuncts(condition.a), *_conjuncts(condition.b)]
        if isinstance(condition, tirx.And)
        else [condition]
    )


def _backwards(statement: tirx.Stmt) -> tirx.Stmt:
    """Return a copy whose outermost loop runs backwards.

    LLVM reverses the order of loads, so that the values needed first are then loaded first.
    """
    loops, realize = loops_and_inner_block(statement)
    last = [
        loop.extent - 1 - loop.loop_var if loop is loops[0] else loop.loop_var for loop in loops
    ]
    values = tirx.IndexMap(
        [loop.loop_var for loop in loops], list(realize.iter_values), None
    ).map_indices(last)
    body: tirx.Stmt = SBlockRealize(list(values), realize.predicate, realize.block)
    for loop in reversed(loops):
        body = copy_loop(loop, [body], dict(loop.annotations))
    return body
