"""Instructions that add products of 8-bit integers to sums of 32 bits, as tensor intrinsics, and which of them a core has.

An instruction takes a few neighbouring input channels of one pixel, `parts` times `per` of them, and as many weights for each of its lanes,
which are output channels. It adds to each lane's sum. None of them rounds or saturates: all give the same sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T  # noqa: N812

from farm.compiler.core import Core

Expr = Any
_SMULL, _SADDLP = "llvm.aarch64.neon.smull", "llvm.aarch64.neon.saddlp"
_VMULL, _VPADAL = "llvm.arm.neon.vmulls", "llvm.arm.neon.vpadals"
Step = Callable[[Expr, Expr, Expr], Expr]  # sums as a vector, inputs and weights as buffers, to sums


@dataclass(frozen=True, slots=True)
class Dot:
    """An instruction, or a few of them: `name` is what records and reports call it.

    `data` is the type of its inputs, empty for any; its weights are int8. `cycles` is what it costs, in the time of a multiply-add of the
    core's float32 vectors. `otherwise` is the name of what takes its place where a weight is -128, if it cannot take that.
    `weights` are the registers for those of all its lanes, `spread` is what it costs to repeat the inputs of a pixel for all lanes.
    """

    name: str
    parts: int
    per: int
    data: str
    cycles: float = 1.0
    otherwise: str = ""
    weights: int = 1
    spread: float = 0.0

    @property
    def depth(self) -> int:
        """How many input channels it takes."""
        return self.parts * self.per


VNNI = Dot("vnni", 1, 4, "uint8")  # VPDPBUSD
PAIRS = Dot("pairs", 1, 2, "int16", 2.0)  # VPMADDWD, after which its pairs are added
SDOT = Dot("sdot", 1, 4, "int8")  # SDOT, of ARMv8.2
SMLAL = Dot("smlal", 2, 2, "int8", 3.0, "smull", 2, 2.0)  # SMULL, SMLAL, SADALP: two products fit 16 bits, but for 2 * 128 * 128
SMULL = Dot("smull", 2, 2, "int8", 4.0, weights=2, spread=2.0)  # SMULL and SADALP, twice
VMLAL = Dot("vmlal", 2, 2, "int8", 3.0, "vmull", 1, 2.0)  # the same on 32-bit ARM
VMULL = Dot("vmull", 2, 2, "int8", 4.0, spread=2.0)
PLAIN = Dot("plain", 1, 1, "", 4.0)
_BY_NAME = {dot.name: dot for dot in (VNNI, PAIRS, SDOT, SMLAL, SMULL, VMLAL, VMULL, PLAIN)}


def dot_of(core: Core, weight: np.ndarray[Any, Any]) -> Dot:
    """What the core has for a weight."""
    dot = _BY_NAME[core.dot]
    return _BY_NAME[dot.otherwise] if dot.otherwise and (weight == -128).any() else dot


def long_product(core: Core, lanes: int) -> Callable[[Expr, Expr], Expr]:
    """A product of two numbers of 16 bits in 32, of which LLVM makes one instruction for vectors; it must be told so for 32-bit ARM."""
    if core.long_products and lanes == core.lanes:
        return lambda left, right: tirx.call_llvm_pure_intrin("int32", _VMULL, left, right)
    return lambda left, right: left.astype("int32") * right.astype("int32")


def intrinsic(dot: Dot, lanes: int) -> str:
    """The name under which TVM knows an instruction of so many lanes; empty where there is none."""
    if dot.name not in _STEPS:
        return ""
    name = f"farm.{dot.name}.{lanes}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, _described(dot, lanes), _implemented(dot, lanes, _STEPS[dot.name](lanes)))
    return name


def _described(dot: Dot, lanes: int) -> tirx.PrimFunc:
    parts, per, data = dot.parts, dot.per, dot.data

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
                    sums[n] = sums[n] + T.cast(inputs[k], "int32") * T.cast(weights[k // per, n, k % per], "int32")

    return description


def _implemented(dot: Dot, lanes: int, step: Step) -> tirx.PrimFunc:
    parts, per, data = dot.parts, dot.per, dot.data

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
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, _spread(inputs, 0, 4, lanes), own)

    return step


def _pairs(lanes: int) -> Step:
    name = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}[lanes]

    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        own = tirx.Cast(f"int16x{2 * lanes}", weights.vload([0, 0, 0], f"int8x{2 * lanes}"))
        return sums + tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, _spread(inputs, 0, 2, lanes), own)

    return step


def _sdot(lanes: int) -> Step:
    name = "llvm.aarch64.neon.sdot"

    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        own = weights.vload([0, 0, 0], f"int8x{4 * lanes}")
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, own, _spread(inputs, 0, 4, lanes))

    return step


def _smlal(lanes: int) -> Step:
    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        low, high = _long_products(_SMULL, lanes, inputs, weights)
        return sums + tirx.call_llvm_pure_intrin(f"int32x{lanes}", _SADDLP, low + high)

    return step


def _smull(lanes: int) -> Step:
    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        for products in _long_products(_SMULL, lanes, inputs, weights):
            sums += tirx.call_llvm_pure_intrin(f"int32x{lanes}", _SADDLP, products)
        return sums

    return step


def _vmlal(lanes: int) -> Step:
    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        low, high = _long_products(_VMULL, lanes, inputs, weights)
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", _VPADAL, sums, low + high)

    return step


def _vmull(lanes: int) -> Step:
    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        for products in _long_products(_VMULL, lanes, inputs, weights):
            sums = tirx.call_llvm_pure_intrin(f"int32x{lanes}", _VPADAL, sums, products)
        return sums

    return step


def _long_products(name: str, lanes: int, inputs: Expr, weights: Expr) -> list[Expr]:
    """Of both parts, each a pair of inputs by a pair of weights for each lane, in 16 bits."""
    if name == _SMULL:  # loaded once: to load and repeat each pair takes an address each
        both = tirx.reinterpret("int16x2", inputs.vload([0], "int8x4"))
        spread = [tirx.reinterpret(f"int8x{2 * lanes}", tirx.Broadcast(tirx.Shuffle([both], [part]), lanes)) for part in (0, 1)]
    else:
        spread = [_spread(inputs, 2 * part, 2, lanes) for part in (0, 1)]
    own = [weights.vload([part, 0, 0], f"int8x{2 * lanes}") for part in (0, 1)]
    return [tirx.call_llvm_pure_intrin(f"int16x{2 * lanes}", name, one, other) for one, other in zip(spread, own, strict=True)]


def _spread(inputs: Expr, first: int, count: int, lanes: int) -> Expr:
    """So many inputs, repeated for each lane."""
    taken = inputs.vload([first], f"{inputs.dtype}x{count}")
    bits = count * (16 if str(inputs.dtype) == "int16" else 8)
    spread = tirx.Broadcast(tirx.reinterpret(f"int{bits}", taken), lanes)
    signed = str(inputs.dtype).removeprefix("u")  # as LLVM's intrinsics have it, which know no other integers
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
