"""Charts as inline SVG: pure functions of numbers that draw no text.

Colours are classes of the page's style, so that they suit light and dark. The content of a chart is
also in the text next to it, and in its label for screen readers.

Each chart is drawn in a box of `WIDTH` by its height, and stretched to the size that the page gives
it: lines keep their width, and nothing is round. Values on a logarithmic scale are above 0.
"""

from __future__ import annotations

import bisect
import html
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 400
HISTORY_HEIGHT, SPARK_HEIGHT, STRIP_HEIGHT, BAR_HEIGHT = 120, 28, 28, 16
_BINS = 40
_LEAST_ROOM = (
    0.1  # of the lowest value: the least range of a scale, so that tiny differences look small
)


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic axis from `low` to `high`."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float], room: float = 0.03) -> LogScale:
        """Return a scale that covers all values, with a margin at both ends.

        Raises ValueError if there are no values.
        """
        found = sorted(values)
        if not found:
            raise ValueError("no values")
        low, high = found[0], max(found[-1], found[0] * (1 + _LEAST_ROOM))
        margin = (high / low) ** room
        return cls(low / margin, high * margin)

    def at(self, value: float) -> float:
        """Return the position of a value, from 0 to 1."""
        return min(
            1.0,
            max(0.0, math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)),
        )

    def ticks(self, most: int = 6) -> list[float]:
        """Return at most about `most` round values on the scale, with few digits.

        They are powers of ten; if these are fewer than three, their multiples by 1, 2, 5; else
        values that are closer together.
        """
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = [10.0**power for power in range(first, last + 1)]
        for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
            found = [
                step * decade
                for decade in decades
                for step in steps
                if self.low <= step * decade <= self.high
            ]
            if len(found) >= 3:
                return found[:: -(-len(found) // most)]
        step = 10.0 ** math.floor(math.log10(self.high - self.low))
        step *= next(
            times
            for times in (0.1, 0.2, 0.5, 1, 2, 5)
            if (self.high - self.low) / (step * times) <= most
        )
        return [
            step * number
            for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        ]


def density_chart(seconds: Sequence[float], scale: LogScale) -> str:
    """Draw a run's samples as a density over a scale of milliseconds.

    The middle half is darker, and the median is a line.
    """
    ordered = sorted(1e3 * s for s in seconds)
    edges = [
        scale.low * (scale.high / scale.low) ** (number / _BINS) for number in range(_BINS + 1)
    ]
    ranks = [bisect.bisect_left(ordered, edge) for edge in edges]
    counts = [after - before for before, after in itertools.pairwise(ranks)]
    most, step = max(counts) or 1, WIDTH / _BINS
    points = [
        f"{_n(index * step)},{_n(STRIP_HEIGHT - (STRIP_HEIGHT - 4) * count / most)}"
        for index, count in _outline(counts)
    ]
    quarter, half, three = (
        statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    )
    left, right, middle = (WIDTH * scale.at(value) for value in (quarter, three, half))
    label = (
        f"{len(ordered)} samples, from {ordered[0]:.3g} to {ordered[-1]:.3g} ms, half of them "
        f"from {quarter:.3g} to {three:.3g}"
    )
    return _svg(
        STRIP_HEIGHT,
        label,
        f'<polygon class="c-area" points="0,{STRIP_HEIGHT} {" ".join(points)} '
        f'{WIDTH},{STRIP_HEIGHT}"/>'
        f'<rect class="c-box" x="{_n(left)}" width="{_n(max(1, right - left))}" '
        f'y="{STRIP_HEIGHT - 6}" height="6"/>'
        f'<path class="c-mark" d="M{_n(middle)} 0V{STRIP_HEIGHT}"/>',
    )


def sparkline_chart(medians: Sequence[float], steps: Sequence[int] = ()) -> str:
    """Draw a history as a line, with a mark at each index in `steps` (a change of level)."""
    return _series(medians, (), steps, SPARK_HEIGHT)


def history_chart(
    medians: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
    steps: Sequence[int] = (),
) -> str:
    """Draw a history as a line within the band of its intervals, with a mark at each step."""
    return _series(medians, intervals, steps, HISTORY_HEIGHT)


def stacked_bar(parts: Sequence[tuple[str, float]], whole: float) -> str:
    """Draw a bar of parts, each a CSS class and a value; `whole` is the value of the full width."""
    begin, drawn = 0.0, []
    for kind, value in parts:
        width = WIDTH * value / whole if whole > 0 else 0.0
        if width >= 0.2:
            drawn.append(
                f'<rect class="{html.escape(kind)}" x="{_n(begin)}" width="{_n(width)}" '
                f'height="{BAR_HEIGHT}"/>'
            )
        begin += width
    return _svg(BAR_HEIGHT, "", "".join(drawn))


def ratio_with_interval_chart(
    value: float, interval: tuple[float, float] | None, scale: LogScale
) -> str:
    """Draw a ratio and its interval on a scale, with a line at 1."""
    one, place = WIDTH * scale.at(1.0), WIDTH * scale.at(value)
    drawn = f'<path class="c-axis" d="M{_n(one)} 0V{BAR_HEIGHT}"/>'
    if interval:
        low, high = (WIDTH * scale.at(end) for end in interval)
        drawn += (
            f'<rect class="c-band" x="{_n(low)}" width="{_n(max(1, high - low))}" y="5" '
            f'height="{BAR_HEIGHT - 10}"/>'
        )
    return _svg(
        BAR_HEIGHT, "", drawn + f'<path class="c-mark" d="M{_n(place)} 1V{BAR_HEIGHT - 1}"/>'
    )


def roofline_chart(
    points: Sequence[tuple[float, float, float]],
    roof: tuple[float, float],
    across: LogScale,
    up: LogScale,
) -> str:
    """Draw kernels below a roof.

    A point is (operations per byte, GFLOP/s, share of the time), and `roof` is (GFLOP/s, GB/s). The
    size of a dot grows with its share of the time.
    """

    def at(intensity: float, gflops: float) -> str:
        return f"{_n(WIDTH * across.at(intensity))} {_n(HISTORY_HEIGHT * (1 - up.at(gflops)))}"

    gflops, gbytes_s = roof
    ridge = min(max(gflops / gbytes_s, across.low), across.high)
    drawn = (
        '<path class="c-roof" '
        f'd="M{at(across.low, gbytes_s * across.low)}L{at(ridge, gflops)}L{at(across.high, gflops)}"/>'  # noqa: E501
    )
    for intensity, height, share in sorted(points, key=lambda point: -point[2]):
        size = 5 + 25 * math.sqrt(min(1.0, max(0.0, share)))
        drawn += (
            f'<path class="c-dot" style="stroke-width:{_n(size)}px" '
            f'd="M{at(intensity, height)}h0"/>'
        )
    return _svg(
        HISTORY_HEIGHT,
        f"{len(points)} kernels below a roof of {gflops:.3g} GFLOP/s and {gbytes_s:.3g} GB/s",
        drawn,
    )


def history_scale(
    medians: Sequence[float], intervals: Sequence[tuple[float, float] | None] = ()
) -> LogScale:
    """Return the scale of a history's chart."""
    return LogScale.over(
        [*medians, *(end for ends in intervals if ends for end in ends if end > 0)]
    )


def _series(
    medians: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
    steps: Sequence[int],
    height: int,
) -> str:
    scale, last = history_scale(medians, intervals), max(1, len(medians) - 1)

    def at(index: float, value: float) -> str:
        return f"{_n(WIDTH * index / last)},{_n((height - 4) * (1 - scale.at(value)) + 2)}"

    drawn = "".join(
        f'<path class="c-step" d="M{_n(WIDTH * (index - 0.5) / last)} 0V{height}"/>'
        for index in steps
    )
    ends = [(index, *interval) for index, interval in enumerate(intervals) if interval]
    if len(ends) > 1:
        band = [at(index, high) for index, _, high in ends] + [
            at(index, low) for index, low, _ in reversed(ends)
        ]
        drawn += f'<polygon class="c-area" points="{" ".join(band)}"/>'
    line = [at(index, value) for index, value in enumerate(medians)] * (
        2 if len(medians) == 1 else 1
    )
    drawn += f'<polyline class="c-line" points="{" ".join(line)}"/>'
    return _svg(
        height,
        f"{len(medians)} runs, from {medians[0]:.3g} to {medians[-1]:.3g} ms, {len(steps)} steps",
        drawn,
    )


def _outline(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the corners of a histogram without those on a straight line."""
    corners = [(place, count) for index, count in enumerate(counts) for place in (index, index + 1)]
    inner = [
        b
        for a, b, c in zip(corners, corners[1:], corners[2:], strict=False)
        if not a[1] == b[1] == c[1]
    ]
    return [corners[0], *inner, corners[-1]]


def _svg(height: int, label: str, drawn: str) -> str:
    """Return the SVG element. Without a label the chart is hidden from screen readers."""
    role = f'role="img" aria-label="{html.escape(label)}"' if label else 'aria-hidden="true"'
    return f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" {role}>{drawn}</svg>'


def _n(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
