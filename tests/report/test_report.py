"""What a report says of runs, and the command that writes it. test_charts has its charts, and
test_report_page how the page looks in a browser.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from report_runs import HOSTILE, PROFILE, failed, many, read_profile, timed

from farm import views
from farm.cli import cli
from farm.errors import UsageError
from farm.stats import ChangeVerdict
from farm.store import RunStore
from farm.types import Run, Verdict
from farm.views import html_report, markdown, profile_roofline_data
from farm.views.report_content import Report, build_report


def report(runs: list[Run] | None = None, before: list[Run] | None = None) -> Report:
    return build_report(
        many() if runs is None else runs,
        title="Nightly",
        made_at="2026-03-20T01:02:03+00:00",
        baseline="release",
        before=before or [],
    )


def test_the_newest_run_stands_for_a_model_on_a_device_whatever_the_order_of_the_runs() -> None:
    found = report(many()[::-1])
    assert found.series["pi5", "resnet18"].newest.id == "pi5-resnet18-11"
    assert (found.devices, found.models) == (("host", "pi3", "pi5"), (HOSTILE, "resnet18"))
    assert found.verdicts[Verdict.FAILED] == 2
    assert found.complaints == [
        (f"{device} {HOSTILE}", "the board does not answer") for device in ("pi3", "pi5")
    ]


def test_ways_to_compute_are_series_of_their_own() -> None:
    found = report([timed("pi5", "net", 1), timed("pi5", "net", 2, threads=4)])
    assert [key[1] for key in found.series] == ["net", "net (4 threads)"]


def test_a_step_is_told_with_what_changed_there() -> None:
    [move] = report().series["pi5", "resnet18"].moves
    assert move.after.id == "pi5-resnet18-6"
    assert "farm: 1 → 2" in move.in_words
    assert move.in_words in html_report.render_page(report())


def test_what_became_slower_than_the_baseline_wants_a_look() -> None:
    found = report(before=[timed("pi5", "resnet18", 1), timed("elsewhere", "resnet18", 1)])
    [pair] = found.pairs
    assert pair.found.change is ChangeVerdict.SLOWER
    text = html_report.render_page(found)
    assert (
        text.index("What wants a look") < text.index(pair.found.reason) < text.index('id="matrix"')
    )


def test_the_page_shows_no_latency_of_an_emulated_device() -> None:
    run = timed("pi3", "net", 1, 431.7, "qemu:")
    for text in (
        html_report.render_page(report([run])),
        markdown.markdown_report(report([run])),
        json.dumps(report([run]).as_json()),
    ):
        assert "EMULATED" in text
        assert re.search(r"43[12]", text.rpartition("</style>")[2]) is None


def test_text_of_others_is_text_and_no_markup() -> None:
    page = html_report.render_page(report())
    assert "<script>document" not in page
    assert "<b>refused" not in page
    assert "&lt;script&gt;document.title" in page
    rows = [
        line for line in markdown.markdown_report(report()).splitlines() if line.startswith("|")
    ]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_nothing_in_a_cell_of_markdown_ends_the_cell_or_the_row() -> None:
    evil = "a|b\r\n| c `d` \\| <i>e</i> [f](g)"
    before = timed(evil, evil, 1, versions={"farm": evil})
    after = dataclasses.replace(timed(evil, evil, 2, 20.0), reason=evil, versions={"farm": "2"})
    text = markdown.markdown_report(
        report([after, dataclasses.replace(failed("pi5", evil, 3), reason=evil)], before=[before])
    )
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in table.splitlines()]
        assert len(set(rows)) == 1 and len(rows) >= 3, table
    assert len(re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)) == 2, (
        "one of the devices, one of what is compared"
    )
    assert "<i>" not in text.replace("\\<i", "") and "](g)" not in text.replace("\\](g)", "")


def test_nothing_in_markdown_calls_a_person_or_becomes_a_link() -> None:
    evil = "@octocat see https://example.org or www.example.org &lt;b&gt; $x$"
    text = markdown.markdown_report(
        report([dataclasses.replace(failed("pi5", evil, 3), reason=evil)])
    )
    assert "octocat" in text and "example.org" in text
    assert not re.search(r"@\w|://\w|www\.|(?<!\\)\$|&lt;", text)


def test_the_page_names_no_address_to_load_from() -> None:
    page = html_report.render_page(report())
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)""", page) == []
    assert "//" not in re.sub(r"ssh://x|// [A-Z]", "", page)


def test_a_page_of_no_runs_says_so() -> None:
    assert "There are no runs to show." in html_report.render_page(report([]))
    assert "no runs" in markdown.markdown_report(report([]))


def test_a_run_of_one_sample_and_one_of_zeros_can_be_shown() -> None:
    single = timed("a", "net", 1)
    assert single.samples and single.latency
    single = dataclasses.replace(
        single, samples=dataclasses.replace(single.samples, seconds=(0.01,))
    )
    zeros = dataclasses.replace(single.samples, seconds=(0.0,) * 20)
    coarse = dataclasses.replace(
        single, device="b", samples=zeros, latency=dataclasses.replace(single.latency, p50_ms=0.0)
    )
    assert "net" in html_report.render_page(report([single, coarse]))


def test_the_markdown_has_a_table_the_errors_and_the_comparison() -> None:
    text = markdown.markdown_report(report(before=[timed("pi5", "resnet18", 1)]))
    assert "| device |" in text
    assert "- ✗ **pi5 " in text
    assert "🔺 slower" in text
    [row] = [line for line in text.splitlines() if "🔺" in line]
    assert [float(cell.split()[0]) for cell in row.split("|")[3:5]] == pytest.approx(
        [10.0, 12.0], rel=0.05
    )
    assert "1 step in the history" in text


def test_a_cell_of_the_markdown_is_that_of_its_device_and_only_what_is_bad_is_bold() -> None:
    runs = [
        timed("pi5", "net", 1),
        timed("pi3", "net", 1, url="qemu:", verdict=Verdict.EMULATED),
        failed("pi4", "net", 1),
    ]
    lines = markdown.markdown_report(report(runs)).splitlines()
    cells = {
        device: line.split("|")[2].strip()
        for line in lines
        for device in ("pi3", "pi4", "pi5")
        if line.startswith(f"| {device} |")
    }
    assert cells["pi3"] == "EMULATED"
    assert cells["pi4"] == "**FAILED**"
    assert cells["pi5"].endswith(" STABLE") and cells["pi5"][0].isdigit()


def test_one_of_a_kind_is_counted_as_one() -> None:
    assert "1 model on 1 device: 1 STABLE." in markdown.markdown_report(
        report([timed("pi5", "net", 1)])
    )


def test_the_ledger_adds_up_whatever_the_number_of_parts() -> None:
    run = timed("a", "net", 1)
    assert run.samples
    parts = {f"part {number}": 0.5 + number for number in range(15)}
    made = html_report.time_spent_by_device(
        report([dataclasses.replace(run, samples=dataclasses.replace(run.samples, ledger=parts))])
    )
    [(_, values, total)] = made.rows
    assert len(made.parts) == len(values) == 10
    assert math.isclose(sum(values), total)
    assert math.isclose(total, sum(parts.values()))


def test_the_time_spent_is_that_of_the_newest_runs_of_each_device() -> None:
    def spent(device: str, model: str, number: int, **parts: float) -> Run:
        run = timed(device, model, number)
        assert run.samples
        return dataclasses.replace(run, samples=dataclasses.replace(run.samples, ledger=parts))

    made = html_report.time_spent_by_device(
        report(
            [
                spent("a", "net", 1, build=100.0),
                spent("a", "net", 2, build=1.0, run=2.0),
                spent("a", "other", 1, run=4.0),
                spent("b", "net", 1, upload=8.0),
            ]
        )
    )
    assert made.parts == ("build", "run", "upload", "other")
    assert made.rows == (("a", (1.0, 6.0, 0.0, 0), 7.0), ("b", (0.0, 0.0, 8.0, 0), 8.0))
    assert made.longest_s == 8.0


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    store = RunStore(tmp_path / "data" / "runs.sqlite")
    store.add(many())
    return store


def said(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["report", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.usefixtures("kept")
def test_the_command_writes_the_page_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    said("-o", "out.html")
    assert (tmp_path / "out.html").read_text("utf-8").endswith("</html>\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out.html"]


@pytest.mark.usefixtures("kept")
def test_the_command_keeps_to_the_models_and_devices_named() -> None:
    body = json.loads(said("resnet18", "--device", "host", "--device", "pi5", "--json"))
    assert [(run["device"], run["model"]) for run in body["newest"]] == [
        ("host", "resnet18"),
        ("pi5", "resnet18"),
    ]
    assert (body["schema"], len(body["steps"])) == ("farm/report/1", 1)


def test_markdown_goes_to_stdout_with_a_comparison(kept: RunStore) -> None:
    kept.save_baseline("release", [timed("pi5", "resnet18", 1)])
    assert "Compared with release" in said("--markdown", "--baseline", "release")


@pytest.mark.usefixtures("kept")
def test_a_page_that_cannot_be_written_is_an_error_that_says_why() -> None:
    with pytest.raises(UsageError, match=r"nowhere/out\.html cannot be written"):
        CliRunner().invoke(cli, ["report", "-o", "nowhere/out.html"], catch_exceptions=False)


def test_of_older_runs_the_record_gives_no_samples_and_of_the_newest_all(kept: RunStore) -> None:
    runs = kept.newest(2, ["resnet18"], ["pi5"])
    assert [(run.id, len(run.samples.seconds) if run.samples else 0) for run in runs] == [
        ("pi5-resnet18-11", 100),
        ("pi5-resnet18-10", 0),
    ]
    kept.add([timed("pi5", "resnet18", 12, threads=2), failed("pi5", "resnet18", 13)])
    runs = kept.newest(4, ["resnet18"], ["pi5"])
    assert [len(run.samples.seconds) if run.samples else None for run in runs] == [None, 100, 0, 0]


def test_the_report_is_a_view_like_the_tables() -> None:
    assert views.json_document("report", report().as_json())["schema"] == "farm/report/1"


def test_a_profile_becomes_a_roofline_with_the_slowest_kernel_first(tmp_path: Path) -> None:
    found = read_profile(tmp_path)
    assert [point.kernel for point in found.points] == ["conv", "relu", "reshape"]
    assert [point.kernel for point in found.drawn] == ["conv", "relu"]
    assert [(point.milliseconds, point.intensity) for point in found.drawn] == [
        (2.0, 800.0),
        (0.5, 0.125),
    ]
    assert (found.latency_ms, found.gflops, found.gbytes_s) == (2.5, 10_000.0, 40.0)
    page = html_report.render_page(build_report([], title="", made_at="", rooflines=[found]))
    assert "2 kernels below a roof of 1e+04 GFLOP/s and 40 GB/s" in page
    assert "&lt;b&gt;conv1" in page


def test_a_profile_without_a_roof_is_a_table_and_an_emulated_one_shows_no_time(
    tmp_path: Path,
) -> None:
    assert "<td" in (
        page := html_report.render_page(
            build_report([], title="", made_at="", rooflines=[read_profile(tmp_path, roof=None)])
        )
    )
    assert "kernels below a roof" not in page
    emulated = html_report.render_page(
        build_report([], title="", made_at="", rooflines=[read_profile(tmp_path, emulated=True)])
    )
    assert "its times are no benchmark" in emulated
    assert "conv1" not in emulated


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "farm/run/1"}', json.dumps({**PROFILE, "steps": [{}]})]
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(UsageError, match="is no profile"):
        profile_roofline_data.read_profile_json(tmp_path / "profile.json")
