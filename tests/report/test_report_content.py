"""Which runs, figures and scales a report shows. Values that code could confuse differ here."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from report_runs import ROWS, failed, read_profile, timed

from farm import stats
from farm.stats import ChangeVerdict
from farm.types import DeviceResults, Run
from farm.views import html_report
from farm.views.report_content import Report, build_report


def report(runs: list[Run], before: list[Run] | None = None) -> Report:
    return build_report(
        runs, title="", made_at="2026-03-20T01:02:03+00:00", baseline="old", before=before or []
    )


def with_results(run: Run, **changes: object) -> Run:
    """A run that measured other things."""
    assert run.samples
    samples: DeviceResults = dataclasses.replace(run.samples, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(run, samples=samples)


def test_the_newest_run_is_one_that_failed_and_all_runs_are_counted() -> None:
    found = report([timed("a", "net", 1), timed("a", "net", 2), failed("a", "net", 3)])
    assert found.series["a", "net"].newest.id == "a-net-3"
    assert len(found.series["a", "net"].timed) == 2
    assert found.run_count == 3


@pytest.mark.parametrize(
    ("before_ms", "change"), [(5.0, ChangeVerdict.SLOWER), (20.0, ChangeVerdict.FASTER)]
)
def test_slower_and_faster_runs_have_changed(before_ms: float, change: ChangeVerdict) -> None:
    [one] = report([timed("a", "net", 2)], [timed("a", "net", 1, before_ms)]).series.values()
    assert one.pair and one.pair.found.change is change
    assert one.changed


def test_runs_that_take_as_long_as_before_have_not_changed() -> None:
    [one] = report([timed("a", "net", 2)], [timed("a", "net", 1)]).series.values()
    assert one.pair and not one.changed


def test_the_scale_of_comparisons_is_symmetric_around_1_and_ends_at_4() -> None:
    faster = report([timed("a", "net", 2)], [timed("a", "net", 1, 20.0)])
    [pair] = faster.pairs
    assert pair.found.interval
    scale = html_report.ratio_scale(faster)
    assert scale.low == pytest.approx(min(pair.found.interval), rel=1e-6)
    assert scale.low * scale.high == pytest.approx(1)
    much_slower = html_report.ratio_scale(
        report([timed("a", "net", 2)], [timed("a", "net", 1, 1.0)])
    )
    assert (much_slower.low, much_slower.high) == (0.25, 4.0)


def test_the_parts_that_took_longest_are_shown_and_the_others_added_up() -> None:
    parts = {f"part {number}": 0.5 + number for number in range(15)}
    made = html_report.time_spent_by_device(
        report([with_results(timed("a", "net", 1), ledger=parts)])
    )
    assert made.parts == (*(f"part {number}" for number in range(6, 15)), "other")
    assert made.rows[0][1][-1] == pytest.approx(sum(0.5 + number for number in range(6)))


def test_seconds_below_a_hundredth_are_not_told_and_others_are() -> None:
    ledger = {"build": 0.004, "upload": 0.03, "compute": 1.5, "RPC": 12.34}
    page = html_report.render_page(report([with_results(timed("a", "net", 1), ledger=ledger)]))
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page[page.index('id="ledger"') :])
    assert [cell for cell in cells if cell] == ["&lt;0.01", "0.03", "1.50", "12.3", "13.9"]


def test_the_facts_of_a_run_are_those_before_it() -> None:
    run = with_results(
        timed("a", "net", 1),
        facts_before={"governor": "performance"},
        facts_after={"governor": "powersave"},
    )
    assert dict(html_report.run_property_pairs(run))["governor"] == "performance"


@pytest.mark.parametrize(("count", "is_told"), [(stats.JUDGED_COUNT - 1, False), (100, True)])
def test_a_spread_is_told_of_samples_enough(count: int, is_told: bool) -> None:
    run = timed("a", "net", 1)
    assert run.samples
    seconds = run.samples.seconds[:count]
    run = dataclasses.replace(
        with_results(run, seconds=seconds), latency=stats.summarize_latency(seconds)
    )
    page = html_report.render_page(report([run]))
    row = page[page.index('<td class="right strong">') :]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    assert bool(cells[4]) is is_told, cells[:5]


@pytest.mark.parametrize(
    ("devices", "models", "first"),
    [(["a"], ["m", "n"], "model"), (["a", "b"], ["m"], "device"), (["a"], ["m"], "device")],
)
def test_the_matrix_has_its_longer_side_down(
    devices: list[str], models: list[str], first: str
) -> None:
    runs = [timed(device, model, 1) for device in devices for model in models]
    page = html_report.render_page(report(runs))
    head = page[page.index('<table class="matrix">') :].partition("</thead>")[0]
    across = devices if first == "model" else models
    assert re.findall(r"<th[^>]*>([^<]*)</th>", head) == [first, *across]


def test_the_chart_of_a_roofline_has_room_for_its_ridge(tmp_path: Path) -> None:
    scales = read_profile(tmp_path, [ROWS[0]]).scales  # 800 operations a byte; the ridge is at 250
    assert scales
    across = scales[0]
    assert 10 < across.low <= 250 and 800 <= across.high < 10_000


def test_a_kernel_without_arithmetic_per_second_is_not_drawn(tmp_path: Path) -> None:
    idle = ("idle", "", 1e-3, 10, 10, 0.1, 0.0, None)
    assert [point.kernel for point in read_profile(tmp_path, [ROWS[0], idle]).drawn] == ["conv"]
