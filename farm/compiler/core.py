"""What a schedule needs to know of a core: the width of its vectors and how many of them it can hold."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import tvm


@dataclass(frozen=True, slots=True)
class Core:
    """`lanes` float32 values in a vector, `registers` vectors; what a cycle can do, and how many pass before a multiply-add is done."""

    name: str
    lanes: int
    registers: int
    multiply_adds: int = 1  # vectors in a cycle
    loads: int = 1  # in a cycle
    latency: int = 8  # cycles of a multiply-add: as many in flight keep the core busy
    prefetches: bool = False  # large weights arrive sooner if asked for ahead, measured

    @property
    def widths(self) -> tuple[int, ...]:
        """Vector widths worth using, in lanes, the widest first: half a vector beats none where channels do not fill a whole one."""
        return (self.lanes, self.lanes // 2) if self.lanes >= 8 else (self.lanes,)

    def tile_budget(self, lanes: int) -> int:
        """Accumulators of a register tile. Above 1,024 bytes, LLVM keeps the tile in memory instead of registers."""
        return min(self.registers * 3 // 4, 1023 // (4 * lanes))


def core_of(target: tvm.target.Target) -> Core:
    """The core of an LLVM target. Unknown ones get vectors of 16 bytes, which every profile's CPU has."""
    triple = str(target.attrs.get("mtriple", ""))

    def has(*features: str) -> bool:
        return all(tvm.target.codegen.target_has_features([feature], target) for feature in features)

    if triple.startswith("aarch64"):
        return Core("neon", 4, 32)
    if triple.startswith("arm"):
        return Core("neon", 4, 16)
    if triple.startswith("riscv"):
        return Core("scalar", 4, 32)
    if has("avx512f"):
        return Core("avx512", 16, 32, 2, 2, 4, prefetches=True)
    if has("avx2", "fma"):
        return Core("avx2", 8, 16, 2, 2, 4, prefetches=True)
    return Core("sse", 4, 16, 2, 2, 4)


def core_key(target: tvm.target.Target) -> str:
    """The core that records are for, for example "aarch64 cortex-a72 neon": the architecture, LLVM's name of the CPU that code is for, and
    what is used of it.

    `native` has been resolved to the CPU's model. Code for a level of an architecture (x86-64-v3) has to suit many models: its records are
    kept under the level, wherever they were measured, and say by which CPU.
    """
    architecture = str(target.attrs.get("mtriple", "")).split("-")[0] or platform.machine()
    return f"{architecture} {target.attrs.get('mcpu') or 'generic'} {core_of(target).name}"
