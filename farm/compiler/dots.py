"""Instructions that add products of 8-bit integers to sums of 32 bits, as tensor intrinsics, and which of them a core has.

An instruction takes a few neighbouring input channels of one pixel, `parts` times `per` of them, and as many weights for each of its lanes,
which are output channels. It adds to each lane's sum. None of them rounds or saturates: all give the same sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T  # noqa: N812

Expr = Any
Step = Callable[[Expr, Expr, Expr], Expr]  # sums, inputs and weights, as vectors, to sums


@dataclass(frozen=True, slots=True)
class Dot:
    """An instruction, or a few of them: `name` is what records and reports call it.

    `data` is the type of its inputs, empty for any; its weights are int8. `cycles` is what it costs, in the time of a multiply-add of the
    core's float32 vectors.
    """

    name: str
    parts: int
    per: int
    data: str
    cycles: float = 1.0

    @property
    def depth(self) -> int:
        """How many input channels it takes."""
        return self.parts * self.per


VNNI = Dot("vnni", 1, 4, "uint8")  # VPDPBUSD
PAIRS = Dot("pairs", 1, 2, "int16", 2.0)  # VPMADDWD, after which its pairs are added
SDOT = Dot("sdot", 1, 4, "int8")  # SDOT, of ARMv8.2
WIDENING = Dot("widening", 2, 2, "int8", 3.0)  # SMULL, SMLAL and SADALP: two products of 8 bits fit into 16
PLAIN = Dot("plain", 1, 1, "", 4.0)
_BY_NAME = {dot.name: dot for dot in (VNNI, PAIRS, SDOT, WIDENING, PLAIN)}


def dot_of(name: str) -> Dot:
    return _BY_NAME[name]


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
            sums[T.ramp(0, 1, lanes)] = step(
                sums.vload([0], f"int32x{lanes}"),
                inputs.vload([0], f"{data}x{parts * per}"),
                weights.vload([0, 0, 0], f"int8x{parts * lanes * per}"),
            )

    return implementation


def _vnni(lanes: int) -> Step:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"

    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        spread = tirx.Broadcast(tirx.reinterpret("int32", inputs), lanes)
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, tirx.reinterpret(f"int8x{4 * lanes}", spread), weights)

    return step


def _pairs(lanes: int) -> Step:
    name = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}[lanes]
    pairs = f"int16x{2 * lanes}"

    def step(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
        spread = tirx.reinterpret(pairs, tirx.Broadcast(tirx.reinterpret("int32", inputs), lanes))
        return sums + tirx.call_llvm_pure_intrin(f"int32x{lanes}", name, spread, tirx.Cast(pairs, weights))

    return step


_STEPS: dict[str, Callable[[int], Step]] = {VNNI.name: _vnni, PAIRS.name: _pairs}
