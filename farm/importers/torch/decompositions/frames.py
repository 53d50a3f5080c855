"""Sums of frames that overlap: what undoes `unfold` and `nn.Unfold`, and a short-time transform.

torch's own decompositions add each frame to the whole by indices, or even each place of all frames
by an operator of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

_MOST_ADDITIONS = 64  # in one expression


def _sum_of_frames(frames: torch.Tensor, step: int, length: int) -> torch.Tensor:
    """Return the sums [..., length] of frames [..., count, size] that begin `step` apart.

    A frame is divided into pieces of `step` elements. The first pieces of all frames lie side by
    side in the result, so do the second ones, `step` later.
    """
    size = frames.shape[-1]
    count = -(-size // step)
    padded = torch.nn.functional.pad(frames, (0, count * step - size))
    pieces = padded.unflatten(-1, (count, step))
    total = None
    for index in range(count):
        piece = pieces.select(-2, index)
        moved = torch.nn.functional.pad(piece, (0, 0, index, count - 1 - index))
        total = moved if total is None else total + moved
    assert total is not None, "a frame has elements"
    made = total.flatten(-2)
    return torch.nn.functional.pad(made, (0, length - made.shape[-1]))


def _unfold_backward(
    grad: torch.Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> torch.Tensor:
    """Add windows [..., count, ..., size] up along an axis; other axes may be broadcast."""
    rank = len(input_sizes)
    if rank == 0 or -(-size // step) > _MOST_ADDITIONS:
        made: torch.Tensor = decomposition_table[torch.ops.aten.unfold_backward.default](
            grad, input_sizes, dim, size, step
        )
        return made
    dim %= rank
    frames = grad.movedim(dim, -2)
    others = [extent for axis, extent in enumerate(input_sizes) if axis != dim]
    summed = _sum_of_frames(frames, step, input_sizes[dim])
    return summed.expand(*others, input_sizes[dim]).movedim(-1, dim)


def _col2im(
    x: torch.Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """Add up the patches [..., channels * kernel, patches] of an image, which overlap: nn.Fold."""
    spans = [(kernel - 1) * gap + 1 for kernel, gap in zip(kernel_size, dilation, strict=True)]
    if any(-(-span // step) > _MOST_ADDITIONS for span, step in zip(spans, stride, strict=True)):
        made: torch.Tensor = decomposition_table[torch.ops.aten.col2im.default](
            x, output_size, kernel_size, dilation, padding, stride
        )
        return made
    wide = [extent + 2 * pad for extent, pad in zip(output_size, padding, strict=True)]
    counts = [
        (extent - span) // step + 1 for extent, span, step in zip(wide, spans, stride, strict=True)
    ]
    patches = x.unflatten(-1, counts).unflatten(-3, (-1, *kernel_size))
    # [..., channels, kernel rows, kernel columns, rows, columns]
    columns = _with_gaps(patches.movedim(-3, -1), dilation[1])
    strips = _sum_of_frames(columns, stride[1], wide[1])  # [..., kernel rows, rows, width]
    rows = _with_gaps(strips.movedim(-3, -1).transpose(-3, -2), dilation[0])
    image = _sum_of_frames(rows, stride[0], wide[0]).transpose(-2, -1)
    for axis, (pad, extent) in enumerate(zip(padding, output_size, strict=True)):
        image = image.narrow(axis - 2, pad, extent)
    return image


def _with_gaps(frames: torch.Tensor, gap: int) -> torch.Tensor:
    """Return frames whose elements are `gap` places apart, with zeros between them."""
    if gap == 1:
        return frames
    spread = torch.nn.functional.pad(frames.unsqueeze(-1), (0, gap - 1)).flatten(-2)
    return spread.narrow(-1, 0, (frames.shape[-1] - 1) * gap + 1)


DECOMPOSITIONS: dict[str, Any] = {
    "unfold_backward": _unfold_backward,
    "col2im": _col2im,
}
