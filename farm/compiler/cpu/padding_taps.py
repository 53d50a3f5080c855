"""Estimate how many kernel taps of a convolution touch the image, and skip the others."""

from __future__ import annotations

from functools import lru_cache

from farm.compiler.cpu.kernel_config import Workload

# Of the taps: if more than this fraction touches the image, the test costs more than it saves.
_WORTHWHILE = 0.93


def used_tap_fraction(workload: Workload, pixels: int) -> float:
    """Return the fraction of the taps that touch the image for some pixel of a tile.

    `pixels` are the neighbouring pixels of a tile. Returns 1 if taps are not skipped.
    """
    found = _used_of_axis(workload, 0, 1) * _used_of_axis(workload, 1, pixels)
    return found if found <= _WORTHWHILE else 1.0


def _used_of_axis(workload: Workload, axis: int, together: int) -> float:
    outputs, taps, extent = workload.output(axis), workload.weight[axis], workload.data[1 + axis]
    return _used_fraction(
        outputs,
        taps,
        extent,
        workload.strides[axis],
        workload.dilation[axis],
        workload.padding[axis],
        together,
    )


@lru_cache(1 << 12)  # asked again for each tile and each convolution of the same image
def _used_fraction(
    outputs: int, taps: int, extent: int, stride: int, apart: int, before: int, together: int
) -> float:
    tiles = -(-outputs // together)
    seen = 0
    for tap in range(taps):
        place = tap * apart - before  # of the first pixel's tap in the image
        begun = -(-(extent - place) // (together * stride))  # tiles that begin before its end
        least = -(place // stride)  # the first pixel whose tap is not before the image
        ended = tiles if least >= outputs else min(-(-(least + 1) // together) - 1, tiles - 1)
        seen += max(0, min(begun, tiles) - max(0, ended))
    return seen / (tiles * taps)


def skip_taps_annotation(workload: Workload) -> list[int]:
    """Return the value of the annotation SKIP_PADDING_TAPS: four numbers for each axis."""
    given = zip(
        workload.data[1:3], workload.padding[:2], workload.strides, workload.dilation, strict=True
    )
    return [number for axis in given for number in axis]
