"""What a schedule needs to know of a core: its vectors, how many of them it can hold, and what it does with them in a cycle.

ARM's figures are of multiply-adds of four float32 values (FMLA or VMLA of a Q register). Latencies of the Cortex-A53, A57, A72 and A73 are
those of LLVM's scheduling models (AArch64SchedA53.td, AArch64SchedA57.td). All others, and what fits into the caches, are estimates for the
usual boards that nobody has measured: they choose among right answers, and `farm tune` knows better.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, replace

import tvm

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Core:
    """`lanes` float32 values in a vector, `registers` vectors; what a cycle can do, and how many pass before a multiply-add is done.

    `name` is part of the key of kept records: it stays as it is.
    """

    name: str
    lanes: int
    registers: int
    multiply_adds: float = 1  # vectors in a cycle
    loads: int = 1  # in a cycle
    latency: int = 8  # cycles of a multiply-add: as many in flight keep the core busy
    in_order: bool = False  # a load takes its turn with the multiply-adds
    from_memory: bool = True  # a multiply-add can take an input from memory, broadcast; else each takes a register
    has_extrema: bool = False  # maximum and minimum that hand on NaN are one instruction
    l1_bytes: int = 32 * _KIB
    l2_bytes: int = 512 * _KIB
    l2_speed: float = math.inf  # bytes in a cycle, from the L2 cache
    stream: float = 2.0  # bytes in a cycle from beyond the L2 cache
    dot: str = "plain"  # how products of 8-bit integers are computed: see `dots`
    long_products: bool = False  # products of 16 bits in 32 are one instruction, of which LLVM must be told
    half_cycles: float | None = None  # of float16 values to a vector of float32; None without an instruction
    prefetches: bool = False  # large weights arrive sooner if asked for ahead, measured

    @property
    def widths(self) -> tuple[int, ...]:
        """Vector widths worth using, in lanes, the widest first: half a vector beats none where channels do not fill a whole one."""
        return (self.lanes, self.lanes // 2) if self.lanes >= 8 else (self.lanes,)

    @property
    def copies_by_loads(self) -> bool:
        """Whether a value that several sums begin with is better loaded for each: a copy takes a multiply-add's place, a load does not.

        So it is on 64-bit ARM cores out of order.
        """
        return self.has_extrema and self.registers >= 32 and not self.in_order

    @property
    def tile_budget(self) -> int:
        """Accumulators of a register tile. LLVM does with three registers beside them for inputs and weights, where these are many.

        For a core in order LLVM moves loads far ahead of their use: with more than half of the registers taken, it then spills.
        """
        if self.in_order:
            return self.registers // 2
        return self.registers * 7 // 8 if self.from_memory and self.registers >= 32 else self.registers * 3 // 4


# -mcpu: multiply-adds and loads in a cycle, latency, in order, KiB of L1 and of L2
_ARM: dict[str, tuple[float, int, int, bool, int, int]] = {
    "cortex-a7": (0.5, 1, 9, True, 32, 128),
    "cortex-a9": (0.5, 1, 9, False, 32, 256),
    "cortex-a53": (1, 1, 10, True, 32, 128),
    "cortex-a55": (1, 1, 4, True, 32, 128),
    "cortex-a57": (1, 1, 10, False, 32, 512),
    "cortex-a72": (1, 1, 10, False, 32, 512),
    "cortex-a73": (1, 1, 10, False, 32, 512),
    "cortex-a75": (2, 2, 6, False, 64, 256),
    "cortex-a76": (2, 2, 4, False, 64, 256),
    "cortex-a78": (2, 2, 4, False, 64, 256),
}
_LIKE = {"cortex-a8": "cortex-a7", "cortex-a35": "cortex-a53", "cortex-a76ae": "cortex-a76", "cortex-a77": "cortex-a76"}
_LIKE |= {"cortex-a78ae": "cortex-a78", "cortex-a78c": "cortex-a78", "carmel": "cortex-a75"}


def core_of(target: tvm.target.Target) -> Core:
    """The core of an LLVM target. Unknown ones get vectors of 16 bytes, which every profile's CPU has."""
    triple, cpu = str(target.attrs.get("mtriple", "")), str(target.attrs.get("mcpu", ""))

    def has(*features: str) -> bool:
        return all(tvm.target.codegen.target_has_features([feature], target) for feature in features)

    if triple.startswith(("aarch64", "arm")):
        wide = triple.startswith("aarch64")
        dot = ("sdot" if has("dotprod") else "smlal") if wide else "vmlal"
        return replace(_arm(cpu, registers=32 if wide else 16), dot=dot, long_products=not wide)
    if triple.startswith("riscv"):
        return Core("scalar", 4, 32, from_memory=False)
    half_cycles = 1 if has("f16c") else None
    if has("avx512f"):
        dot = "vnni" if has("avx512vnni", "avx512vl") else "pairs"
        core = Core("avx512", 16, 32, 2, 2, 4, l1_bytes=48 * _KIB, l2_bytes=2048 * _KIB, l2_speed=24, stream=3.6, dot=dot, prefetches=True)
        return replace(core, half_cycles=half_cycles)
    if has("avx2", "fma"):
        core = Core("avx2", 8, 16, 2, 2, 4, l2_bytes=1024 * _KIB, l2_speed=24, stream=4, dot="pairs", prefetches=True)
        return replace(core, half_cycles=half_cycles)
    return Core("sse", 4, 16, 2, 2, 4, stream=4, dot="pairs")


def core_key(target: tvm.target.Target) -> str:
    """What records are for, for example "aarch64 cortex-a72", "x86_64 znver4 avx512" or "cuda sm_90": the architecture, LLVM's name of
    the CPU that code is for, and where that leaves it open, what is used of it.

    `native` has been resolved to the CPU's model. Code for a level of an architecture (x86-64-v3) has to suit many models: its records are
    kept under the level, wherever they were measured, and say by which CPU.
    """
    if target.kind.name != "llvm":
        return f"{target.kind.name} {target.attrs.get('arch') or target.attrs.get('device')}"
    architecture = str(target.attrs.get("mtriple", "")).split("-")[0] or platform.machine()
    cpu, used = str(target.attrs.get("mcpu") or "generic"), core_of(target).name
    return f"{architecture} {cpu}" if used.startswith(cpu) else f"{architecture} {cpu} {used}"


def _arm(cpu: str, registers: int) -> Core:
    """Of 64-bit or 32-bit code, whose names differ, as the latter has half the registers."""
    cpu = _LIKE.get(cpu, cpu)
    name = cpu if cpu in _ARM else "neon"
    multiply_adds, loads, latency, in_order, l1, l2 = _ARM.get(cpu, _ARM["cortex-a72"])
    name += "" if registers == 32 else "-32bit"
    return Core(name, 4, registers, multiply_adds, loads, latency, in_order, False, True, l1 * _KIB, l2 * _KIB)
