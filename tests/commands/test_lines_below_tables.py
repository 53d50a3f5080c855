"""What commands print below their tables, and with which code they end: counts, seconds,
megabytes, best classes, results of a search.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from report_runs import GONE, timed

from farm.api.results import Answer
from farm.commands.common import Session
from farm.commands.measure import accuracy as accuracy_command
from farm.commands.measure import bench, run, tune
from farm.commands.models import check
from farm.importers.summary import ModelSummary
from farm.pipeline.build_feasibility import BuildPrediction
from farm.pipeline.run_jobs import JobsOutcome, WallTimes
from farm.pipeline.tuning.tune import TuningResult
from farm.types import (
    Artifact,
    Device,
    PairedSamples,
    PreprocessSettings,
    Profile,
    Release,
    Run,
    TensorSpec,
)

SESSION = Session(None, as_json=False, verbosity=0)


def built(name: str, *, cached: bool) -> Artifact:
    return Artifact(
        model=name,
        profile="x86",
        digest="a" * 64,
        library=Path("library.so"),
        library_digest="b" * 64,
        parameters=Path("parameters"),
        parameters_digest="c" * 64,
        inputs=(),
        outputs=(),
        target={},
        versions={},
        nbytes=0,
        kernels=(),
        seconds={},
        cached=cached,
    )


def uploaded(run: Run, nbytes: int) -> Run:
    assert run.samples
    return replace(run, samples=replace(run.samples, uploaded=nbytes))


def test_a_bench_tells_new_builds_and_kept_ones_the_slowest_device_and_what_was_sent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = (uploaded(timed("a", "net", 1), 2_000_000), uploaded(timed("b", "net", 1), 500_000))
    artifacts = (
        built("one", cached=True),
        built("two", cached=False),
        built("three", cached=False),
    )
    outcome = JobsOutcome(runs, artifacts, WallTimes(12.0, 7.5, {"a": 2.0, "b": 4.0}))
    bench._show(SESSION, outcome)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "12.0 s: builds done after 7.5 s (2 new, 1 kept), slowest device b 4.0 s, 2.5 MB uploaded"
    )


def test_the_memory_of_a_model_is_that_of_loaded_parameters_and_results(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outline = ModelSummary(
        source="net.onnx",
        inputs=("x float32 [1, 4]",),
        outputs=("y float32 [1, 4]",),
        parameters=1_000_000,
        parameter_bytes=4_000_000,
        operators={"Conv": 2},
        problems=(),
    )
    check._show(
        BuildPrediction(
            outline,
            operations=2_500_000_000,
            stored_bytes=4_000_000,
            loaded_bytes=16_000_000,
            working_bytes=1_000_000,
        )
    )
    said = capsys.readouterr().out.splitlines()
    assert "parameters  1,000,000 (4.0 MB)" in said
    assert "arithmetic  2.500 GFLOP an inference" in said
    assert "files       4.0 MB of parameters, besides the code" in said
    assert (
        "memory      17.0 MB (estimated): 16.0 MB of parameters, 1.0 MB of intermediate results"
        in said
    )


def answer_of(*outputs: list[Any]) -> Answer:
    specs = tuple(
        TensorSpec(f"output{number}", (1,), "float32") for number, _ in enumerate(outputs)
    )
    return Answer("net", specs, tuple(np.array(one, "float32") for one in outputs), ())


def test_only_one_row_of_scores_has_best_classes() -> None:
    assert [score.index for score in run._best(answer_of([[0.1, 0.7, 0.2]]))] == [1, 2, 0]
    assert [score.index for score in run._best(answer_of([[0.3, 0.7]]))] == [1, 0]
    for no_scores in (
        answer_of([[0.7]]),
        answer_of([0.1, 0.9]),
        answer_of([[0.1, 0.9], [0.9, 0.1]]),
        answer_of([[[0.1, 0.9]]]),
        answer_of([[0.1, 0.9]], [[0.1, 0.9]]),
    ):
        assert run._best(no_scores) == []


def test_a_deployed_release_that_ran_is_told_with_its_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    release = Release(
        name="net",
        number=3,
        current=True,
        artifact="a" * 64,
        profile="x86",
        files={},
        inputs=(),
        outputs=(),
        preprocess=PreprocessSettings(),
        labels=(),
        installed_at="2026-11-28T12:34:56+00:00",
        versions={},
    )
    farm = SimpleNamespace(
        answer=lambda *_, **__: replace(answer_of([[0.1, 0.9]]), release=release)
    )
    session: Any = SimpleNamespace(farm=lambda: farm, verbosity=0, progress=lambda: lambda _: None)
    run._ask(session, "net", Device("pi3", Profile("x86", {}, ""), "local:"), Path("x"), 1.0, False)
    said = capsys.readouterr().err
    assert said.startswith(
        "net as it is deployed on pi3: release 3 of 2026-11-28 12:34 UTC (--build"
    )


def searched(before_s: float, after_s: float, spread: float = 0.001) -> str:
    draw = np.random.default_rng(0)
    before, after = (
        tuple(float(s) for s in middle * (1 + spread * draw.standard_normal(60)))
        for middle in (before_s, after_s)
    )
    artifacts = built("net", cached=False), built("net", cached=False)
    return tune.search_result_text(TuningResult(*artifacts, PairedSamples(before, after, {})))


def test_a_search_tells_how_much_faster_or_slower_the_model_became() -> None:
    assert searched(2e-3, 1e-3).startswith("100.0 % faster (2 -> 1 ms, 60 pairs, 95 % confidence +")
    assert searched(1e-3, 2e-3).startswith("50.0 % slower as a whole (1 -> 2 ms, 60 pairs,")
    assert searched(1e-3, 0.999e-3).startswith("nothing gained: no difference of ")
    # an interval around no change is no gain, however large the ratio
    assert searched(1.05e-3, 1e-3, spread=0.5).startswith("nothing gained")
    nothing = TuningResult(built("net", cached=True), built("net", cached=True), None)
    assert tune.search_result_text(nothing).startswith("nothing faster was found")


def test_a_wait_for_candidates_is_told_from_a_second_on() -> None:
    def told(seconds: float) -> str:
        board: Any = SimpleNamespace(waited_s=seconds)
        return tune.waiting_time_text(board)

    assert (told(0.9), told(1.0), told(7.4)) == (
        "",
        ", waited 1 s for candidates",
        ", waited 7 s for candidates",
    )


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ([GONE], GONE.exit_code),
        ([GONE, GONE], GONE.exit_code),
        ([GONE, replace(GONE, why="another reason")], 1),
        ([], 7),
    ],
)
def test_devices_that_failed_alike_give_their_code_and_others_1(
    failures: list[Any], code: int
) -> None:
    failed: list[Any] = [SimpleNamespace(failure=failure) for failure in failures]
    with pytest.raises(SystemExit) as ended:
        accuracy_command._end(failed, ["pi3"], 90.0)
    assert ended.value.code == code
