"""Choose how a convolution and the windows over its result are computed as one kernel.

A task computes a band of rows of the windows' result for one block of channels. It computes the
rows of the convolution that the band reads first; they stay in the L2 cache. Rows that two bands
read are computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from farm.compiler.cpu.cost_model import uses_grouped_loads
from farm.compiler.cpu.kernel_config import ConfigDecision, Workload
from farm.compiler.cpu.register_tiles import Tile, fits_registers, predicted_row_cycles
from farm.compiler.cpu.windows.depthwise_pool import uses_row_loads
from farm.compiler.target.cpu_model import CpuModel

# A pair may take so many times the cycles of the convolution alone, for another tile and rows that
# are computed twice: two kernels write the result between them to memory and read it again.
_MOST_CYCLES = 1.15
_THREADS = (1, 2, 4)  # numbers of threads for which the bands are chosen


@dataclass(frozen=True, slots=True)
class DepthFirstPlan:
    """The register tile of the convolution, whose pixels divide a row, and the number of bands."""

    tile: Tile
    bands: int

    def __str__(self) -> str:
        return f"{self.tile}, {self.bands} band{'s' if self.bands > 1 else ''}"


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
    grouped = uses_grouped_loads(workload, cpu)
    tiles = [
        replace(chosen, pixels=pixels) for pixels in range(1, width + 1) if width % pixels == 0
    ]
    fitting = [tile for tile in tiles if fits_registers(cpu, tile, grouped)]
    if not fitting:
        return None
    best = min(fitting, key=lambda tile: _row_cycles(workload, tile, cpu))
    tile = chosen if width % chosen.pixels == 0 else best
    most = _MOST_CYCLES * _row_cycles(workload, chosen, cpu) / _row_cycles(workload, tile, cpu)
    bands = _bands(workload, windows, chosen.block, tile_rows, most, cpu)
    return None if bands is None else DepthFirstPlan(tile, bands)


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


def _reach(windows: Workload) -> int:
    """Return the rows of the image that a window spans."""
    return windows.dilation[0] * (windows.weight[0] - 1) + 1


def _rows_of_band(windows: Workload, bands: int) -> int:
    """Return the rows of the image that the windows of one of so many bands read, at most."""
    rows = windows.output(0) // bands
    return min((rows - 1) * windows.strides[0] + _reach(windows), windows.data[1])


def _bands(
    workload: Workload, windows: Workload, block: int, tile_rows: int, most: float, cpu: CpuModel
) -> int | None:
    """Return the number of bands for the fewest rows, of those whose rows fit into the cache.

    The rows are those of the thread that computes the most, on average over numbers of threads.
    `block` are the channels of a task; at most `most` times the rows of the image are computed.
    Returns None if no bands fit. There is one band or none for windows that load their operands by
    rows, as LLVM would keep their sums in memory, and for windows with rows between them, for which
    TVM cannot schedule bands.
    """
    height, width, blocks = windows.output(0), windows.data[2], workload.channels // block
    fitting = [
        bands
        for bands in range(1, height + 1)
        if height % (bands * tile_rows) == 0
        and max(1.0, bands * _rows_of_band(windows, bands) / windows.data[1]) <= most
        and 4 * _rows_of_band(windows, bands) * width * block <= cpu.task_cache_bytes
    ]

    def rows_of_busiest(bands: int) -> float:
        tasks = workload.data[0] * bands * blocks
        most = sum(-(-tasks // threads) * threads for threads in _THREADS) / len(_THREADS)
        return most * _rows_of_band(windows, bands)

    if uses_row_loads(windows, cpu) or windows.strides[0] > _reach(windows):
        return 1 if 1 in fitting else None
    return min(fitting, key=lambda bands: (rows_of_busiest(bands), bands), default=None)
