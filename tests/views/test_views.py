from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table

from farm import views
from farm.types import Agreement, DeviceResults, Failure, Kernel, Latency, Run, Verdict
from farm.views.runs import finished_jobs_table, history_table
from farm.views.tables import Column, columns_that_fit

SAMPLES = DeviceResults(
    (0.0437,) * 700, 0.1, Agreement(3.1e-7, 120.0, True, True), 450, 460, {}, {}, {}, 0
)
LATENCY = Latency(700, 42.1, 43.7, 43.9, 1.748, 47.5, 51.2)
STABLE = Run(
    id="1",
    device="host",
    model="digits",
    profile="x86",
    url="local:",
    started_at="2026-07-01T12:34:56.789+00:00",
    verdict=Verdict.STABLE,
    reason="steady",
    artifact_digest="abcdef0123" * 6,
    samples=SAMPLES,
    latency=LATENCY,
)
EMULATED = dataclasses.replace(
    STABLE, device="pi3", url="qemu:", verdict=Verdict.EMULATED, reason="no benchmark"
)
DIED = Failure("DeviceError", "the agent died\nof \x1b[31msignal 9", "", "", 5)
FAILED = Run(
    "3",
    "rk3399",
    "[b]net[/b]",
    "rk3399",
    "ssh://x",
    "2026-07-01T12:00:00+00:00",
    Verdict.FAILED,
    "died",
    failure=DIED,
)


def shown(table: Table | Group, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def row(text: str, name: str) -> str:
    """The line that begins with a word, its words one space apart."""
    return next(" ".join(line.split()) for line in text.splitlines() if line.split()[:1] == [name])


def test_the_final_table_has_units_in_its_header_and_three_digits_in_its_figures() -> None:
    text = shown(
        finished_jobs_table(
            [dataclasses.replace(STABLE, reference_correct=449, reference_total=460)], 160
        ),
        160,
    )
    header = (
        "device profile model verdict p50 ms IQR % p90 ms p99 ms samples top-1 % ref % max err why"
    )
    assert row(text, "device") == header
    assert (
        row(text, "host") == "host x86 digits STABLE 43.7 4.0 47.5 51.2 700 97.8 97.6 3.1e-7 steady"
    )


def test_at_80_columns_the_verdict_and_the_main_figures_remain_on_one_line() -> None:
    text = shown(finished_jobs_table([STABLE, EMULATED], 80), 80)
    assert row(text, "host") == "host digits STABLE 43.7 4.0 97.8 3.1e-7"


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("table", [finished_jobs_table, history_table])
def test_no_table_shows_a_latency_of_an_emulated_device(table: object, verdict: Verdict) -> None:
    run = dataclasses.replace(EMULATED, verdict=verdict)
    text = shown(table([run], 200), 200)  # type: ignore[operator]
    assert "emulated" in text
    assert verdict.value in text
    for figure in ("43.7", "4.0", "47.5", "51.2"):
        assert figure not in text


def test_what_failed_is_told_below_the_narrow_table_and_within_the_wide_one() -> None:
    narrow = shown(finished_jobs_table([STABLE, FAILED], 80), 80)
    assert row(narrow, "rk3399") == "rk3399 [b]net[/b] FAILED"
    assert r"✗ rk3399 [b]net[/b]: the agent died\nof signal 9" in narrow
    long = dataclasses.replace(
        FAILED, failure=dataclasses.replace(FAILED.failure, what=f"{'a ' * 40}long reason")
    )
    assert f"✗ rk3399 [b]net[/b]: {'a ' * 40}long reason" in shown(
        finished_jobs_table([STABLE, long], 130), 130
    )
    wide = shown(finished_jobs_table([STABLE, FAILED], 160), 160)
    assert row(wide, "rk3399").endswith(r" the agent died\nof signal 9")
    assert "✗" not in wide


@pytest.mark.parametrize("width", [100, 120, 150, 180])
def test_a_long_model_name_is_not_broken_where_other_columns_can_make_room(width: int) -> None:
    name = "a-detector-with-many-words-in-its-name"
    text = shown(
        finished_jobs_table(
            [dataclasses.replace(STABLE, model=name), dataclasses.replace(FAILED, model=name)],
            width,
        ),
        width,
    )
    lines = text.splitlines()
    assert (
        sum(name in line and "STABLE" in line for line in lines)
        == sum(name in line and "FAILED" in line for line in lines)
        == 1
    )
    assert "43.7" in row(text, "host") and r"the agent died\nof signal 9" in text
    assert max(map(cell_len, lines)) <= width


def test_a_model_name_that_is_wider_than_the_terminal_is_broken() -> None:
    text = shown(finished_jobs_table([dataclasses.replace(STABLE, model="n" * 90)], 80), 80)
    assert sum(line.count("n" * 5) > 0 for line in text.splitlines()) > 1
    assert text.count("n") >= 90 and max(map(cell_len, text.splitlines())) <= 80


def test_a_column_that_nothing_fills_is_left_out() -> None:
    text = shown(finished_jobs_table([FAILED], 200), 200)
    assert row(text, "device") == "device profile model verdict why"


def test_history_shows_when_what_and_which_build() -> None:
    text = shown(history_table([STABLE], 120), 120)
    assert (
        row(text, "2026-07-01")
        == "2026-07-01 12:34 host digits STABLE 43.7 4.0 97.8 3.1e-7 abcdef01 1"
    )


@pytest.mark.parametrize("width", range(80, 140, 10))
def test_history_breaks_no_line_and_always_names_the_run_which_farm_compare_wants(
    width: int,
) -> None:
    run = dataclasses.replace(EMULATED, id="0123456789ab", model="digits.float16")
    measured = dataclasses.replace(run, url="local:", verdict=Verdict.THROTTLED)
    lines = shown(history_table([run, measured], width), width).splitlines()
    assert sum(bool(line.strip()) for line in lines) == 2 + 2
    assert sum("012345" in line for line in lines) == 2


def test_empty_tables_have_their_headers() -> None:
    assert row(shown(history_table([], 120), 120), "date").endswith(" digest run")
    assert row(shown(views.devices_table([], 100), 100), "device").endswith(" note")


LEDGER = {
    "builds": {"import": 3.214, "compile": 41.2, "link": 0.8},
    "host": {"upload": 0.001, "run": 123.4},
}


def test_the_ledger_adds_up_each_worker() -> None:
    text = shown(views.ledger_table(LEDGER, 80), 80)
    assert row(text, "seconds") == "seconds import compile link upload run total"
    assert row(text, "builds") == "builds 3.21 41.2 0.80 45.2"
    assert row(text, "host") == "host <0.01 123 123"


def test_a_narrow_ledger_adds_its_smallest_parts_into_one() -> None:
    text = shown(views.ledger_table(LEDGER, 48), 48)
    assert row(text, "seconds") == "seconds compile run other total"
    assert row(text, "builds") == "builds 41.2 4.01 45.2"


@given(
    st.dictionaries(
        st.sampled_from(["host", "pi3", "builds"]),
        st.dictionaries(
            st.sampled_from([f"part{'x' * n}" for n in range(12)]), st.floats(0, 99999)
        ),
    ),
    st.integers(60, 200),
)
def test_a_ledger_never_breaks_a_word(ledger: dict[str, dict[str, float]], width: int) -> None:
    lines = shown(views.ledger_table(ledger, width), width).splitlines()
    assert max(map(cell_len, lines)) <= width
    for worker in ledger:
        assert sum(worker in line for line in lines) == 1
    assert sum(bool(line.strip()) for line in lines) == 2 + len(ledger)


def test_devices_show_how_they_are_and_their_facts_below_the_note() -> None:
    facts = {"cpu": "Cortex-A72", "memory": "3.8 GB"}
    rows = [
        views.DeviceRow("host", "x86", "local:", state="ready"),
        views.DeviceRow(
            "[i]lab[/i]", "rk3399", "ssh://lab", ("arm", "ci"), "unavailable", "no route", facts
        ),
    ]
    text = shown(views.devices_table(rows, 120), 120)
    assert row(text, "host") == "host x86 ready local:"
    assert row(text, "[i]lab[/i]") == "[i]lab[/i] rk3399 unavailable ssh://lab arm, ci no route"
    assert [line.strip() for line in text.splitlines()[-3:-1]] == [
        "cpu: Cortex-A72",
        "memory: 3.8 GB",
    ]


def test_a_document_says_its_schema_first() -> None:
    assert (
        json.dumps(views.json_document("bench", {"runs": []}))
        == '{"schema": "farm/bench/1", "runs": []}'
    )


def test_the_largest_scores_come_first_with_their_labels() -> None:
    scores = np.array([[0.1, 0.7, np.nan, 0.7, 0.2]], np.float32)
    found = views.top_k(scores, ["zero", "one", "two"], k=4)
    assert [(score.index, score.label) for score in found] == [
        (1, "one"),
        (3, "3"),
        (4, "4"),
        (0, "zero"),
    ]
    assert found[0].score == pytest.approx(0.7)
    assert [score.index for score in views.top_k(np.array([0, 255, 7], np.uint8))] == [1, 2, 0]


def test_what_is_no_vector_of_scores_has_no_largest_ones() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        views.top_k(np.zeros((2, 3)))


def test_kernels_are_listed_by_their_share_and_what_fell_back_is_said_plainly() -> None:
    kernels = [
        Kernel("add", "general", operations=10),
        Kernel(
            "conv", "convolution", operations=900, choice="direct 7x32 by pixels", recorded=True
        ),
        Kernel("odd", "general", "convolution: ValueError", operations=90),
    ]
    text = shown(views.kernel_table(kernels, 120), 120)
    first = [line.split()[0] for line in text.splitlines() if line.split()]
    assert [word for word in first if word in ("conv", "odd", "add")] == ["conv", "odd", "add"]
    assert (
        "direct 7x32 by pixels, recorded" in text
        and "90.0" in text
        and "convolution: ValueError" in text
    )
    assert "1 by the general rule" in text and "1.00 %" in text
    assert "1 fell back, for the reason in the note: 9.00 % of the arithmetic" in text


def test_runs_say_how_the_device_was_asked_to_compute_where_it_was() -> None:
    asked = dataclasses.replace(STABLE, threads=2, cores="big", pinned=True)
    text = shown(finished_jobs_table([STABLE, asked], 160), 160)
    assert row(text, "device").startswith("device profile model threads cores verdict")
    assert [" ".join(line.split())[:31] for line in text.splitlines() if "digits" in line] == [
        "host x86 digits STABLE 43.7 4.0",
        "host x86 digits 2 big, pinned S",
    ]
    assert asked.title == "digits (2 threads, cores big, pinned)"


def test_without_rows_the_titles_are_shown_but_not_those_of_rare_columns() -> None:
    columns = [Column("always", str), Column("rarely", lambda _: "", rare=True)]
    assert [shown.column.title for shown in columns_that_fit(columns, [], 80)] == ["always"]
    assert [shown.column.title for shown in columns_that_fit(columns, ["a"], 80)] == ["always"]
    told = [Column("always", str), Column("rarely", str, rare=True)]
    assert [shown.column.title for shown in columns_that_fit(told, ["a"], 80)] == [
        "always",
        "rarely",
    ]


def test_the_rightmost_column_that_may_go_makes_room_for_a_whole_one() -> None:
    columns = [
        Column("first", lambda _: "a" * 10, 10),
        Column("whole", lambda _: "b" * 20, whole=True),
        Column("last", lambda _: "c" * 10, 10),
    ]
    needed = 10 + 3 + 20 + 3 + 10 + 2
    titles = [
        [one.column.title for one in columns_that_fit(columns, ["row"], width)]
        for width in (needed, needed - 1)
    ]
    assert titles == [["first", "whole", "last"], ["first", "whole"]]


def test_prose_takes_several_lines_before_another_column_goes() -> None:
    columns = [
        Column("whole", lambda _: "b" * 20, whole=True),
        Column("why", lambda _: "word " * 20, 10, prose=True),
    ]
    shown = columns_that_fit(columns, ["row"], 20 + 3 + 30 + 2)
    assert [one.column.title for one in shown] == ["whole", "why"]


@pytest.mark.parametrize(("count", "is_judged"), [(9, False), (10, True)])
def test_a_spread_and_an_interval_are_shown_only_of_samples_enough(
    count: int, is_judged: bool
) -> None:
    latency = dataclasses.replace(LATENCY, count=count, p50_interval_ms=(43.5, 43.8))
    text = shown(finished_jobs_table([dataclasses.replace(STABLE, latency=latency)], 200), 200)
    assert ("IQR %" in text, "43.5–43.8" in text) == (is_judged, is_judged)


def test_samples_of_several_inferences_say_how_many_there_are_of_each() -> None:
    run = dataclasses.replace(STABLE, latency=dataclasses.replace(LATENCY, block=8))
    assert "700 × 8" in shown(finished_jobs_table([run], 200), 200)


def test_cores_say_whether_threads_are_pinned() -> None:
    big = dataclasses.replace(STABLE, cores="big")
    own = dataclasses.replace(STABLE, pinned=True)
    lines = shown(finished_jobs_table([big, own], 200), 200).splitlines()
    cores = [" ".join(line.split()[3:6]) for line in lines if "digits" in line]
    assert cores == ["big STABLE 43.7", "its own, pinned"]


def test_a_gpus_kernels_are_launched_one_by_one_or_as_a_graph() -> None:
    samples = dataclasses.replace(SAMPLES, facts_after={"gpu_launches": "graph: 12 kernels"})
    text = shown(finished_jobs_table([dataclasses.replace(STABLE, samples=samples)], 200), 200)
    assert "launches" in text and "graph" in text and "12 kernels" not in text
