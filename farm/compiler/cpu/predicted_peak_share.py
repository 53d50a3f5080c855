"""Predict which share of what a core can do a kernel reaches, and say why a slow one is slow.

A core can do as many multiply-adds a cycle as its CPU model says, or read the weights from memory,
whichever takes longer. The cycles are those that the cost model predicted for the configuration, so
nothing is measured and a board need not be there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from farm.compiler.cpu.conv_dense_compute import CONVOLUTION, DENSE, PRODUCT
from farm.compiler.cpu.cost_model import gemm_rows_pixels_depth_weights
from farm.compiler.cpu.kernel_config import ConfigDecision, KernelConfig, Workload
from farm.compiler.target.cpu_model import CpuModel

SLOW = 1 / 3  # of what the core can do: a kernel below it is marked
_SOLE = 0.7  # a cause that leaves more of the speed than this does not explain a slow kernel


def predicted_peak_share(decision: ConfigDecision, cpu: CpuModel) -> float | None:
    """Return the predicted share of a product's kernel; None if nothing is predicted for it."""
    workload, cycles = decision.workload, dict(decision.candidates).get(decision.config)
    if workload.operator not in (CONVOLUTION, DENSE, PRODUCT) or not cycles:
        return None
    rows, pixels, depth, _ = gemm_rows_pixels_depth_weights(workload)
    steps = rows * pixels * depth * workload.channels
    arithmetic = steps * cpu.resource_cycles(cpu.lanes) / (cpu.lanes * cpu.fmas_per_cycle)
    weights = 4 * math.prod(workload.weight)
    memory = weights / cpu.dram_bytes_per_cycle if weights > cpu.l2_bytes // 2 else 0
    return max(arithmetic, memory) / cycles


def slowness_reason(decision: ConfigDecision, cpu: CpuModel) -> str:
    """Return the main cause why a product's kernel is slow, as text."""
    causes = list(_causes(decision.workload, decision.config, cpu))
    left, words = min(causes, key=lambda cause: cause[0])
    return words if left < _SOLE else "it waits for memory, or for the loops around its tiles"


def _causes(workload: Workload, config: KernelConfig, cpu: CpuModel) -> Iterator[tuple[float, str]]:
    """Yield causes: the share of the speed that each leaves, and words for it."""
    tile, (_, pixels, _, _) = config.tile, gemm_rows_pixels_depth_weights(workload)
    channels = workload.channels // workload.groups
    of_group = " of a group" if workload.groups > 1 else ""
    yield (
        tile.lanes / cpu.lanes * cpu.resource_cycles(cpu.lanes) / cpu.resource_cycles(tile.lanes),
        f"vectors of {tile.lanes} lanes, the CPU has {cpu.lanes}: "
        f"{channels} channels{of_group} fill no wider ones",
    )
    covered = -(-channels // tile.block) * tile.block
    yield channels / covered, f"{channels} channels{of_group} in tiles of {tile.block}"
    covered = -(-pixels // tile.pixels) * tile.pixels
    yield pixels / covered, f"rows of {pixels} pixels in tiles of {tile.pixels}"
    sums, wanted = tile.pixels * tile.vectors, cpu.fma_latency * cpu.fmas_per_cycle
    yield sums / wanted, f"{sums} vectors of sums at once, the CPU needs {wanted:g} to be busy"
    arithmetic, loads = (
        sums / cpu.fmas_per_cycle,
        (tile.pixels + tile.vectors) / cpu.loads_per_cycle,
    )
    yield arithmetic / max(arithmetic, loads), f"a load for each sum: tiles of {sums} vectors"
