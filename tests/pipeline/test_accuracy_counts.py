"""What is counted of the answers to labelled samples, and which answers of before count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from farm.errors import BuildError
from farm.pipeline.accuracy import (
    AccuracyParticipant,
    AccuracyProgressState,
    _accuracy,
    _device_participant,
    _hear,
    _reference_participant,
    _Work,
    accuracy_to_json,
)
from farm.processes.workers import Message, MessageKind
from farm.stats import wilson_interval
from farm.store import PredictionStore, Store
from farm.types import (
    BuildWithAgent,
    Device,
    Model,
    PredictionsReported,
    PreprocessSettings,
    Profile,
    Progress,
    Stage,
)

WANTED = {name: (index, index % 3) for index, name in enumerate("abcdefgh")}  # classes 0 1 2 0 ...
BOARD = Device("pi5", Profile("rasp4", {}, ""), "ssh://pi5")


def participant(best: dict[str, tuple[int, ...]], kept: int = 0) -> AccuracyParticipant:
    return AccuracyParticipant("pi5", "", lambda _: None, best, kept)


def test_answers_are_right_first_or_among_the_best_and_as_the_references_by_their_first() -> None:
    found = _accuracy(
        participant(
            {
                "a": (0, 1),  # right, as the reference
                "b": (2, 1),  # among the best
                "c": (2, 0),  # right, and the reference has another second
                "d": (1, 2),  # wrong, as the reference
                "e": (),  # NaN
                "f": (2, 1),  # right; the reference has not answered
            },
            kept=2,
        ),
        participant({"a": (0, 1), "b": (1, 2), "c": (2, 1), "d": (1, 2), "e": (1,)}),
        WANTED,
    )
    assert (found.total, found.answered, found.kept, found.nan) == (8, 6, 2, 1)
    assert (found.top1, found.top5, found.same, found.compared) == (3, 4, 3, 5)
    shares = accuracy_to_json(found)["shares"]
    assert shares["top1"] == {"share": 3 / 6, "interval": wilson_interval(3, 6)}
    assert shares["top5"] == {"share": 4 / 6, "interval": wilson_interval(4, 6)}
    assert accuracy_to_json(replace(found, answered=0))["shares"] == {"top1": None, "top5": None}


def test_the_time_left_is_by_what_was_answered_since_this_run_began() -> None:
    one = participant(dict.fromkeys("abcde", (0,)), kept=3)
    progress = AccuracyProgressState(WANTED, [one])
    assert progress.remaining_s(one, 100.0) is None
    one.since = 90.0
    assert progress.remaining_s(one, 100.0) == pytest.approx(3 * 10.0 / 2)
    one.kept = 5
    assert progress.remaining_s(one, 100.0) is None


def test_what_a_worker_reports_is_kept_and_its_first_answer_begins_the_time(
    tmp_path: Path,
) -> None:
    store, one = PredictionStore(tmp_path / "answers.sqlite"), participant({})
    one.subject = "pi5 and its build"
    progress = AccuracyProgressState(WANTED, [one])

    def hear(value: object, kind: MessageKind = MessageKind.NOTE) -> None:
        _hear(one, Message("device-pi5", kind, value), progress, store)

    hear(Progress(Stage.CONNECTING, "waiting"))
    assert (one.since, one.note) == (None, "connecting waiting")
    hear(Progress(Stage.ACCURACY))
    began = one.since
    assert began is not None and one.note == "accuracy"
    hear(PredictionsReported({"a": (0, 1), "another": (2,)}, {"grey to colour": 2}))
    hear(PredictionsReported({"b": ()}, {"grey to colour": 1}))
    hear(Progress(Stage.ACCURACY, "2 of 8"))
    assert one.best == store.answers(one.subject) == {"a": (0, 1), "b": ()}
    assert (one.since, one.converted, one.new) == (began, {"grey to colour": 3}, 2)
    hear(BuildError("it broke"), MessageKind.FAILED)
    assert one.failure is not None and one.failure.what == "it broke"


def test_answers_of_before_are_forgotten_where_fresh_ones_are_wanted(tmp_path: Path) -> None:
    store, nothing = PredictionStore(tmp_path / "answers.sqlite"), cast(Any, None)
    store.keep("ours", {"a": (1,)})
    store.keep("other", {"a": (2,)})

    def answers(fresh: bool) -> dict[str, tuple[int, ...]]:
        work = _Work(nothing, nothing, tmp_path, nothing, store, nothing, nothing, fresh)
        return work.participant("pi5", "ours", lambda _: None).best

    assert answers(False) == {"a": (1,)}
    assert answers(True) == {} and store.answers("ours") == {}
    assert store.answers("other") == {"a": (2,)}


def test_answers_of_before_count_only_for_the_same_board_build_data_and_preparation(
    tmp_path: Path,
) -> None:
    def subjects(
        device: Device = BOARD, artifact: str = "a" * 64, imported: str = "m" * 64, **more: Any
    ) -> tuple[str, str]:
        model = Model("net", "net.onnx", preprocess=more.get("preprocess", PreprocessSettings()))
        prepared: Any = _Digest(imported)
        nothing: Any = None
        store = PredictionStore(tmp_path / "answers.sqlite")
        path = more.get("path", tmp_path / "data.npz")
        work = _Work(model, prepared, path, nothing, store, nothing, Store(tmp_path), False)
        made = BuildWithAgent(model, prepared, _Digest(artifact), None)  # type: ignore[arg-type]
        by_device = _device_participant(work, device, made, 60.0)
        return by_device.subject, _reference_participant(work).subject

    board, reference = subjects()
    assert subjects() == (board, reference) and board != reference
    for change in ({"path": tmp_path / "other.npz"}, {"preprocess": PreprocessSettings((0.5,))}):
        other = subjects(**change)
        assert other[0] != board and other[1] != reference
    for change in (
        {"device": replace(BOARD, name="pi4")},
        {"device": replace(BOARD, url="ssh://pi4")},
        {"artifact": "b" * 64},
    ):
        assert subjects(**change)[0] != board and subjects(**change)[1] == reference, change
    assert subjects(imported="n" * 64)[1] != reference


class _Digest:
    """A model or a build of which only this is asked."""

    engine = "onnxruntime"

    def __init__(self, digest: str) -> None:
        self.digest = digest
