"""What the search for better choices tries next, and what it takes for a gain: pure functions of
measurements.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from farm import stats
from farm.dashboard import tuning_progress
from farm.errors import DeviceError
from farm.pipeline.tuning.loop import BoardState, TuningLoop, TuningState
from farm.pipeline.tuning.search import KernelSearch, TuningSearch
from farm.pipeline.tuning.tune import TuningResult
from farm.processes.workers import Message, MessageKind
from farm.types import (
    Candidate,
    CompiledCandidate,
    CompiledCandidateBatch,
    Device,
    Model,
    PairedSamples,
    Profile,
    ProposalRequest,
    Task,
    TuningRecord,
)


def candidate(pixels: int, predicted: float = 1.0) -> Candidate:
    return Candidate(
        {"method": "direct", "tile": [pixels, 1, 16], "order": "pixels"},
        f"direct {pixels}",
        predicted,
    )


def search(**counts: int) -> TuningSearch:
    """Kernels by name with so many candidates, of which the first is the default."""
    tasks = [Task(name, 1, tuple(candidate(number, number) for number in range(1, count + 1)), candidate(1), candidate(1))  # noqa: E501
             for name, count in counts.items()]  # fmt: skip
    return TuningSearch([KernelSearch(task) for task in tasks])


def batch(wanted: tuple[tuple[str, Candidate], ...]) -> CompiledCandidateBatch:
    variants = tuple(
        CompiledCandidate(key, one, f"variant_{index}", ())
        for index, (key, one) in enumerate(wanted)
    )
    return CompiledCandidateBatch(Path("library.so"), Path("arrays.npz"), variants)


def measure(
    work: TuningSearch, seconds: dict[tuple[str, str], float], rounds: int = 10
) -> list[str]:
    """One batch measured without any noise; the names of its kernels."""
    wanted = work.next()
    one = {
        index: seconds.get((key, choice.words), 1.0) for index, (key, choice) in enumerate(wanted)
    }
    work.take(batch(wanted), [one] * rounds, {})
    return list(dict.fromkeys(key for key, _ in wanted))


def test_first_all_defaults_are_measured_then_the_hardest_kernel_and_what_promises_most():
    work = search(small=3, large=20)
    assert measure(work, {("large", "direct 1"): 9.0}) == ["small", "large"]
    wanted = work.next()
    assert [key for key, _ in wanted] == ["large"] * 8
    assert [choice.words for _, choice in wanted] == [f"direct {number}" for number in range(1, 9)]


def of_parts(order: str, *tile: int, predicted: float = 1.0) -> Candidate:
    choice = {"method": "direct", "tile": list(tile), "order": order}
    return Candidate(choice, f"{order} {tile}", predicted)


def test_of_choices_that_promise_alike_that_which_is_like_the_best_is_tried_first():
    best = of_parts("pixels", 1, 1, 16)
    other, alike = of_parts("channels", 2, 2, 8), of_parts("pixels", 1, 1, 8)
    faster = of_parts("channels", 4, 4, 8, predicted=0.7)
    kernel = KernelSearch(Task("one", 1, (other, alike, faster), best, best))
    assert kernel.left == [faster, alike, other]


def of_calls(**calls: int) -> TuningSearch:
    """Kernels by name, which a model calls so often."""
    several = tuple(candidate(number, number) for number in range(1, 60))
    tasks = [Task(name, count, several, several[0], several[0]) for name, count in calls.items()]
    return TuningSearch([KernelSearch(task) for task in tasks])


def test_the_time_of_a_kernel_is_that_of_all_its_calls():
    work = of_calls(slow=1, often=50)
    measure(work, {("slow", "direct 1"): 10.0})
    assert [work.share(kernel) for kernel in work.kernels] == [10 / 60, 50 / 60]
    assert measure(work, {}) == ["often"]


def test_a_kernel_without_a_gain_lets_others_have_their_turn():
    work = of_calls(large=10, small=6)
    assert [measure(work, {})[0] for _ in range(5)] == ["large", "large", "small", "large", "small"]


def test_what_is_used_now_is_measured_beside_the_default():
    default, now = candidate(1), candidate(5)
    work = TuningSearch([KernelSearch(Task("one", 1, (default, now), default, now))])
    assert [choice.words for _, choice in work.next()] == ["direct 1", "direct 5"]
    work.kernels[0].busy = False
    measure(work, {("one", "direct 5"): 0.5})
    assert (work.kernels[0].best.words, work.kernels[0].speedup) == ("direct 5", 2.0)


def test_the_first_look_is_no_round():
    work = search(one=3)
    wanted = batch(work.next())
    assert work.take(wanted, [{0: 9.0}, {0: 1.0}, {0: 2.0}], {}) == []
    (kernel,) = work.take(wanted, [{0: 9.0}, {0: 1.0}, {0: 2.0}, {0: 3.0}], {})
    assert (kernel.default_s, kernel.runs) == (2.0, 3)


def test_without_a_default_to_compare_with_a_kernel_is_left():
    wrong, deadly = search(one=4), search(one=4)
    for work in (wrong, deadly):
        measure(work, {})
    wrong.take(batch(wrong.next()), [{1: 1.0}] * 9, {0: "its answer is off by 1"})
    wanted = batch(deadly.next())
    assert [deadly.strike(wanted, 0, "it died") for _ in range(2)] == ["", "direct 1 of one"]
    deadly.take(wanted, [], {})
    assert wrong.next() == deadly.next() == ()


def test_what_cannot_be_built_is_skipped_but_not_the_best_beside_it():
    work = search(one=20)
    measure(work, {})
    work.give_up(work.next(), "it does not link")
    assert set(work.kernels[0].skipped) == {f"direct {number}" for number in range(2, 9)}
    assert [choice.words for _, choice in work.next()][:2] == ["direct 1", "direct 9"]
    alone = search(one=20)
    alone.give_up(alone.next(), "it does not link")
    assert alone.kernels[0].skipped == {"direct 1": "it does not link"} and alone.next() == ()


def test_a_gain_is_taken_and_the_search_goes_on_from_there():
    work = search(one=20)
    measure(work, {})
    measure(work, {("one", "direct 5"): 0.5})
    (kernel,) = work.kernels
    assert (kernel.best.words, kernel.speedup, kernel.fruitless) == ("direct 5", 2.0, 0)
    assert work.next()[0][1].words == "direct 5"


GENERAL = Candidate({"method": "general"}, "general", 0.0)


def steps(number: int) -> Candidate:
    return Candidate({"method": f"steps {number}", "trace": [[], []]}, f"steps {number}", 0.0)


def search_open(*names: str) -> TuningSearch:
    return TuningSearch(
        [KernelSearch(Task(name, 1, (GENERAL,), GENERAL, GENERAL, open=True)) for name in names]
    )


def measure_open(work: TuningSearch, seconds: dict[str, float]) -> ProposalRequest | None:
    """One batch in which what is proposed is as named in `seconds`, by choice; what was asked
    for.
    """
    wanted = work.next()
    asked = next((one for _, one in wanted if isinstance(one, ProposalRequest)), None)
    key, built = wanted[0][0], [one for _, one in wanted if isinstance(one, Candidate)]
    made = tuple(
        (key, one)
        for one in [
            *built,
            *(steps(number) for number in range(100) if f"steps {number}" in seconds),
        ]
    )
    work.take(
        batch(made),
        [{index: seconds.get(one.words, 1.0) for index, (_, one) in enumerate(made)}] * 10,
        {},
    )
    return asked


def test_an_open_task_is_asked_for_proposals_and_these_are_told_what_was_found():
    work = search_open("one")
    assert measure_open(work, {}) is None
    assert measure_open(work, {"steps 1": 0.5, "steps 2": 2.0}) == ProposalRequest(
        7, (), frozenset({"general"}), 1
    )
    asked = measure_open(work, {"steps 1": 0.5, "steps 3": 0.25})
    assert asked == ProposalRequest(
        7, ((steps(1), 0.5), (steps(2), 2.0)), frozenset({"general", "steps 1", "steps 2"}), 3
    )
    (kernel,) = work.kernels
    assert (kernel.best.words, kernel.speedup, kernel.progress) == ("steps 3", 4.0, "4")
    asked = measure_open(work, {})
    assert asked is not None
    assert asked.tried == ((steps(1), 0.5), (steps(2), 2.0), (steps(3), 0.25)), "of the default"


def test_an_open_task_is_done_after_more_batches_without_a_gain_be_they_empty_or_not_to_be_built():
    work = search_open("one")
    measure_open(work, {})
    for _ in range(7):
        assert measure_open(work, {}) is not None
    work.give_up(work.next(), "it does not link")
    assert work.next() == () and work.kernels[0].skipped == {}


def test_an_open_task_of_less_than_a_hundredth_of_the_time_is_not_searched():
    work = search_open("large", "small")
    wanted = work.next()
    assert [one for _, one in wanted] == [GENERAL, GENERAL]
    work.take(batch(wanted), [{0: 1.0, 1: 0.009}] * 10, {})
    keys = set()
    while asked := work.next():
        keys.add(asked[0][0])
        work.take(batch(asked[:1]), [{0: 1.0}] * 10, {})
    assert keys == {"large"}


def test_less_than_the_noise_is_no_gain_and_a_kernel_without_gains_is_left():
    work = search(one=60)
    measure(work, {})
    for _ in range(3):
        assert measure(work, {("one", f"direct {number}"): 0.99 for number in range(2, 61)}) == [
            "one"
        ]
    assert work.next() == ()
    assert work.kernels[0].best.words == "direct 1"


def test_a_gain_in_too_few_rounds_is_none():
    work = search(one=5)
    measure(work, {})
    measure(work, {("one", "direct 2"): 0.5}, rounds=2)
    assert work.kernels[0].speedup == 1.0 and not work.kernels[0].busy


def test_a_gain_that_the_rounds_do_not_agree_on_is_none():
    work = search(one=2)
    measure(work, {})
    wanted = work.next()
    ratios = [0.8] * 5 + [1.2] * 4  # a median of 0.8, whose interval reaches 1.2
    work.take(batch(wanted), [{0: 1.0, 1: 0.8}, *({0: 1.0, 1: ratio} for ratio in ratios)], {})
    assert work.kernels[0].tried["direct 2"] == 0.8
    assert work.kernels[0].best.words == "direct 1"
    assert work.kernels[0].speedup == 1.0


def test_a_wrong_answer_is_never_tried_again():
    work = search(one=4)
    measure(work, {})
    wanted = work.next()
    work.take(batch(wanted), [{0: 1.0, 2: 1.0, 3: 1.0}] * 9, {1: "its answer is off by 1"})
    assert work.kernels[0].skipped == {"direct 2": "its answer is off by 1"}
    assert work.next() == ()


def test_what_kills_a_device_twice_is_skipped_and_named():
    work = search(one=4)
    measure(work, {})
    wanted = work.next()
    assert work.strike(batch(wanted), 2, "it died") == ""
    assert work.strike(batch(wanted), 2, "it died") == "direct 3 of one"
    work.take(batch(wanted), [], {})
    assert "direct 3" not in [choice.words for _, choice in work.next()]


def test_a_model_that_is_slower_as_a_whole_is_told_from_one_that_is_not(artifact=None):
    slower = TuningResult(artifact, artifact, PairedSamples((1.0,) * 9, (1.1,) * 9, {}))  # type: ignore[arg-type]
    same = TuningResult(artifact, artifact, PairedSamples((1.0, 1.1, 1.0), (1.0, 1.0, 1.1), {}))  # type: ignore[arg-type]
    assert slower.slower and not same.slower
    noisy = TuningResult(artifact, artifact, PairedSamples((1.0,) * 9, (1.1, 0.95, 1.1) * 3, {}))  # type: ignore[arg-type]
    assert noisy.speedup is not None and noisy.speedup[0] < 0.95 and not noisy.slower
    assert not TuningResult(artifact, artifact, None).slower  # type: ignore[arg-type]


def test_the_interval_of_a_median_lies_between_order_statistics():
    values = [float(number) for number in range(1, 22)]
    assert stats.median_interval(values) == (
        6.0,
        16.0,
    )  # ranks 6 and 16 of 21: the tables' for 95 %
    assert stats.median_interval([1.0, 2.0]) == (1.0, 2.0)
    with pytest.raises(ValueError, match="no values"):
        stats.median_interval([])


def shown(width: int, height: int) -> list[str]:
    """The lines of the live table on a screen, of a search of 30 kernels of which the first is
    known.
    """
    name = "convolution 1x112x112x{} 3x3x64x256 s1,1 p1,1,1,1 d1,1 g1"
    work = TuningState(
        Model("net", "net.onnx"),
        (),
        None,
        None,
        search(**{name.format(index): 150 for index in range(30)}),
    )  # type: ignore[arg-type]
    work.search.kernels[0].default_s, work.search.kernels[0].best_s = 2468e-6, 1234e-6
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(
        tuning_progress.render(
            work,
            "12s of 10 min",
            f"{name}: direct 7x2x16 by pixels, 1234.5 us, 2.00x",
            width,
            height,
        )
    )
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_live_table_fits_the_screen_with_its_figures_whole(width: int, height: int):
    lines = shown(width, height)
    assert len(lines) <= height and max(map(len, lines)) <= width
    assert (
        re.search(r"p1,(1,1,1|…) +100\.0 +1234 +2\.00x +0/150", lines[4]) and "s1,1" not in lines[4]
    )
    assert ("direct 1" in lines[4]) == (width > 100)
    assert "more kernels" in lines[-1] if height < 30 else "more" not in lines[-1]


class Records:
    """Where a loop keeps records."""

    def __init__(self) -> None:
        self.kept: list[TuningRecord] = []

    def keep(self, record: TuningRecord) -> None:
        self.kept.append(record)


def looped(work: TuningSearch, boards: int = 1) -> TuningLoop:
    device = Device("pi5", Profile("rasp4", {}, ""), "ssh://pi5")
    state = TuningState(Model("net", "net.onnx"), [device], None, Records(), work)  # type: ignore[arg-type]
    state.boards = [BoardState(device, f"device-pi5-{number}", None) for number in range(boards)]
    return TuningLoop(state, None, None, device.profile, lambda *_: None)  # type: ignore[arg-type]


def test_a_batch_has_the_time_of_its_kernels_and_more_while_that_is_not_known(tmp_path: Path):
    work = search(slow=9, fast=9)
    loop = looped(work)
    (tmp_path / "arrays.npz").write_bytes(bytes(3_000_000))
    wanted = replace(batch(work.next()), arrays=tmp_path / "arrays.npz")
    assert loop._limit_s(wanted) == 20 + 60 * 2.0 + 3.0
    work.take(wanted, [{0: 5.0, 1: 0.25}] * 4, {})
    wanted = replace(batch(work.next()), arrays=tmp_path / "arrays.npz")
    assert {one.workload for one in wanted.variants} == {"slow"}
    assert loop._limit_s(wanted) == 20 + 60 * 8 * 5.0 + 3.0


def test_a_board_is_given_up_after_failures_in_a_row_that_no_candidate_explains():
    work = search(one=60)
    loop = looped(work, boards=2)
    first, second = loop.work.boards
    error = DeviceError("pi5 is offline")

    def fail(board: BoardState, trying: int | None = None) -> None:
        board.batch, board.trying = batch(wanted), trying
        loop._failed(board, error)

    wanted = work.next()
    for _ in range(2):
        fail(first)
    loop._hear(Message(first.slot, MessageKind.DONE, None))
    assert (first.failures, first.batches) == (0, 1), "it works again"
    for trying in (0, 0):
        fail(first, trying)
    assert loop.work.skipped == ["direct 1 of one"] and first.failures == 0
    for _ in range(3):
        assert not first.gone
        fail(first)
    assert first.gone and first.said == "pi5 is offline"
    fail(second)
    fail(second)
    with pytest.raises(DeviceError, match="pi5 is offline"):
        fail(second)


def test_a_kernel_is_recorded_once_something_was_compared_and_is_counted_once():
    work = search(one=60)
    loop = looped(work)
    (board,) = loop.work.boards
    board.facts = {"cpu": "Cortex-A76", "threads": "4"}

    def measured(seconds: float) -> None:
        board.batch = batch(work.next())
        board.rounds = [{index: seconds if index == 1 else 1.0 for index in range(8)}] * 5
        loop._take(board)

    measured(1.0)
    records = loop.work.records.kept  # type: ignore[attr-defined]
    assert loop.work.kept == len(records) == 0, "the default alone was measured"
    measured(0.5)
    measured(0.5)
    assert (loop.work.kept, len(records)) == (1, 2) and board.batch is None
    last = records[-1]
    assert (last.workload, last.seconds, last.default_s, last.runs) == ("one", 0.25, 1.0, 4)
    assert (last.device, last.cpu, last.threads) == ("pi5", "Cortex-A76", 4)
