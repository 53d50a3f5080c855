"""What LLVM is to keep in order, or not to keep in registers, in loops for ARM cores.

On 64-bit ones in order a load waits for the multiply-adds before it, so that the loads of many multiply-adds should go together.

LLVM does the contrary: it spreads loads among multiply-adds, to start both in one cycle. A fence is an empty piece of assembly that takes
the sums in their registers and gives them back, so that multiply-adds stay on their side of it, and loads on theirs. It costs no
instruction. Packed weights begin with four vectors that one instruction loads: it takes longer than others, and so need not wait so long.
Where a loop has few multiply-adds, as in a depthwise convolution, what counts and compares is kept apart from them too: by a jump that is
never taken, of no instruction, beyond which LLVM does not move anything. All are functions in LLVM's own language, that TVM links in and
LLVM expands.
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

from farm.compiler import fence_functions as llvm
from farm.compiler.annotated import changed, loop_with

FENCE = "farm.fence"  # annotation of a loop
PACKED, APART = 1, 2  # it copies inputs and weights of some steps, and then adds their products to sums: see `_grouped`
COUNTED = 3  # around such a loop: LLVM is not to know how often, else it has no counters of addresses for two iterations
ANEW, EACH = 4, 5  # others: an iteration keeps nothing that it read in registers for the next; a copy is a load of its own
IMPORT = "pragma_import_llvm"  # TVM's
_COLUMN = -2  # the axis of a copy of a row's inputs: see `windows`


@dataclass(frozen=True, slots=True)
class _Vectors:
    """`count` vectors of four float32 values from an element of a buffer, one after another."""

    buffer: tirx.Buffer
    first: Sequence[tirx.Expr]
    count: int

    @property
    def address(self) -> tirx.Expr:
        return tirx.address_of(tirx.BufferLoad(self.buffer, list(self.first)))


def with_fences(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its annotated loop in the order: fence, loads, fence, multiply-adds; the function itself if it has no such loop."""
    return changed(function, FENCE, _fenced)


def _fenced(loop: tirx.For, around: Sequence[tirx.For]) -> tirx.For:
    kept = {name: value for name, value in loop.annotations.items() if name != FENCE}
    kind = int(loop.annotations[FENCE])
    if kind == COUNTED:
        inner = _fenced(loop.body, [*around, loop])
        counted = loop_with(inner, [inner.body], {**inner.annotations, IMPORT: f"{inner.annotations[IMPORT]}\n{llvm.COUNT}"})
        count = tirx.call_extern("int64", "farm_count", loop.extent.astype("int64")).astype(str(loop.loop_var.ty.dtype))
        return tirx.For(loop.loop_var, loop.min, count, loop.kind, counted, loop.thread_binding, kept, loop.step)
    if kind == ANEW:
        body, functions = [call("farm_anew"), *loop.body.seq], [llvm.ANEW]
    elif kind == EACH:
        given, functions = _given(loop.body), [llvm.EACH]
        body = [loop.body if given is None else call("farm_each", touched(loop.body), given)]
    else:
        body, functions = _grouped(loop, kind)
    return loop_with(loop, body, {**kept, IMPORT: "\n".join(functions)})


def _grouped(loop: tirx.For, kind: int) -> tuple[list[tirx.Stmt], list[str]]:
    """The body of a loop with its loads apart, and the functions that it calls.

    PACKED: weights lie side by side, at least four vectors of them; where inputs lie evenly, the instructions that load them are given.
    APART: neither do; its iterations are rows of a window, and those beyond the image are left out.
    """
    inputs, weights, products = loop.body.seq
    sums = touched(products)
    fence, border = call(name := f"farm_fence_{sums.count}", sums), call("farm_border")
    functions = [llvm.fence(name, sums.count)]
    if kind == APART:
        there, inputs = row(inputs)
        body = [fence, border, inputs, weights, fence, border, products, fence, border]
        whole = body if there is None else [tirx.IfThenElse(there, tirx.SeqStmt(body), None)]
        return whole, [*functions, llvm.BORDER]
    loaded, packed, lying = touched(weights), touched(weights, read=True), _lying(inputs, loop)
    if lying is None:
        functions.append(llvm.load(load := f"farm_load_{loaded.count}", loaded.count))
        return [fence, _backwards(inputs), call(load, loaded, packed), fence, products], functions
    count, apart = lying.vectors.count, lying.apart
    functions.append(llvm.loads(load := f"farm_loads_{loaded.count}_{count}_{apart}", loaded.count, count, apart))
    places = [each.address for each in (loaded, touched(inputs), packed, lying.vectors)]
    loads = tirx.Evaluate(tirx.call_extern("int32", load, *places, (loop.loop_var * lying.step).astype("int32")))
    return [loads, fence, products, fence], functions


def call(name: str, *groups: _Vectors) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("int32", name, *(group.address for group in groups)))


def nest(statement: tirx.Stmt) -> tuple[list[tirx.For], SBlockRealize]:
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    return loops, statement


def touched(statement: tirx.Stmt, read: bool = False) -> _Vectors:
    """What a nest of loops around one block writes, or reads."""
    loops, realize = nest(statement)
    region = (realize.block.reads if read else realize.block.writes)[0]
    return _vectors(loops, realize, region.source, [part.min for part in region.region])


def _given(statement: tirx.Stmt) -> _Vectors | None:
    """The vector that a loop over lanes around one block copies; None where it computes something, or copies one value to all lanes."""
    (lanes,), realize = nest(statement)
    value = realize.block.body.value
    if not isinstance(value, TensorLoad) or str(value.source.dtype) != "float32":
        return None
    variables = [axis.var for axis in realize.block.iter_vars]
    at = tirx.IndexMap(variables, list(value.indices), None).map_indices(list(realize.iter_values))
    first, second = (list(tirx.IndexMap([lanes.loop_var], list(at), None).map_indices([lane])) for lane in (0, 1))
    beside = [*first[:-1], first[-1] + 1]
    along = all(Analyzer().can_prove_equal(one, other) for one, other in zip(second, beside, strict=True))
    return _Vectors(value.source, first, 1) if along and int(lanes.extent) == 4 else None


@dataclass(frozen=True, slots=True)
class _Lying:
    """Vectors that lie `apart` bytes from one another, for the first group in an iteration; for the next, `step` bytes on."""

    vectors: _Vectors
    apart: int
    step: int


def _lying(copy: tirx.Stmt, groups: tirx.For) -> _Lying | None:
    """What a copy reads for a group; None where it does not lie evenly, or too far apart for the reach of an instruction."""
    loops, realize = nest(copy)
    value = realize.block.body.value
    if not isinstance(value, TensorLoad) or str(value.source.dtype) != "float32":
        return None
    number = Analyzer().simplify(_number(value.source, list(value.indices)))
    numbers = tirx.IndexMap([axis.var for axis in realize.block.iter_vars], [number], None).map_indices(list(realize.iter_values))
    around = [groups, *loops]
    at = tirx.IndexMap([loop.loop_var for loop in around], list(numbers), None)

    def distance(loop: tirx.For) -> int | None:
        """Bytes from one iteration to the next, where they are the same for all."""
        places = [at.map_indices([step if other is loop else 0 for other in around])[0] for step in range(int(loop.extent))]
        between = [Analyzer().simplify(after - before) for before, after in pairwise(places)]
        same = {int(each) for each in between if isinstance(each, tirx.IntImm)}
        return 4 * same.pop() if len(same) == 1 and all(isinstance(each, tirx.IntImm) for each in between) else None

    across = [loop for loop in loops[:-1] if int(loop.extent) > 1]
    apart = distance(across[0]) if len(across) == 1 else None
    if apart is None or distance(loops[-1]) != 4:
        return None
    vectors = replace(touched(copy, read=True), count=int(across[0].extent))
    step, last, iterations = distance(groups) or 0, (vectors.count - 1) * apart, int(groups.extent) - 1
    if not llvm.is_offset(apart) or not llvm.is_offset(last):
        return None
    farthest, pairs = step * iterations, apart == llvm.BYTES
    if step % llvm.BYTES or not all(llvm.is_offset(farthest + one, pairs) for one in (apart, last)):
        return _Lying(vectors, apart, 0)
    first = tirx.IndexMap([groups.loop_var], list(vectors.first), None).map_indices([0])
    return _Lying(replace(vectors, first=list(first)), apart, step)


def _number(buffer: tirx.Buffer, place: Sequence[tirx.Expr]) -> tirx.Expr:
    """The number of an element."""
    number: tirx.Expr = place[0]
    for extent, index in zip(buffer.shape[1:], place[1:], strict=True):
        number = number * extent + index
    return number


def _vectors(loops: Sequence[tirx.For], realize: SBlockRealize, buffer: tirx.Buffer, place: Sequence[tirx.Expr]) -> _Vectors:
    """Of all iterations of these loops, given the place of one by the variables of the block."""
    variables = [axis.var for axis in realize.block.iter_vars]
    indices = tirx.IndexMap(variables, list(place), None).map_indices(list(realize.iter_values))
    at = tirx.IndexMap([loop.loop_var for loop in loops], list(indices), None)
    first = list(at.map_indices([0] * len(loops)))
    moved = [str(list(at.map_indices([int(loop is other) for other in loops]))) != str(first) for loop in loops]
    values = math.prod(int(loop.extent) for loop, moves in zip(loops, moved, strict=True) if moves)
    return _Vectors(buffer, first, values // 4)


def row(copy: tirx.Stmt) -> tuple[tirx.Expr | None, tirx.Stmt]:
    """When a row of the input that is copied is in the image, and its copy for that case: what is asked of the whole row is asked once."""
    loops, realize = nest(copy)
    block = realize.block
    store, column = block.body, block.iter_vars[_COLUMN].var
    if not (isinstance(store.value, Call) and store.value.op.name == "prim.if_then_else"):
        return None, copy
    asked, inside, outside = store.value.args
    of_rows: list[tirx.Expr] = []
    of_columns: list[tirx.Expr] = []
    for part in _parts(asked):
        asks_column = any(variable.same_as(column) for variable in tirx.analysis.undefined_vars(part))
        (of_columns if asks_column else of_rows).append(part)
    if not of_rows:
        return None, copy
    variables = [axis.var for axis in block.iter_vars]
    at = tirx.IndexMap(variables, [tirx.all(*of_rows)], None).map_indices(list(realize.iter_values))
    (there,) = tirx.IndexMap([loop.loop_var for loop in loops], list(at), None).map_indices([0] * len(loops))
    rest = (block.init, block.alloc_buffers, block.match_buffers, block.annotations)
    value = tirx.if_then_else(tirx.all(*of_columns), inside, outside) if of_columns else inside
    stored = tirx.BufferStore(store.buffer, value, store.indices)
    row = SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, stored, *rest)
    body: tirx.Stmt = SBlockRealize(list(realize.iter_values), realize.predicate, row)
    for loop in reversed(loops):
        body = loop_with(loop, [body], dict(loop.annotations))
    return there, body


def _parts(condition: tirx.Expr) -> list[tirx.Expr]:
    """Those that all have to hold."""
    return [*_parts(condition.a), *_parts(condition.b)] if isinstance(condition, tirx.And) else [condition]


def _backwards(statement: tirx.Stmt) -> tirx.Stmt:
    """A copy whose outermost loop runs backwards: LLVM turns loads around, and so what is needed first comes first."""
    loops, realize = nest(statement)
    last = [loop.extent - 1 - loop.loop_var if loop is loops[0] else loop.loop_var for loop in loops]
    values = tirx.IndexMap([loop.loop_var for loop in loops], list(realize.iter_values), None).map_indices(last)
    body: tirx.Stmt = SBlockRealize(list(values), realize.predicate, realize.block)
    for loop in reversed(loops):
        body = loop_with(loop, [body], dict(loop.annotations))
    return body
