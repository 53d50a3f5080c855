"""The CPU model that schedules use: vector width, registers, caches, and throughput per cycle.

ARM's figures are for multiply-adds of four float32 values (FMLA or VMLA of a Q register). The
latencies of the Cortex-A53, A57, A72 and A73 are those of LLVM's scheduling models
(AArch64SchedA53.td, AArch64SchedA57.td). All other figures, and the cache sizes, are estimates for
common boards and have not been measured. They only choose between correct kernels; `farm tune`
measures instead.
"""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, replace

import tvm

_KIB = 1024


@dataclass(frozen=True, slots=True)
class CpuModel:
    """A CPU model (microarchitecture).

    `lanes` is the number of float32 values in a vector, `registers` the number of vector registers.
    `name` is part of the keys of stored tuning records and must not change.
    """

    name: str
    lanes: int
    registers: int
    fmas_per_cycle: float = 1  # multiply-adds of one vector per cycle
    loads_per_cycle: int = 1  # vector loads per cycle
    # Latency of a multiply-add in cycles: that many must be in flight to keep the core busy
    fma_latency: int = 8
    in_order: bool = False  # in-order core: the cycles of loads and of multiply-adds add up
    # A multiply-add can read an input from memory, broadcast; else each input occupies a register
    has_memory_operands: bool = True
    has_nan_propagating_minmax: bool = (
        False  # NaN-propagating maximum and minimum are one instruction
    )
    l1_bytes: int = 32 * _KIB
    # Lines whose addresses are a multiple of `l1_way_bytes` apart share a set of the L1 cache. A
    # set holds `l1_ways` lines. x86 indexes this cache by the address within a page; the number of
    # ways is that of the least associative caches. Both count only if `l2_bytes_per_cycle` is
    # finite.
    l1_way_bytes: int = 4 * _KIB
    l1_ways: int = 8
    l2_bytes: int = 512 * _KIB
    l2_bytes_per_cycle: float = math.inf  # bytes per cycle from the L2 cache
    dram_bytes_per_cycle: float = 2.0  # bytes per cycle from beyond the L2 cache (L3 or DRAM)
    # How dot products of 8-bit integers are computed: see farm.compiler.cpu.int8.dot_instructions
    dot_product: str = "plain"
    # A widening multiply of 16-bit values is one instruction, and LLVM uses it only if told
    # explicitly
    has_widening_multiply: bool = False
    # Cycles to convert float16 values to a vector of float32; None without an instruction for it
    fp16_convert_cycles: float | None = None
    gains_by_prefetch: bool = False  # prefetching large weights was measured to be faster
    # A division of vectors is faster than a reciprocal by multiplications: other arithmetic goes on
    # beside it
    has_fast_division: bool = False

    # One instruction narrows unsigned integers to bytes with saturation (VPMOVUSDB), and one rounds
    # float32 numbers to integers (VCVTPS2DQ)
    narrows_with_saturation: bool = False

    # Arithmetic on a full vector takes as long as on two of half the width
    splits_full_vectors: bool = False

    def resource_cycles(self, lanes: int) -> int:
        """Return for how many cycles arithmetic on a vector of so many lanes occupies its unit.

        It is what LLVM's scheduling models call the resource cycles (or release cycles) of an
        instruction.
        """
        return 2 if self.splits_full_vectors and lanes == self.lanes else 1

    @property
    def vector_widths(self) -> tuple[int, ...]:
        """Vector widths worth using, in lanes, the widest first.

        Half a vector is better than none if the channels do not fill a whole one.
        """
        return (self.lanes, self.lanes // 2) if self.lanes >= 8 else (self.lanes,)

    @property
    def prefers_reload_over_copy(self) -> bool:
        """True if the initial value of several accumulators is better loaded for each than copied.

        A register copy takes an issue slot of a multiply-add; a load does not. This holds for
        out-of-order 64-bit ARM cores.
        """
        return self.has_nan_propagating_minmax and self.registers >= 32 and not self.in_order

    @property
    def task_cache_bytes(self) -> int:
        """The bytes of the L2 cache that the results between the steps of a task may fill.

        This is half of a core's own cache (x86), a quarter of one that cores share (ARM).
        """
        return self.l2_bytes // (2 if self.has_memory_operands else 4)

    @property
    def accumulators(self) -> int:
        """The number of accumulators of a register tile.

        With at least 32 registers and memory operands, LLVM needs three registers besides the
        accumulators for inputs and weights. For an in-order core LLVM moves loads far ahead of
        their use, and spills registers if the accumulators take more than half of them.
        """
        if self.in_order:
            return self.registers // 2
        return (
            self.registers * 7 // 8
            if self.has_memory_operands and self.registers >= 32
            else self.registers * 3 // 4
        )


# -mcpu of x86 CPUs with AVX-512 and units of 32 bytes (AMD, Software Optimization Guide for Zen 4)
_SPLITTING = ("znver4",)
# -mcpu: multiply-adds per cycle, loads per cycle, latency in cycles, in order, KiB of L1, KiB of L2
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
_LIKE = {
    "cortex-a8": "cortex-a7",
    "cortex-a35": "cortex-a53",
    "cortex-a76ae": "cortex-a76",
    "cortex-a77": "cortex-a76",
}
_LIKE |= {"cortex-a78ae": "cortex-a78", "cortex-a78c": "cortex-a78", "carmel": "cortex-a75"}


def cpu_model_of(target: tvm.target.Target) -> CpuModel:
    """Return the CPU model of an LLVM target.

    Unknown CPUs get vectors of 16 bytes, which the CPU of every profile has.
    """
    triple, cpu = str(target.attrs.get("mtriple", "")), str(target.attrs.get("mcpu", ""))

    def has(*features: str) -> bool:
        return all(
            tvm.target.codegen.target_has_features([feature], target) for feature in features
        )

    if triple.startswith(("aarch64", "arm")):
        wide = triple.startswith("aarch64")
        dot = ("sdot" if has("dotprod") else "smlal") if wide else "vmlal"
        return replace(
            _arm(cpu, registers=32 if wide else 16), dot_product=dot, has_widening_multiply=not wide
        )
    if triple.startswith("riscv"):
        return CpuModel("scalar", 4, 32, has_memory_operands=False)
    fp16_convert_cycles = 1 if has("f16c") else None
    if has("avx512f"):
        dot = "vnni" if has("avx512vnni", "avx512vl") else "pairs"
        core = CpuModel(
            "avx512",
            16,
            32,
            2,
            2,
            4,
            l1_bytes=48 * _KIB,
            l2_bytes=2048 * _KIB,
            l2_bytes_per_cycle=24,
            dram_bytes_per_cycle=3.6,
            dot_product=dot,
            gains_by_prefetch=True,
            has_fast_division=True,
            narrows_with_saturation=True,
            splits_full_vectors=cpu in _SPLITTING,
        )
        return replace(core, fp16_convert_cycles=fp16_convert_cycles)
    if has("avx2", "fma"):
        core = CpuModel(
            "avx2",
            8,
            16,
            2,
            2,
            4,
            l2_bytes=1024 * _KIB,
            l2_bytes_per_cycle=24,
            dram_bytes_per_cycle=4,
            dot_product="pairs",
            gains_by_prefetch=True,
            has_fast_division=True,
        )
        return replace(core, fp16_convert_cycles=fp16_convert_cycles)
    return CpuModel(
        "sse",
        4,
        16,
        2,
        2,
        4,
        dram_bytes_per_cycle=4,
        dot_product="pairs",
        has_fast_division=True,
    )


def tuning_target_key(target: tvm.target.Target) -> str:
    """Return the key under which tuning records are stored for a target.

    Examples are "aarch64 cortex-a72", "x86_64 znver4 avx512" and "cuda sm_90". The key consists of
    the architecture, LLVM's name of the CPU and, if these do not determine it, the name of the CPU
    model in use. `native` has been resolved to the CPU's name. Code for a level of an architecture
    (x86-64-v3) runs on many CPUs: its records are stored under the level, whichever CPU measured
    them, and name that CPU.
    """
    if target.kind.name != "llvm":
        return f"{target.kind.name} {target.attrs.get('arch') or target.attrs.get('device')}"
    architecture = str(target.attrs.get("mtriple", "")).split("-")[0] or platform.machine()
    cpu, used = str(target.attrs.get("mcpu") or "generic"), cpu_model_of(target).name
    return f"{architecture} {cpu}" if used.startswith(cpu) else f"{architecture} {cpu} {used}"


def _arm(cpu: str, registers: int) -> CpuModel:
    """Return the CPU model of a 64-bit or 32-bit ARM target.

    The two have different names, because 32-bit code has half the registers.
    """
    cpu = _LIKE.get(cpu, cpu)
    name = cpu if cpu in _ARM else "neon"
    multiply_adds, loads, latency, in_order, l1, l2 = _ARM.get(cpu, _ARM["cortex-a72"])
    name += "" if registers == 32 else "-32bit"
    return CpuModel(
        name,
        4,
        registers,
        multiply_adds,
        loads,
        latency,
        in_order,
        False,
        True,
        l1 * _KIB,
        l2 * _KIB,
    )
