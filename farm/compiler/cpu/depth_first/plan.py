"""Choose how a convolution and the windows over its result are computed as one kernel.

A task computes a band of rows of the windows' result for one block of channels. It computes the
rows of the convolution that the band reads first; they stay in the L2 cache. Rows that two bands
read are computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from farm.compiler.cpu.cost_model import uses_grouped_loads
from farm.compiler.cpu.depthwise_pool import uses_row_loads
from farm.compiler.cpu.kernel_config import ConfigDecision, Workload
from farm.compiler.cpu.register_tiles import Tile, fits_registers, predicted_row_cycles
from farm.compiler.target.cpu_model import CpuModel

# Of the convolution's cycles, for a tile that divides the rows: separate kernels write its result
# to memory and read it again, which took a fifth of the time of both or more.
_MOST_CYCLES = 1.15
_THREADS = (1, 2, 4)  # numbers of threads for which the bands are chosen


@dataclass(frozen=True, slots=True)
class DepthFirstPlan:
    """The register tile of the convolution, whose pixels divide a row, and the number of bands."""

    tile: Tile
    bands: int


def depth_first_plan(
    convolution: ConfigDecision, over_result: ConfigDecision, tile_rows: int, cpu: CpuModel
) -> DepthFirstPlan | None:
    """Return the plan of the fewest predicted cycles; None if separate kernels are faster.

    `over_result` is of a depthwise convolution or a pool over the convolution's result, the tiles
    of which have so many rows.
    """
    workload, chosen = convolution.workload, convolution.config.tile
    windows, lanes = over_result.workload, over_result.config.tile.lanes
    width, channels = workload.output(1), workload.channels
    if channels % chosen.block or chosen.block % lanes:
        return None
    separate = _row_cycles(workload, chosen, cpu)
    if width % chosen.pixels == 0:
        tile = chosen
    else:
        tiles = [
            tile
            for pixels in range(1, width + 1)
            if width % pixels == 0
            and fits_registers(
                cpu, tile := replace(chosen, pixels=pixels), uses_grouped_loads(workload, cpu)
            )
        ]
        tile = min(tiles, key=lambda tile: _row_cycles(workload, tile, cpu))
    bands = _bands(workload, windows, tile, tile_rows, cpu)
    if bands is None:
        return None
    computed = bands * _rows_of_band(windows, bands) / windows.data[1]
    if _row_cycles(workload, tile, cpu) * max(1.0, computed) > _MOST_CYCLES * separate:
        return None
    return DepthFirstPlan(tile, bands)


def _row_cycles(workload: Workload, tile: Tile, cpu: CpuModel) -> float:
    """Return the predicted cycles of a row of the convolution."""
    kernel_h, kernel_w, depth, channels = workload.weight
    return predicted_row_cycles(
        cpu,
        tile,
        workload.output(1),
        channels,
        kernel_h * kernel_w * depth,
        grouped_loads=uses_grouped_loads(workload, cpu),
        followed=True,
        pixel_stride_bytes=4 * workload.data[-1] * workload.strides[-1],
    )


def _rows_of_band(windows: Workload, bands: int) -> int:
    """Return the rows of the image that the windows of one of so many bands read, at most."""
    rows, reach = windows.output(0) // bands, windows.dilation[0] * (windows.weight[0] - 1) + 1
    return min((rows - 1) * windows.strides[0] + reach, windows.data[1])


def _bands(
    workload: Workload, windows: Workload, tile: Tile, tile_rows: int, cpu: CpuModel
) -> int | None:
    """Return the number of bands for the fewest rows, of those whose rows fit into the cache.

    The rows are those of the thread that computes the most, on average over numbers of threads.
    Windows that load their operands by rows have one band or none: LLVM would keep their sums in
    memory, as the rows beyond the image depend on the band.
    """
    height, width, blocks = windows.output(0), windows.data[2], workload.channels // tile.block
    row_bytes = 4 * width * tile.block
    offered = [bands for bands in range(1, height + 1) if height % (bands * tile_rows) == 0]
    fitting = [
        bands
        for bands in offered
        if _rows_of_band(windows, bands) * row_bytes <= cpu.task_cache_bytes
    ]

    def rows_of_busiest(bands: int) -> float:
        tasks = workload.data[0] * bands * blocks
        most = sum(-(-tasks // threads) * threads for threads in _THREADS) / len(_THREADS)
        return most * _rows_of_band(windows, bands)

    if uses_row_loads(windows, cpu):
        return 1 if 1 in fitting else None
    return min(fitting or offered[-1:], key=lambda bands: (rows_of_busiest(bands), bands))
