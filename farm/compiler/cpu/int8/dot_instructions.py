"""Register the CPU's dot product instructions for 8-bit integers as tensor intrinsics.

An instruction takes `packs` times `pack_size` neighbouring input channels of one pixel, and as many
weights for each of its lanes, which are output channels. It adds to each lane's 32-bit sum. No
instruction rounds or saturates: all give the same sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T  # noqa: N812

from farm.compiler.target.cpu_model import CpuModel

Expr = Any
_SMULL, _SADDLP = "llvm.aarch64.neon.smull", "llvm.aarch64.neon.saddlp"
_VMULL, _VPADAL = "llvm.arm.neon.vmulls", "llvm.arm.neon.vpadals"
Step = Callable[
    [Expr, Expr, Expr], Expr
]  # sums as a vector, inputs and weights as buffers, to sums


@dataclass(frozen=True, slots=True)
class DotProductInstruction:
    """An instruction, or a short sequence of them; `name` is what records and reports call it.

    `data` is the type of its inputs, empty for any; its weights are int8. `cycles` is its cost, in
    the time of a multiply-add of the CPU's float32 vectors. `fallback` is the name of the
    instruction to use for a weight with -128, if this one cannot take that. `weight_registers` hold
    the weights of all its lanes; `broadcast_cycles` is the cost to repeat the inputs of a pixel for
    all lanes.
    """

    name: str
    packs: int
    pack_size: int
    data: str
    cycles: float = 1.0
    fallback: str = ""
    weight_registers: int = 1
    broadcast_cycles: float = 0.0

    @property
    def depth(self) -> int:
        """Return the number of input channels that it takes."""
        return self.packs * self.pack_size


VNNI = DotProductInstruction("vnni", 1, 4, "uint8")  # VPDPBUSD
PAIRS = DotProductInstruction("pairs", 1, 2, "int16", 2.0)  # VPMADDWD, and an addition
SDOT = DotProductInstruction("sdot", 1, 4, "int8")  # SDOT, of ARMv8.2
# SMULL, SMLAL, SADALP: the sum of two products fits 16 bits, except 2 * 128 * 128.
SMLAL = DotProductInstruction("smlal", 2, 2, "int8", 3.0, "smull", 2, 2.0)
SMULL = DotProductInstruction(
    "smull", 2, 2, "int8", 4.0, weight_registers=2, broadcast_cycles=2.0
)  # SMULL and SADALP, twice
VMLAL = DotProductInstruction("vmlal", 2, 2, "int8", 3.0, "vmull", 1, 2.0)  # the same on 32-bit ARM
VMULL = DotProductInstruction("vmull", 2, 2, "int8", 4.0, broadcast_cycles=2.0)
PLAIN = DotProductInstruction("plain", 1, 1, "", 4.0)
_BY_NAME = {dot.name: dot for dot in (VNNI, PAIRS, SDOT, SMLAL, SMULL, VMLAL, VMULL, PLAIN)}


def select_dot_instruction(cpu: CpuModel, weight: np.ndarray[Any, Any]) -> DotProductInstruction:
    """Return the instruction that the CPU has for a weight."""
    dot = _BY_NAME[cpu.dot_product]
    return _BY_NAME[dot.fallback] if dot.fallback and (weight == -128).any() else dot


def int16_widening_multiply_function(cpu: CpuModel, lanes: int) -> Callable[[Expr, Expr], Expr]:
    """Return a function for the 32-bit product of two 16-bit numbers, one instruction for vectors.

    LLVM finds the instruction by itself, except for 32-bit ARM, where it is named.
    """
    if cpu.has_widening_multiply and lanes == cpu.lanes:
        return lambda left, right: tirx.call_llvm_pure_intrin("int32", _VMULL, left, right)
    return lambda left, right: left.astype("int32") * right.astype("int32")


def tensor_intrin_name(dot: DotProductInstruction, lanes: int) -> str:
    """Return the name of the intrinsic for an instruction; empty if there is none."""
    if dot.name not in _STEPS:
        return ""
    name = f"farm.{dot.name}.{lanes}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(
            name, _described(dot, lanes), _implemented(dot, lanes, _STEPS[dot.name](lanes))
        )
    return name


def _described(dot: DotProductInstruction, lanes: int) -> tirx.PrimFunc:
    parts, per, data = dot.packs, dot.pack_size, dot.data

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def description(first: T.handle, second: T.handle, third: T.handle) -> None:
        inputs = T.match_buffer(first, (parts * per,), data, offset_factor=1)
        weights = T.match_buffer(second, (parts, lanes, per), "int8", offset_factor=1)
        sums = T.match_buffer(third, (lanes,), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(sums[0:lanes], inputs[0 : parts * per], weights[0:parts, 0:lanes, 0:per])
            T.writes(sums[0:lanes])
            for lane, one in T.grid(lanes, parts * per):
                with T.sblock("update"):
                    n, k = T.axis.remap("SR", [lane, one])
                    sums[n] = sums[n] + T.cast(inputs[k], "int32") * T.cast(
                        weights[k // per, n, k % per], "int32"
                    )

    return description


def _implemented(dot: DotProductInstruction, lanes: int, step: Step) -> tirx.PrimFunc:
    parts, per, data = dot.packs, dot.pack_size, dot.data

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def implementation(first: T.handle, second: T.handle, third: T.handle) -> None:
        inputs = T.match_buffer(first, (parts * per,), data, offset_factor=1)
        weights = T.match_buffer(second, (parts, lanes, per), "int8", offset_factor=1)
        sums = T.match_buffer(third, (lanes,), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(sums[0:lanes], inputs[0 : parts * per], weights[0:parts, 0:lanes, 0:per])
            T.writes(sums[0:lanes])
            sums[T.ramp(0, 1, lanes)] = step(sums.vload([0], f"int32x{lanes}"), inputs, weights)

    return implementation


def _vnni(lanes: int) -> Step:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"

    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        own = weights.vload([0, 0, 0], f"int8x{4 * lanes}")
        return tirx.call_llvm_pure_intrin(
            f"int32x{lanes}", name, sums, _spread(inputs, 0, 4, lanes), own
        )

    return step


def _pairs(lanes: int) -> Step:
    name = {
        16: "llvm.x86.avx512.pmaddw.d.512",
        8: "llvm.x86.avx2.pmadd.wd",
        4: "llvm.x86.sse2.pmadd.wd",
    }[lanes]

    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        own = tirx.Cast(f"int16x{2 * lanes}", weights.vload([0, 0, 0], f"int8x{2 * lanes}"))
        return sums + tirx.call_llvm_pure_intrin(
            f"int32x{lanes}", name, _spread(inputs, 0, 2, lanes), own
        )

    return step


def _sdot(lanes: int) -> Step:
    name = "llvm.aarch64.neon.sdot"

    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        own = weights.vload([0, 0, 0], f"int8x{4 * lanes}")
        return tirx.call_llvm_pure_intrin(
            f"int32x{lanes}", name, sums, own, _spread(inputs, 0, 4, lanes)
        )

    return step


def _smlal(lanes: int) -> Step:
    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        low, high = _widening_products(_SMULL, lanes, inputs, weights)
        return sums + tirx.call_llvm_pure_intrin(f"int32x{lanes}", _SADDLP, low + high)

    return step


def _smull(lanes: int) -> Step:
    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        for products in _widening_products(_SMULL, lanes, inputs, weights):
            sums += tirx.call_llvm_pure_intrin(f"int32x{lanes}", _SADDLP, products)
        return sums

    return step


def _vmlal(lanes: int) -> Step:
    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        low, high = _widening_products(_VMULL, lanes, inputs, weights)
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _VPADAL, sums, low + high)

    return step


def _vmull(lanes: int) -> Step:
    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        for products in _widening_products(_VMULL, lanes, inputs, weights):
            sums = tirx.call_llvm_pure_intrin(f"int32x{lanes}", _VPADAL, sums, products)
        return sums

    return step


def _widening_products(name: str, lanes: int, inputs: Expr, weights: Expr) -> list[Expr]:
    """Return the 16-bit products of both packs.

    Each lane multiplies a pair of inputs by a pair of weights.
    """
    if name == _SMULL:  # one load for both: loading and repeating each pair takes an address each
        both = tirx.reinterpret("int16x2", inputs.vload([0], "int8x4"))
        spread = [
            tirx.reinterpret(
                f"int8x{2 * lanes}", tirx.Broadcast(tirx.Shuffle([both], [part]), lanes)
            )
            for part in (0, 1)
        ]
    else:
        spread = [_spread(inputs, 2 * part, 2, lanes) for part in (0, 1)]
    own = [weights.vload([part, 0, 0], f"int8x{2 * lanes}") for part in (0, 1)]
    return [
        tirx.call_llvm_pure_intrin(f"int16x{2 * lanes}", name, one, other)
        for one, other in zip(spread, own, strict=True)
    ]


def _spread(inputs: Expr, first: int, count: int, lanes: int) -> Expr:
    """Return `count` inputs, repeated for each lane."""
    taken = inputs.vload([first], f"{inputs.dtype}x{count}")
    bits = count * (16 if str(inputs.dtype) == "int16" else 8)
    spread = tirx.Broadcast(tirx.reinterpret(f"int{bits}", taken), lanes)
    signed = str(inputs.dtype).removeprefix("u")  # LLVM's intrinsics take signed types only
    return tirx.reinterpret(f"{signed}x{count * lanes}", spread)


_STEPS: dict[str, Callable[[int], Step]] = {
    VNNI.name: _vnni,
    PAIRS.name: _pairs,
    SDOT.name: _sdot,
    SMLAL.name: _smlal,
    SMULL.name: _smull,
    VMLAL.name: _vmlal,
    VMULL.name: _vmull,
}
