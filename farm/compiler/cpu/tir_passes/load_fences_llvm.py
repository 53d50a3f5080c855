"""LLVM IR functions that separate loads from multiply-adds on 64-bit ARM CPUs: see load_fences.

LLVM inlines them. They load into memory, which LLVM then promotes to registers.
"""

from __future__ import annotations

_VECTOR = "<4 x float>"
BYTES = 16  # bytes of a vector
_AT_ONCE = 4  # vectors that one instruction loads
_FOUR = "{" + ", ".join([_VECTOR] * _AT_ONCE) + "}"
_DECLARED = f"declare {_FOUR} @llvm.aarch64.neon.ld1x4.v4f32.p0(ptr)\n"
ANEW = """define void @farm_anew() alwaysinline {
call void asm sideeffect "", "~{memory}"()
ret void
}"""
EACH = f"""define void @farm_each(ptr %to, ptr %from) alwaysinline {{
%v = call {_VECTOR} asm sideeffect "ldr ${{0:q}}, [$1]", "=w,r"(ptr %from)
store {_VECTOR} %v, ptr %to, align 4
ret void
}}"""
COUNT = """define i64 @farm_count(i64 %iterations) alwaysinline {
%same = call i64 asm sideeffect "", "=r,0"(i64 %iterations)
ret i64 %same
}"""
BORDER = """define void @farm_border() alwaysinline {
callbr void asm sideeffect "", "!i,~{memory}"() to label %next [label %never]
next:
ret void
never:
unreachable
}"""


def fence_llvm_ir(name: str, count: int) -> str:
    """Return a function that passes `count` vectors through an empty piece of assembly.

    It loads and stores them; LLVM, which keeps them in registers, removes the loads and stores.
    """
    given = ", ".join(f"{_VECTOR} %v{at}" for at in range(count))
    constraints = ",".join([*["=w"] * count, *map(str, range(count)), "~{memory}"])
    types = "{" + ", ".join([_VECTOR] * count) + "}" if count > 1 else _VECTOR
    results = (
        [f"%w{at} = extractvalue {types} %r, {at}" for at in range(count)]
        if count > 1
        else [f"%w0 = bitcast {types} %r to {types}"]
    )
    return _function(
        f"@{name}(ptr %to)",
        *(
            line
            for at in range(count)
            for line in (_place("to", at), f"%v{at} = load {_VECTOR}, ptr %to{at}, align 4")
        ),
        f'%r = call {types} asm sideeffect "", "{constraints}"({given})',
        *results,
        *(f"store {_VECTOR} %w{at}, ptr %to{at}, align 4" for at in range(count)),
    )


def vector_loads_llvm_ir(name: str, count: int) -> str:
    """Return a function that loads vectors, the first four by one instruction.

    The others take one instruction each, or one for two.
    """
    lines = [f"%r = call {_FOUR} @llvm.aarch64.neon.ld1x4.v4f32.p0(ptr %from)"]
    for at in range(count):
        value = (
            f"extractvalue {_FOUR} %r, {at}"
            if at < _AT_ONCE
            else f"load {_VECTOR}, ptr %from{at}, align 4"
        )
        lines += [
            _place("from", at),
            _place("to", at),
            f"%v{at} = {value}",
            f"store {_VECTOR} %v{at}, ptr %to{at}, align 4",
        ]
    return _DECLARED + _function(f"@{name}(ptr %to, ptr %from)", *lines)


def weight_and_input_loads_llvm_ir(name: str, weights: int, inputs: int, apart: int) -> str:
    """Return a function that loads weights, the first four at once, then inputs.

    Adjacent vectors are loaded in pairs. Inputs are `apart` bytes
    from one another, the first of them `step` from the address.
    """
    lines = [f"%r = call {_FOUR} @llvm.aarch64.neon.ld1x4.v4f32.p0(ptr %w)"]
    for at in range(_AT_ONCE):
        lines += [
            _place("tow", at),
            f"%four{at} = extractvalue {_FOUR} %r, {at}",
            f"store {_VECTOR} %four{at}, ptr %tow{at}, align 4",
        ]
    for pointer, first, count, distance in (
        ("w", _AT_ONCE, weights, BYTES),
        ("i", 0, inputs, apart),
    ):
        pairs = count - (count - first) % 2 if distance == BYTES else first
        for at in range(first, pairs, 2):
            lines += _pair(pointer, at)
        for at in range(pairs, count):
            lines += _single(pointer, at, distance)
    return _DECLARED + _function(f"@{name}(ptr %tow, ptr %toi, ptr %w, ptr %i, i32 %step)", *lines)


def fits_load_offset(distance: int, pairs: bool = False) -> bool:
    """Return whether a load of a vector, or of a pair, can add this many bytes to an address."""
    return 0 <= distance < (1 << 10 if pairs else 1 << 16 if distance % BYTES == 0 else 1 << 8)


def _pair(pointer: str, at: int) -> list[str]:
    types, result = f"{{{_VECTOR}, {_VECTOR}}}", f"%{pointer}r{at}"
    asked = (
        f'{types} asm sideeffect "ldp ${{0:q}}, ${{1:q}}, [$2, $3]", "=w,=w,r,i,~{{memory}}"(ptr '
        f"%{pointer}, i32 %{pointer}d{at})"
    )
    lines = [_distance(pointer, at, BYTES), f"{result} = call {asked}"]
    for half in (0, 1):
        value = f"%{pointer}v{at + half}"
        lines += [
            _place(f"to{pointer}", at + half),
            f"{value} = extractvalue {types} {result}, {half}",
        ]
        lines.append(f"store {_VECTOR} {value}, ptr %to{pointer}{at + half}, align 4")
    return lines


def _single(pointer: str, at: int, apart: int) -> list[str]:
    value, load = f"%{pointer}v{at}", "ldr" if at * apart % BYTES == 0 else "ldur"
    asked = (
        f'{_VECTOR} asm sideeffect "{load} ${{0:q}}, [$1, $2]", "=w,r,i,~{{memory}}"(ptr '
        f"%{pointer}, i32 %{pointer}d{at})"
    )
    lines = [_distance(pointer, at, apart), f"{value} = call {asked}", _place(f"to{pointer}", at)]
    return [*lines, f"store {_VECTOR} {value}, ptr %to{pointer}{at}, align 4"]


def _distance(pointer: str, at: int, apart: int) -> str:
    """Return the offset of a vector.

    It is a constant operand once the groups of an iteration are unrolled.
    """
    return f"%{pointer}d{at} = add i32 {at * apart}, {'%step' if pointer == 'i' else 0}"


def _place(pointer: str, at: int) -> str:
    return f"%{pointer}{at} = getelementptr {_VECTOR}, ptr %{pointer}, i32 {at}"


def _function(head: str, *lines: str) -> str:
    return "\n".join([f"define void {head} alwaysinline {{", *lines, "ret void", "}"])
