"""Images at places between their pixels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

_BILINEAR, _NEAREST = 0, 1  # at::native's enumerations
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2
_SHARPNESS = -0.5  # of the cubic filter with antialiasing (Keys, 1981)


def _grid_sampler_3d(
    x: torch.Tensor, grid: torch.Tensor, mode: int, padding: int, align_corners: bool
) -> torch.Tensor:
    """Sample volumes [N, C, D, H, W] at the places [N, d, h, w, 3], which are x, y, z."""
    if mode not in (_BILINEAR, _NEAREST):
        raise NotImplementedError(f"interpolation_mode {mode} of volumes")
    extents = x.shape[2:]
    places = [
        _pixel_coordinate(grid[..., 2 - axis], extent, padding, align_corners)
        for axis, extent in enumerate(extents)
    ]
    if mode == _NEAREST:
        return _pixels_at(x, [torch.round(place) for place in places], padding == _ZEROS)
    lower = [torch.floor(place) for place in places]
    total = None
    for corner in itertools.product((0, 1), repeat=len(places)):
        at = [low + side for low, side in zip(lower, corner, strict=True)]
        weight = torch.ones_like(places[0])
        for place, low, side in zip(places, lower, corner, strict=True):
            weight = weight * ((place - low) if side else (low + 1.0 - place))
        part = _pixels_at(x, at, padding == _ZEROS) * weight.unsqueeze(1)
        total = part if total is None else total + part
    assert total is not None
    return total


def _pixel_coordinate(
    value: torch.Tensor, extent: int, padding: int, align_corners: bool
) -> torch.Tensor:
    """Return places in pixels, of places from -1 to 1."""
    if align_corners:
        place = (value + 1.0) / 2.0 * (extent - 1)
        low, high = 0.0, extent - 1.0
    else:
        place = ((value + 1.0) * extent - 1.0) / 2.0
        low, high = -0.5, extent - 0.5
    if padding == _REFLECTION:
        span = high - low
        if span == 0:
            return torch.zeros_like(place)
        away = (place - low).abs()
        flips = torch.floor(away / span)
        rest = away - flips * span
        odd = flips - 2.0 * torch.floor(flips / 2.0) == 1.0
        place = torch.where(odd, span - rest, rest) + low
    return place if padding == _ZEROS else place.clamp(0.0, extent - 1.0)


def _pixels_at(x: torch.Tensor, at: Sequence[torch.Tensor], zeros: bool) -> torch.Tensor:
    """Return the pixels at whole places; with `zeros`, 0 outside."""
    inside = torch.ones_like(at[0], dtype=torch.bool)
    index = torch.zeros_like(at[0], dtype=torch.int64)
    for place, extent in zip(at, x.shape[2:], strict=True):
        inside = inside & (place >= 0) & (place <= extent - 1)
        index = index * extent + place.clamp(0, extent - 1).to(torch.int64)
    count, channels = x.shape[:2]
    expanded = index.reshape(count, 1, -1).expand(count, channels, -1)
    made = torch.gather(x.reshape(count, channels, -1), 2, expanded)
    made = made.reshape(count, channels, *at[0].shape[1:])
    return torch.where(inside.unsqueeze(1), made, torch.zeros_like(made)) if zeros else made


def _antialiased(
    support: float, weight_at: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """Return the resizing of images by a filter that grows with the reduction."""

    def decompose(
        x: torch.Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> torch.Tensor:
        for axis, length, scale in zip((-2, -1), output_size, (scales_h, scales_w), strict=True):
            if length == x.shape[axis]:  # torch leaves such an axis as it is, whatever its scale
                continue
            step = _step(x.shape[axis], length, align_corners, scale)
            by = _weights(x.shape[axis], length, step, support, weight_at).to(x.dtype)
            x = by @ x if axis == -2 else x @ by.mT
        return x

    return decompose


def _step(before: int, after: int, align_corners: bool, scale: float | None) -> float:
    if align_corners:
        return (before - 1) / (after - 1) if after > 1 else 0.0
    return 1.0 / scale if scale else before / after


def _weights(
    before: int,
    after: int,
    step: float,
    support: float,
    weight_at: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return the weights of the old pixels in each of the new ones, [after, before]."""
    widened = max(step, 1.0)
    centre = ((torch.arange(after, dtype=torch.float64) + 0.5) * step).unsqueeze(-1)
    place = torch.arange(before, dtype=torch.float64)
    first = torch.floor((centre - support * widened + 0.5).clamp(min=0.0))
    behind = torch.floor(centre + support * widened + 0.5)
    weights = weight_at(((place - centre + 0.5) / widened).abs())
    weights = torch.where((place >= first) & (place < behind), weights, torch.zeros_like(weights))
    return weights / weights.sum(-1, keepdim=True)


def _linear(x: torch.Tensor) -> torch.Tensor:
    """Return a triangle's weights at these distances."""
    return (1.0 - x).clamp(min=0.0)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    """Return the weights of Keys' filter at these distances."""
    a = _SHARPNESS
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, torch.zeros_like(x)))


def _nearest_exact(
    x: torch.Tensor, output_size: Sequence[int], *scales: float | None
) -> torch.Tensor:
    """Resize images by the pixel in which the centre of each new one lies."""
    given = [*scales, *[None] * (len(output_size) - len(scales))]
    for axis, (length, scale) in enumerate(zip(output_size, given, strict=True), 2):
        before = x.shape[axis]
        step = _step(before, length, align_corners=False, scale=scale)
        places = torch.floor((torch.arange(length, dtype=torch.float32) + 0.5) * step)
        x = torch.index_select(x, axis, places.to(torch.int64).clamp(0, before - 1))
    return x


def _affine_grid(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
    """Return the places that affine maps [N, 2, 3] or [N, 3, 4] give the pixels of images."""
    extents = size[2:]
    rank = len(extents)
    places = []
    for axis in reversed(range(rank)):  # x first
        extent, shape = extents[axis], [1] * rank
        shape[axis] = extent
        steps = torch.arange(extent, dtype=theta.dtype)
        if align_corners:
            line = steps * (2.0 / (extent - 1)) - 1.0 if extent > 1 else steps * 0.0
        else:
            line = (steps * 2.0 + 1.0) / extent - 1.0
        places.append(line.reshape(shape).expand(list(extents)))
    base = torch.stack([*places, torch.ones_like(places[0])], -1).reshape(1, -1, rank + 1)
    grid = base.expand(theta.shape[0], -1, -1) @ theta.mT
    return grid.reshape(theta.shape[0], *extents, rank)


DECOMPOSITIONS = {
    "affine_grid_generator": _affine_grid,
    "grid_sampler_3d": _grid_sampler_3d,
    "_upsample_nearest_exact1d": _nearest_exact,
    "_upsample_nearest_exact2d": _nearest_exact,
    "_upsample_nearest_exact3d": _nearest_exact,
    "_upsample_bilinear2d_aa": _antialiased(1.0, _linear),
    "_upsample_bicubic2d_aa": _antialiased(2.0, _cubic),
}
