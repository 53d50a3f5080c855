from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_drawing import DIED, a_run, after, drawn, jobs
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from farm import dashboard
from farm.dashboard import JobBoard
from farm.types import Event, Failure, Model, Stage, Verdict

NO_QEMU = Failure(
    "DeviceError", "pi3 is unavailable", "qemu-arm is not installed", "apt-get install qemu-user", 5
)


def line_of(board: JobBoard, device: str = "board0", model: str = "model0", width: int = 80) -> str:
    return next(line for line in drawn(board, width)[3:] if device in line and model in line)


def test_a_job_is_timed_from_its_first_stage_to_its_last() -> None:
    board = after(
        Event("board0", "model0", Stage.WAITING), Event("board0", "model0", Stage.COMPILING)
    )
    assert (line_of(board).split()[-2:], line_of(board, "board1").split()[-1]) == (
        ["compiling", "1:38"],
        "waiting",
    )
    board = board.apply(Event("board0", "model0", Stage.DONE, run=a_run()), 7.0)
    assert "5.0s" in line_of(board)


def test_applying_an_event_leaves_the_board_before_it_as_it_was() -> None:
    before = after()
    before.apply(Event("board0", "model0", Stage.COMPILING), 1.0)
    assert "waiting" in line_of(before)


def test_a_running_job_shows_its_stage_its_part_done_and_its_note() -> None:
    line = line_of(after(Event("board0", "model0", Stage.MEASURING, "31 of 50 samples", 0.62)))
    assert re.search(r"measuring +1:39 +━+─+ +62 %  31 of 50 samples$", line)


@pytest.mark.parametrize(
    ("fraction", "shown"), [(-1.0, "0 %"), (0.0, "0 %"), (1.0, "100 %"), (7.0, "100 %")]
)
def test_a_part_done_beyond_its_bounds_is_shown_at_the_bound(fraction: float, shown: str) -> None:
    assert f" {shown}" in line_of(after(Event("board0", "model0", Stage.MEASURING, "", fraction)))


def test_a_finished_job_shows_verdict_latency_and_accuracy() -> None:
    board = after(Event("board0", "model0", Stage.DONE, run=a_run()))
    assert re.search(
        r"^✓ board0 +model0 +STABLE +0.0s +43.7 ms ±4 % +top-1 97.8 %$", line_of(board)
    )
    assert line_of(board, width=90).endswith("top-1 97.8 % (ref 97.6 %)")
    assert line_of(board, width=110).endswith("top-1 97.8 % (ref 97.6 %), max err 3.1e-7")
    assert line_of(board, width=160).endswith("because")


def test_a_long_name_of_a_model_is_cut_only_where_there_is_no_room_for_it() -> None:
    name = "a-detector-with-many-words-in-its-name"
    plan = [dataclasses.replace(job, model=Model(name, "")) for job in jobs(1, 1)]
    board = after(Event("board0", name, Stage.DONE, run=a_run()), plan=plan)
    wide, narrow = (
        line_of(board, model="a-detector", width=160),
        line_of(board, model="a-detector", width=80),
    )
    assert name in wide and "top-1 97.8 % (ref 97.6 %)" in wide
    assert name[:21] + "…" in narrow and "43.7 ms" in narrow


@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_latency_of_an_emulated_device_is_ever_shown(verdict: Verdict, width: int) -> None:
    text = "\n".join(
        drawn(after(Event("board0", "model0", Stage.DONE, run=a_run(verdict, url="qemu:"))), width)
    )
    assert verdict.value in text
    assert "43.7" not in text


def test_what_failed_is_shown_in_its_row_and_below_until_the_end() -> None:
    board = after(
        Event("board0", "model0", Stage.FAILED, run=a_run(Verdict.FAILED, failure=DIED)),
        Event(
            "board1",
            "model0",
            Stage.DONE,
            run=a_run(Verdict.WRONG, reason="the answer is off by up to 0.25"),
        ),
    )
    text = drawn(board)
    assert text[0].startswith("farm  4 jobs: 2 failed, 2 waiting")
    assert "FAILED" in line_of(board)
    assert text[-2:] == [
        "✗ board0 model0  the agent died",
        "✗ board1 model0  the answer is off by up to 0.25",
    ]


def test_models_that_failed_alike_on_a_device_share_a_line_and_unavailable_says_what_to_install() -> (  # noqa: E501
    None
):
    runs = a_run(Verdict.UNAVAILABLE, failure=NO_QEMU)
    board = after(
        *(Event("board0", f"model{number}", Stage.FAILED, run=runs) for number in range(2))
    )
    text = drawn(board, 100)
    assert text[0].startswith("farm  4 jobs: 2 unavailable, 2 waiting")
    assert (
        text[-1] == "✗ board0 model0, model1  qemu-arm is not installed; apt-get install qemu-user"
    )


def test_the_bar_on_top_divides_the_whole_width_by_state() -> None:
    board = after(Event("board0", "model0", Stage.DONE, run=a_run()))
    assert drawn(board, 80)[1] == "━" * 20 + "─" * 60


def test_where_rows_do_not_fit_what_runs_and_what_failed_comes_first() -> None:
    plan = jobs(10, 1)
    done = [Event(f"board{number}", "model0", Stage.DONE, run=a_run()) for number in range(8)]
    board = after(
        *done,
        Event("board9", "model0", Stage.FAILED, run=a_run(Verdict.FAILED, failure=DIED)),
        Event("board8", "model0", Stage.MEASURING),
        plan=plan,
    )
    text = drawn(board, 80, 9)
    assert len(text) == 9
    assert [line.split()[1] for line in text[3:6]] == ["board7", "board8", "board9"]
    assert text[6] == "… and 7 jobs: 7 done"
    assert text[8].startswith("✗ board9 model0")


def test_a_job_outside_of_the_plan_gets_a_row() -> None:
    assert "compiling" in line_of(
        after(Event("guest", "model7", Stage.COMPILING)), "guest", "model7"
    )


NAMES = st.sampled_from(["a", "pi3", "[bold]x[/bold]", "板" * 12, "evil\x1b[2J\r\nname", "n" * 40])
NOTES = st.sampled_from(
    ["", "3 of 9", "[/]", "\x1b]0;title\x07", "致命的な" * 40, "tab\tnew\nline", "\u202ertl"]
) | st.text(max_size=30)
EVENTS = st.builds(
    lambda device, model, stage, note, fraction, verdict, url: Event(
        device,
        model,
        stage,
        note,
        fraction,
        {
            Stage.DONE: a_run(verdict, url, note),
            Stage.FAILED: a_run(Verdict.FAILED, url, note, Failure("", note, "", "", 1)),
        }.get(stage),
    ),
    NAMES,
    NAMES,
    st.sampled_from(Stage),
    NOTES,
    st.none() | st.floats(0, 1),
    st.sampled_from(Verdict),
    st.sampled_from(["local:", "qemu:"]),
)


@given(st.lists(EVENTS, max_size=12), st.integers(20, 220), st.integers(7, 50))
def test_nothing_ever_leaves_its_line_or_the_screen(
    events: list[Event], width: int, height: int
) -> None:
    board = after(*events)
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor"
    )
    console.print(dashboard.render(board, width, height, 100.0))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert not re.search(r"\x1b(?!\[[0-9;]*m)", out)  # only colours
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).split("\n")[:-1]
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width


def test_markup_in_names_and_errors_is_shown_as_it_is() -> None:
    board = after(Event("[red]pi[/red]", "[/x]", Stage.FAILED, "[link=http://x]no[/link]"))
    assert "✗ [red]pi[/red] [/x]  [link=http://x]no[/link]" in drawn(board)


@contextlib.contextmanager
def terminal() -> Iterator[tuple[Console, list[str]]]:
    """A console on a real terminal of 80 x 24, and what was written to it, known after the
    block.
    """
    ours, theirs = os.openpty()
    chunks: list[bytes] = []
    out: list[str] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(ours, 4096):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as file:
            yield Console(file=file, width=80, height=24), out
    finally:
        reader.join(10)
        os.close(ours)
        out.append(b"".join(chunks).decode())


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing from outside says how to draw."""
    for name in (
        "NO_COLOR",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
        "COLUMNS",
        "LINES",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


def test_on_a_terminal_the_board_is_drawn_in_place_at_most_eight_times_a_second() -> None:
    now = [0.0]
    with (
        terminal() as (console, out),
        dashboard.show_jobs(console, jobs(), clock=lambda: now[0]) as show,
    ):
        show(Event("board0", "model0", Stage.MEASURING))  # follows the first drawing too closely
        for number in range(64):
            now[0] += 1 / 32
            show(Event("board0", "model0", Stage.MEASURING, f"{number} of 64", number / 64))
        now[0] += 60
        show.tick()
    written = out[0]
    assert (
        written.count("4 jobs") == 1 + 16 + 1 + 1
    )  # at first, twice 8, after a minute, and when rich ends its display
    assert "1:02" in written
    assert "\x1b[1A" in written  # the cursor goes up, over what was there
    assert "\x1b[36m" in written
    assert written.rindex("\x1b[2K") > written.rindex("4 jobs")  # it is gone at the end
    assert "\x1b[?25h" in written[written.rindex("4 jobs") :]  # the cursor is back


def test_without_colour_the_words_remain(plain_environment: pytest.MonkeyPatch) -> None:
    plain_environment.setenv("NO_COLOR", "1")
    now = [0.0]
    with (
        terminal() as (console, out),
        dashboard.show_jobs(console, jobs(), clock=lambda: now[0]) as show,
    ):
        now[0] = 1.0
        show(Event("board0", "model0", Stage.DONE, run=a_run(Verdict.NOISY)))
    assert "NOISY" in out[0]
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out[0])


def test_on_a_dumb_terminal_there_are_lines(plain_environment: pytest.MonkeyPatch) -> None:
    plain_environment.setenv("TERM", "dumb")
    with (
        terminal() as (console, out),
        dashboard.show_jobs(console, jobs(), clock=lambda: 0.0) as show,
    ):
        show(Event("board0", "model0", Stage.COMPILING))
    assert out[0] == "   0.0s  board0 model0: compiling\r\n"


def test_off_a_terminal_a_function_that_prints_a_line_is_enough() -> None:
    printed: list[str] = []
    with dashboard.show_jobs(printed.append, jobs(), clock=lambda: 0.0) as show:
        show(Event("board0", "model0", Stage.COMPILING, "one\nline"))
    assert printed == ["   0.0s  board0 model0: compiling, one\\nline"]


def test_off_a_terminal_what_takes_long_is_said_again_half_a_minute_later(
    tmp_path: Path, plain_environment: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    with (
        (tmp_path / "log").open("w") as file,
        dashboard.show_jobs(Console(file=file), jobs(), clock=lambda: now[0]) as show,
    ):
        for model in ("model0", "model1"):
            show(Event("board0", model, Stage.AGENT, "compiling (0 s)"))
        show(Event("board0", "model0", Stage.AGENT, "compiling (29 s)"))
        for moment in (29.0, 30.0, 31.0, 59.0):
            now[0] = moment
            show.tick()
    *_, last = (tmp_path / "log").read_text().splitlines()
    assert (
        len((tmp_path / "log").read_text().splitlines()) == 3
        and last == "    30s  board0 model0: agent, compiling (29 s) (and 1 more)"
    )


def test_off_a_terminal_there_is_a_line_for_each_stage_and_none_for_progress(
    tmp_path: Path, plain_environment: pytest.MonkeyPatch
) -> None:
    plain_environment.setenv(
        "FORCE_COLOR", "1"
    )  # colours are wanted, a moving display in a file is not
    now = [0.0]
    with (tmp_path / "log").open("w") as file:
        console = Console(file=file, width=20, color_system=None)
        with dashboard.show_jobs(console, jobs(), clock=lambda: now[0]) as show:
            show(Event("board0", "model0", Stage.WAITING))
            for number in range(10):
                now[0] += 1.0
                show(
                    Event(
                        "board0", "model0", Stage.MEASURING, f"{number} of 10\nsamples", number / 10
                    )
                )
                show.tick()
            show(Event("board0", "model0", Stage.DONE, run=a_run()))
            show(Event("board0", "model1", Stage.DONE, run=a_run(Verdict.EMULATED, url="qemu:")))
            now[0] = 83.0
            show(Event("board1", "model0", Stage.FAILED, run=a_run(Verdict.FAILED, failure=DIED)))
            show(Event("board1", "model1", Stage.FAILED, "[gone]"))
    assert (tmp_path / "log").read_text().splitlines() == [
        r"   1.0s  board0 model0: measuring, 0 of 10\nsamples",
        "    10s  board0 model0: STABLE, 43.7 ms ±4 %, top-1 97.8 % (ref 97.6 %), max err 3.1e-7",
        "    10s  board0 model1: EMULATED, top-1 97.8 % (ref 97.6 %), max err 3.1e-7",
        "   1:23  board1 model0: FAILED, the agent died",
        "   1:23  board1 model1: failed, [gone]",
    ]


def test_quiet_shows_nothing_and_still_knows(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("w") as file,
        dashboard.show_jobs(Console(file=file), jobs(), quiet=True) as show,
    ):
        show(Event("board0", "model0", Stage.COMPILING))
        show.tick()
    assert (tmp_path / "log").read_text() == ""
    assert show.board.rows["board0", "model0"].stage is Stage.COMPILING
    assert math.isfinite(show.board.began)
