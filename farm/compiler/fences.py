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

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer

from farm.compiler.annotated import changed, loop_with

FENCE = "farm.fence"  # annotation of a loop
PACKED, BOTH_PACKED, APART = 1, 2, 3  # it copies inputs and weights of some steps, and then adds their products to sums: see `_grouped`
ANEW, EACH = 4, 5  # others: an iteration keeps nothing that it read in registers for the next; a copy is a load of its own
_IMPORT = "pragma_import_llvm"  # TVM's
_VECTOR = "<4 x float>"
_COLUMN = 3  # the axis of a copy of a row's inputs: see `windows`
_AT_ONCE = 4  # vectors that one instruction loads
_FOUR = "{" + ", ".join([_VECTOR] * _AT_ONCE) + "}"
_DECLARED = f"declare {_FOUR} @llvm.aarch64.neon.ld1x4.v4f32.p0(ptr)\n"
_ANEW = """define void @farm_anew() alwaysinline {
call void asm sideeffect "", "~{memory}"()
ret void
}"""
_EACH = f"""define void @farm_each(ptr %to, ptr %from) alwaysinline {{
%v = call {_VECTOR} asm sideeffect "ldr ${{0:q}}, [$1]", "=w,r"(ptr %from)
store {_VECTOR} %v, ptr %to, align 4
ret void
}}"""
_BORDER = """define void @farm_border() alwaysinline {
callbr void asm sideeffect "", "!i,~{memory}"() to label %next [label %never]
next:
ret void
never:
unreachable
}"""


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


def _fenced(loop: tirx.For, _: Sequence[tirx.For]) -> tirx.For:
    kept = {name: value for name, value in loop.annotations.items() if name != FENCE}
    kind = int(loop.annotations[FENCE])
    if kind == ANEW:
        body, functions = [_call("farm_anew"), *loop.body.seq], [_ANEW]
    elif kind == EACH:
        given, functions = _given(loop.body), [_EACH]
        body = [loop.body if given is None else _call("farm_each", _touched(loop.body), given)]
    else:
        body, functions = _grouped(loop, kind)
    return loop_with(loop, body, {**kept, _IMPORT: "\n".join(functions)})


def _grouped(loop: tirx.For, kind: int) -> tuple[list[tirx.Stmt], list[str]]:
    """The body of a loop with its loads apart, and the functions that it calls.

    PACKED: weights lie side by side, at least four vectors of them. BOTH_PACKED: inputs do so, too. APART: neither does; its iterations
    are rows of a window, and those beyond the image are left out.
    """
    inputs, weights, products = loop.body.seq
    sums = _touched(products)
    fence, border = _call(name := f"farm_fence_{sums.count}", sums), _call("farm_border")
    functions = [_fence(name, sums.count)]
    if kind == APART:
        there, inputs = _row(inputs)
        body = [fence, border, inputs, weights, fence, border, products, fence, border]
        whole = body if there is None else [tirx.IfThenElse(there, tirx.SeqStmt(body), None)]
        return whole, [*functions, _BORDER]
    loaded, packed = _touched(weights), _touched(weights, read=True)
    if kind == PACKED:
        functions.append(_load(load := f"farm_load_{loaded.count}", loaded.count))
        return [fence, _backwards(inputs), _call(load, loaded, packed), fence, products], functions
    filled, lying = _touched(inputs), _touched(inputs, read=True)
    following = [_with(source, loop.loop_var, loop.loop_var + 1) for source in (packed, lying)]
    functions += [_loads(load := f"farm_loads_{loaded.count}_{filled.count}", loaded.count, filled.count), _BORDER]
    return [_call(load, loaded, filled, packed, lying, *following), fence, border, products, fence, border], functions


def _with(vectors: _Vectors, variable: tirx.Var, value: tirx.Expr) -> _Vectors:
    """Those at another value of a variable."""
    return replace(vectors, first=list(tirx.IndexMap([variable], list(vectors.first), None).map_indices([value])))


def _call(name: str, *groups: _Vectors) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("int32", name, *(group.address for group in groups)))


def _nest(statement: tirx.Stmt) -> tuple[list[tirx.For], SBlockRealize]:
    loops = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    return loops, statement


def _touched(statement: tirx.Stmt, read: bool = False) -> _Vectors:
    """What a nest of loops around one block writes, or reads."""
    loops, realize = _nest(statement)
    region = (realize.block.reads if read else realize.block.writes)[0]
    return _vectors(loops, realize, region.source, [part.min for part in region.region])


def _given(statement: tirx.Stmt) -> _Vectors | None:
    """The vector that a loop over lanes around one block copies; None where it computes something, or copies one value to all lanes."""
    (lanes,), realize = _nest(statement)
    value = realize.block.body.value
    if not isinstance(value, TensorLoad) or str(value.source.dtype) != "float32":
        return None
    variables = [axis.var for axis in realize.block.iter_vars]
    at = tirx.IndexMap(variables, list(value.indices), None).map_indices(list(realize.iter_values))
    first, second = (list(tirx.IndexMap([lanes.loop_var], list(at), None).map_indices([lane])) for lane in (0, 1))
    beside = [*first[:-1], first[-1] + 1]
    along = all(Analyzer().can_prove_equal(one, other) for one, other in zip(second, beside, strict=True))
    return _Vectors(value.source, first, 1) if along and int(lanes.extent) == 4 else None


def _vectors(loops: Sequence[tirx.For], realize: SBlockRealize, buffer: tirx.Buffer, place: Sequence[tirx.Expr]) -> _Vectors:
    """Of all iterations of these loops, given the place of one by the variables of the block."""
    variables = [axis.var for axis in realize.block.iter_vars]
    indices = tirx.IndexMap(variables, list(place), None).map_indices(list(realize.iter_values))
    at = tirx.IndexMap([loop.loop_var for loop in loops], list(indices), None)
    first = list(at.map_indices([0] * len(loops)))
    moved = [str(list(at.map_indices([int(loop is other) for other in loops]))) != str(first) for loop in loops]
    values = math.prod(int(loop.extent) for loop, moves in zip(loops, moved, strict=True) if moves)
    return _Vectors(buffer, first, values // 4)


def _row(copy: tirx.Stmt) -> tuple[tirx.Expr | None, tirx.Stmt]:
    """When a row of the input that is copied is in the image, and its copy for that case: what is asked of the whole row is asked once."""
    loops, realize = _nest(copy)
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
    loops, realize = _nest(statement)
    last = [loop.extent - 1 - loop.loop_var if loop is loops[0] else loop.loop_var for loop in loops]
    values = tirx.IndexMap([loop.loop_var for loop in loops], list(realize.iter_values), None).map_indices(last)
    body: tirx.Stmt = SBlockRealize(list(values), realize.predicate, realize.block)
    for loop in reversed(loops):
        body = loop_with(loop, [body], dict(loop.annotations))
    return body


def _fence(name: str, count: int) -> str:
    """Vectors are loaded, pass through the piece of assembly, and are stored: LLVM, which keeps them in registers, leaves out the rest."""
    given = ", ".join(f"{_VECTOR} %v{at}" for at in range(count))
    constraints = ",".join([*["=w"] * count, *map(str, range(count)), "~{memory}"])
    types = "{" + ", ".join([_VECTOR] * count) + "}" if count > 1 else _VECTOR
    results = [f"%w{at} = extractvalue {types} %r, {at}" for at in range(count)] if count > 1 else [f"%w0 = bitcast {types} %r to {types}"]
    return _function(
        f"@{name}(ptr %to)",
        *(line for at in range(count) for line in (_place("to", at), f"%v{at} = load {_VECTOR}, ptr %to{at}, align 4")),
        f'%r = call {types} asm sideeffect "", "{constraints}"({given})',
        *results,
        *(f"store {_VECTOR} %w{at}, ptr %to{at}, align 4" for at in range(count)),
    )


def _load(name: str, count: int) -> str:
    """The first four vectors by one instruction, the others by one each or for two."""
    lines = [f"%r = call {_FOUR} @llvm.aarch64.neon.ld1x4.v4f32.p0(ptr %from)"]
    for at in range(count):
        value = f"extractvalue {_FOUR} %r, {at}" if at < _AT_ONCE else f"load {_VECTOR}, ptr %from{at}, align 4"
        lines += [_place("from", at), _place("to", at), f"%v{at} = {value}", f"store {_VECTOR} %v{at}, ptr %to{at}, align 4"]
    return _DECLARED + _function(f"@{name}(ptr %to, ptr %from)", *lines)


def _loads(name: str, weights: int, inputs: int) -> str:
    """The first four weights by one instruction, all inputs by one for two, then the other weights so.

    Where the next group's lie is known by then: LLVM would add that up among multiply-adds, for which it would wait.
    """
    lines = [f"%r = call {_FOUR} @llvm.aarch64.neon.ld1x4.v4f32.p0(ptr %w)"]
    for at in range(_AT_ONCE):
        lines += [_place("tow", at), f"%four{at} = extractvalue {_FOUR} %r, {at}", f"store {_VECTOR} %four{at}, ptr %tow{at}, align 4"]
    for pointer, first, count in (("i", 0, inputs), ("w", _AT_ONCE, weights)):
        for at in range(first, count, 2):
            lines += _pair(pointer, at) if at + 1 < count else _single(pointer, at)
    lines.append('call void asm sideeffect "", "r,r"(ptr %nw, ptr %ni)')
    return _DECLARED + _function(f"@{name}(ptr %tow, ptr %toi, ptr %w, ptr %i, ptr %nw, ptr %ni)", *lines)


def _pair(pointer: str, at: int) -> list[str]:
    types, result = f"{{{_VECTOR}, {_VECTOR}}}", f"%{pointer}r{at}"
    lines = [f'{result} = call {types} asm sideeffect "ldp ${{0:q}}, ${{1:q}}, [$2, #{16 * at}]", "=w,=w,r,~{{memory}}"(ptr %{pointer})']
    for half in (0, 1):
        value = f"%{pointer}v{at + half}"
        lines += [_place(f"to{pointer}", at + half), f"{value} = extractvalue {types} {result}, {half}"]
        lines.append(f"store {_VECTOR} {value}, ptr %to{pointer}{at + half}, align 4")
    return lines


def _single(pointer: str, at: int) -> list[str]:
    value = f"%{pointer}v{at}"
    loaded = f'{value} = call {_VECTOR} asm sideeffect "ldr ${{0:q}}, [$1, #{16 * at}]", "=w,r,~{{memory}}"(ptr %{pointer})'
    return [loaded, _place(f"to{pointer}", at), f"store {_VECTOR} {value}, ptr %to{pointer}{at}, align 4"]


def _place(pointer: str, at: int) -> str:
    return f"%{pointer}{at} = getelementptr {_VECTOR}, ptr %{pointer}, i32 {at}"


def _function(head: str, *lines: str) -> str:
    return "\n".join([f"define void {head} alwaysinline {{", *lines, "ret void", "}"])
