"""Loads apart from multiply-adds, for 64-bit ARM cores in order: there a load waits for the multiply-adds before it, so that the loads of
many multiply-adds should go together.

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
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir import SBlockRealize

from farm.compiler.annotated import changed, loop_with

FENCE = "farm.fence"  # annotation of a loop that copies inputs and weights of some steps, and then adds their products to sums
PACKED, APART = 1, 2  # its values: the weights lie side by side, at least four vectors of them; or a copy is a copy
_IMPORT = "pragma_import_llvm"  # TVM's
_VECTOR = "<4 x float>"
_AT_ONCE = 4  # vectors that one instruction loads
_FOUR = "{" + ", ".join([_VECTOR] * _AT_ONCE) + "}"
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
    inputs, weights, products = loop.body.seq
    sums = _touched(products)
    name = f"farm_fence_{sums.count}"
    fence, functions = _call(name, sums), [_fence(name, sums.count)]
    if int(loop.annotations[FENCE]) == PACKED:
        loaded, packed = _touched(weights), _touched(weights, read=True)
        load = f"farm_load_{loaded.count}"
        functions.append(_load(load, loaded.count))
        body = [fence, _backwards(inputs), _call(load, loaded, packed), fence, products]
    else:
        border = _call("farm_border")
        functions.append(_BORDER)
        body = [fence, border, inputs, weights, fence, border, products, fence, border]
    kept = {name: value for name, value in loop.annotations.items() if name != FENCE}
    return loop_with(loop, body, {**kept, _IMPORT: "\n".join(functions)})


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
    variables = [axis.var for axis in realize.block.iter_vars]
    indices = tirx.IndexMap(variables, [part.min for part in region.region], None).map_indices(list(realize.iter_values))
    at = tirx.IndexMap([loop.loop_var for loop in loops], list(indices), None)
    first = list(at.map_indices([0] * len(loops)))
    moved = [str(list(at.map_indices([int(loop is other) for other in loops]))) != str(first) for loop in loops]
    values = math.prod(int(loop.extent) for loop, moves in zip(loops, moved, strict=True) if moves)
    return _Vectors(region.source, first, values // 4)


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
    declared = f"declare {_FOUR} @llvm.aarch64.neon.ld1x4.v4f32.p0(ptr)\n"
    return declared + _function(f"@{name}(ptr %to, ptr %from)", *lines)


def _place(pointer: str, at: int) -> str:
    return f"%{pointer}{at} = getelementptr {_VECTOR}, ptr %{pointer}, i32 {at}"


def _function(head: str, *lines: str) -> str:
    return "\n".join([f"define void {head} alwaysinline {{", *lines, "ret void", "}"])
