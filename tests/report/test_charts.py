"""Where the charts of a report draw what: positions and sizes of their lines, bands and bars."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.views import charts

WIDTH = charts.WIDTH
POSITIVE = st.floats(1e-6, 1e6)


def drawing(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def numbers(svg: str) -> list[float]:
    """All coordinates of a chart."""
    texts = [
        value
        for node in drawing(svg).iter()
        for name, value in node.attrib.items()
        if name in ("points", "d", "x", "width", "y")
    ]
    return [float(number) for text in texts for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def drawn(svg: str, kind: str) -> list[ET.Element]:
    """The elements of a chart that have the CSS class `kind`."""
    return [node for node in drawing(svg).iter() if node.get("class") == kind]


def points(node: ET.Element) -> list[tuple[float, float]]:
    """The corners of a line or an area."""
    return [
        (float(x), float(y)) for x, y in re.findall(r"([-\d.]+),([-\d.]+)", node.get("points", ""))
    ]


def test_a_scale_has_room_at_both_ends_and_makes_tiny_differences_look_small() -> None:
    scale = charts.LogScale.over([20.0, 10.0])
    assert 9 < scale.low < 10 and 20 < scale.high < 22
    assert scale.at(10.0) == pytest.approx(1 - scale.at(20.0))
    narrow = charts.LogScale.over([100.0, 100.1])
    assert narrow.high / narrow.low > 1.1
    assert narrow.at(100.1) - narrow.at(100.0) < 0.02


def test_many_decades_have_few_ticks_and_a_short_range_has_round_ones() -> None:
    assert charts.LogScale(1.0, 1e11).ticks() == [10.0**power for power in (0, 2, 4, 6, 8, 10)]
    assert charts.LogScale(10.05, 10.45).ticks() == pytest.approx([10.1, 10.2, 10.3, 10.4])


def test_a_density_is_highest_where_most_samples_are_and_its_box_is_the_middle_half() -> None:
    scale = charts.LogScale(1.0, 100.0)
    milliseconds = [2.0] * 6 + [10.0, 10.0, 50.0]
    svg = charts.density_chart([1e-3 * value for value in milliseconds], scale)
    (area,), (box,), (mark,) = (drawn(svg, kind) for kind in ("c-area", "c-box", "c-mark"))

    def height_at(value: float) -> float:
        place = WIDTH * scale.at(value)
        return min(y for x, y in points(area) if abs(x - place) <= WIDTH / 40)

    assert height_at(2.0) == 4 < height_at(10.0) < height_at(50.0) < charts.STRIP_HEIGHT
    assert float(box.get("x", "")) == pytest.approx(WIDTH * scale.at(2.0), abs=0.1)
    assert float(box.get("width", "")) == pytest.approx(WIDTH * (scale.at(10) - scale.at(2)), abs=1)
    assert mark.get("d", "").startswith(f"M{WIDTH * scale.at(2.0):.1f} ")
    assert "9 samples, from 2 to 50 ms, half of them from 2 to 10" in svg


def test_the_parts_of_a_bar_follow_one_another_and_tiny_ones_leave_their_room() -> None:
    svg = charts.stacked_bar([("a", 2.0), ("b", 0.001), ("c", 3.0)], 10.0)
    (first,), (last,) = drawn(svg, "a"), drawn(svg, "c")
    assert not drawn(svg, "b")
    assert (first.get("x"), first.get("width")) == ("0", "80")
    assert (last.get("x"), last.get("width")) == ("80", "120")


def test_a_part_of_a_hundredth_is_drawn() -> None:
    assert drawn(charts.stacked_bar([("a", 0.1)], 10.0), "a")


def test_a_ratio_is_marked_within_its_interval_and_beside_the_line_at_one() -> None:
    scale = charts.LogScale(0.25, 4.0)
    svg = charts.ratio_with_interval_chart(2.0, (1.0, 4.0), scale)
    (axis,), (band,), (mark,) = (drawn(svg, kind) for kind in ("c-axis", "c-band", "c-mark"))
    assert axis.get("d", "").startswith(f"M{WIDTH // 2} ")
    assert mark.get("d", "").startswith(f"M{WIDTH * 3 // 4} ")
    assert (band.get("x"), band.get("width")) == (str(WIDTH // 2), str(WIDTH // 2))


def test_a_kernel_that_takes_longer_is_a_larger_dot_and_drawn_first() -> None:
    scales = charts.LogScale(0.1, 1000.0), charts.LogScale(1.0, 10_000.0)
    kernels = [(1.0, 5.0, 0.04), (10.0, 50.0, 0.64)]
    dots = drawn(charts.roofline_chart(kernels, (100.0, 10.0), *scales), "c-dot")
    assert [dot.get("style") for dot in dots] == ["stroke-width:25px", "stroke-width:10px"]
    assert dots[0].get("d", "").startswith(f"M{WIDTH // 2} ")


def test_the_roof_begins_where_the_bandwidth_bounds_the_least_intensity() -> None:
    across, up = charts.LogScale(1.0, 1000.0), charts.LogScale(1.0, 1000.0)
    (roof,) = drawn(charts.roofline_chart([], (1000.0, 10.0), across, up), "c-roof")
    numbers = [float(number) for number in re.findall(r"[-\d.]+", roof.get("d", ""))]
    third, height = WIDTH / 3, charts.HISTORY_HEIGHT
    assert numbers == pytest.approx([0, height * 2 / 3, 2 * third, 0, WIDTH, 0], abs=0.1)


def test_a_history_is_within_its_band_and_a_step_is_before_the_run_that_changed() -> None:
    svg = charts.history_chart([10.0, 10.0, 20.0], [(8.0, 12.0), None, (16.0, 25.0)], [2])
    (line,), (band,), (step,) = (drawn(svg, kind) for kind in ("c-line", "c-area", "c-step"))
    assert step.get("d") == f"M{WIDTH * 3 // 4} 0V{charts.HISTORY_HEIGHT}"
    high_first, high_last, low_last, low_first = points(band)
    first, _, last = points(line)
    assert [x for x, _ in points(band)] == [0, WIDTH, WIDTH, 0]
    assert 0 < high_last[1] < last[1] < low_last[1] < high_first[1] < first[1] < low_first[1]
    assert low_first[1] < charts.HISTORY_HEIGHT - 2


def test_an_outline_has_no_corner_on_a_straight_line() -> None:
    scale = charts.LogScale(1.0, 100.0)
    (area,) = drawn(charts.density_chart([0.01] * 9, scale), "c-area")
    heights = [y for _, y in points(area)][1:-1]  # without the ends of its base
    assert not any(a == b == c for a, b, c in zip(heights, heights[1:], heights[2:], strict=False))
    assert len(heights) == 6


@given(st.lists(POSITIVE, min_size=1, max_size=80))
def test_a_chart_stays_within_its_box(values: list[float]) -> None:
    intervals = [(value * 0.9, value * 1.1) for value in values]
    scale = charts.LogScale.over([1e3 * value for value in values])
    for svg in (
        charts.sparkline_chart(values),
        charts.history_chart(values, intervals, [0]),
        charts.density_chart(values, scale),
    ):
        assert all(-charts.WIDTH <= number <= charts.WIDTH for number in numbers(svg))


def test_a_longer_time_is_drawn_higher_and_a_later_one_further_right() -> None:
    [line] = [
        node.attrib["points"]
        for node in drawing(charts.history_chart([10.0, 20.0, 15.0], [None] * 3)).iter()
        if node.get("class") == "c-line"
    ]
    across, down = zip(*(map(float, point.split(",")) for point in line.split()), strict=True)
    assert across == (0.0, charts.WIDTH / 2, charts.WIDTH)
    assert 0 <= down[1] < down[2] < down[0] <= charts.HISTORY_HEIGHT


def test_a_roof_rises_to_its_ridge_and_is_flat_from_there() -> None:
    across, up = charts.LogScale(0.1, 1000.0), charts.LogScale(1.0, 10_000.0)
    svg = charts.roofline_chart([(10.0, 1000.0, 0.5)], (100.0, 10.0), across, up)
    [roof] = [node.attrib["d"] for node in drawing(svg).iter() if node.get("class") == "c-roof"]
    [dot] = [node.attrib["d"] for node in drawing(svg).iter() if node.get("class") == "c-dot"]
    height = charts.HISTORY_HEIGHT
    assert roof == f"M0 {height}L{charts.WIDTH // 2} {height // 2}L{charts.WIDTH} {height // 2}"
    assert dot == f"M{charts.WIDTH // 2} {height // 4}h0"


@given(POSITIVE, st.floats(1.0001, 1e6))
def test_the_ticks_of_a_scale_are_few_and_on_it(low: float, factor: float) -> None:
    scale = charts.LogScale(low, low * factor)
    ticks = scale.ticks()
    assert 0 < len(ticks) <= 12
    assert all(scale.low * (1 - 1e-9) <= tick <= scale.high * (1 + 1e-9) for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_a_distribution_puts_its_median_where_the_scale_says() -> None:
    scale = charts.LogScale(1.0, 100.0)
    marks = [
        node.attrib["d"]
        for node in drawing(charts.density_chart([0.01] * 9, scale)).iter()
        if node.get("class") == "c-mark"
    ]
    assert marks == [f"M{charts.WIDTH / 2:.0f} 0V{charts.STRIP_HEIGHT}"]


def test_the_bar_of_a_ledger_is_as_long_as_its_share() -> None:
    widths = [
        float(node.attrib["width"])
        for node in drawing(charts.stacked_bar([("part0", 1.0), ("part1", 3.0)], 8.0)).iter()
        if "width" in node.attrib
    ]
    assert widths == [charts.WIDTH / 8, 3 * charts.WIDTH / 8]
