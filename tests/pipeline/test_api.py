"""farm from Python: what a Result lets one have, how a Farm is made. What it does on devices is in
cli/models/test_python.py.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from report_runs import failed, timed

import farm
from farm import Farm, Result
from farm.api.resolve import (
    comparable_runs,
    deadline_from_options_or_preset,
    device_with_options,
    model_with_input_shapes,
    plan_with_overrides,
)
from farm.cli import cli
from farm.commands.common import Session
from farm.errors import (
    DeviceError,
    FarmError,
    Regression,
    UntrustedNumber,
    UsageError,
    error_from_failure,
)
from farm.pipeline import JobsOutcome, expand_jobs
from farm.pipeline.run_jobs import WallTimes
from farm.store import RunStore
from farm.types import (
    PRESETS,
    Agreement,
    Device,
    Failure,
    MeasurementSettings,
    Model,
    PairedStoppingRule,
    Profile,
    Run,
    Verdict,
)

STABLE = timed("pi5", "net", 1)


def with_verdict(verdict: Verdict) -> Run:
    return dataclasses.replace(STABLE, verdict=verdict, reason="for a reason")


def test_importing_farm_loads_nothing_of_weight() -> None:
    code = (
        "import sys, farm; print(len([name for name in sys.modules if name.startswith('farm')]), "
        "*sys.modules)"
    )
    count, *modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(count) == 1
    assert not {"numpy", "tvm", "torch", "rich", "pydantic"} & set(modules)


def test_what_farm_has_not_is_said() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Frm'"):
        farm.Frm  # noqa: B018


def test_a_stable_run_has_its_figures() -> None:
    result = Result(STABLE)
    assert STABLE.latency
    assert (result.p50_ms, result.p90_ms, result.verdict) == (
        STABLE.latency.p50_ms,
        STABLE.latency.p90_ms,
        Verdict.STABLE,
    )
    assert (result.right, result.accuracy) == (True, 0.9)


@pytest.mark.parametrize(
    "verdict", [verdict for verdict in Verdict if verdict is not Verdict.STABLE]
)
def test_no_other_run_has_any(verdict: Verdict) -> None:
    with pytest.raises(UntrustedNumber) as caught:
        Result(with_verdict(verdict)).p50_ms  # noqa: B018
    assert caught.value.what == f"net on pi5 is {verdict.value}: no p50_ms to rely on"
    assert caught.value.why == "for a reason"
    assert caught.value.wrong == (verdict is Verdict.WRONG)


def test_a_percentile_that_the_samples_do_not_support_is_refused() -> None:
    with pytest.raises(UntrustedNumber, match="no p99_ms, which so few samples do not support"):
        Result(STABLE).p99_ms  # noqa: B018


def test_the_error_survives_the_way_between_processes() -> None:
    error = UntrustedNumber("what", "why", "fix", wrong=True)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_an_answer_that_is_wrong_says_so() -> None:
    assert STABLE.samples
    samples = dataclasses.replace(STABLE.samples, agreement=Agreement(1.0, 0.0, False, False))
    assert not Result(dataclasses.replace(STABLE, samples=samples)).right


def test_a_plan_is_changed_by_a_preset_and_then_by_what_is_given() -> None:
    plan = plan_with_overrides(MeasurementSettings(), "standard", {"count": 7, "minimum_s": None})
    assert (plan.count, plan.minimum_s, plan.cooldown_s) == (
        7,
        PRESETS["standard"]["minimum_s"],
        PRESETS["standard"]["cooldown_s"],
    )
    assert plan_with_overrides(MeasurementSettings(), None, {"minimum_s": 99.0}).maximum_s == 99.0


@pytest.mark.parametrize(
    ("preset", "given", "words"),
    [
        ("standart", {}, "no preset 'standart'"),
        (None, {"cuont": 3}, "no 'cuont'"),
        (None, {"install": True}, "no 'install'"),
    ],
)
def test_a_preset_or_a_field_that_is_not_there_is_named(
    preset: str | None, given: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        plan_with_overrides(MeasurementSettings(), preset, given)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    path = tmp_path / "devices.toml"
    path.write_text('[devices.host]\nprofile = "x86"\nurl = "local:"\n')
    return path


def test_a_farm_has_the_history_of_its_record_and_compares_in_it(config: Path) -> None:
    record = RunStore(config.parent / "data" / "runs.sqlite")
    before, after = timed("pi5", "net", 1), timed("pi5", "net", 2, 12.0)
    record.add([before, after])
    record.save_baseline("release", [before])
    loaded = Farm.load(config)
    assert [run.id for run in loaded.history("net", device="pi5")] == [after.id, before.id]
    for first, second in ((before.id, after.id), ("release", Result(after)), (before, after)):
        [pair] = loaded.compare(first, second)
        assert (pair.first.id, pair.second.id, pair.found.change.value) == (
            before.id,
            after.id,
            "slower",
        )
    with pytest.raises(UsageError, match="no baseline and no run 'releas'"):
        loaded.compare("releas", after)


@pytest.mark.parametrize(
    ("said", "kept"), [("lab.sqlite", "lab.sqlite"), ("sub/lab.sqlite", "sub/lab.sqlite")]
)
def test_the_record_of_a_configuration_lies_beside_it(config: Path, said: str, kept: str) -> None:
    config.write_text(f'store = "{said}"\n' + config.read_text())
    Farm.load(config).record.keep(timed("a", "b", 1))
    assert (config.parent / kept).exists()
    assert not (config.parent / "data").exists()


def test_a_store_that_is_given_outweighs_the_configuration(config: Path, tmp_path: Path) -> None:
    config.write_text('store = "lab.sqlite"\n' + config.read_text())
    Farm.load(config, store=str(tmp_path / "other.sqlite")).record.keep(timed("a", "b", 1))
    assert not (tmp_path / "lab.sqlite").exists()
    listed = subprocess.run(
        [
            sys.executable,
            "-m",
            "farm",
            "history",
            "--json",
            "--config",
            str(config),
            "--store",
            str(tmp_path / "other.sqlite"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [run["id"] for run in json.loads(listed.stdout)["runs"]] == ["a-b-1"]


def test_what_is_for_turns_alone_is_refused_without_them(config: Path) -> None:
    with pytest.raises(UsageError, match=r"until=\.\.\.: nothing is measured"):
        Farm.load(config).compare(STABLE, STABLE, until=PairedStoppingRule(seconds=5.0))
    with pytest.raises(UsageError, match=r"deadline_s=\.\.\.: nothing is measured"):
        Farm.load(config).compare(STABLE, STABLE, deadline_s=5.0)


@pytest.mark.parametrize(
    ("options", "deadline_s"),
    [
        (["--quick"], 600.0),
        (["--mlperf"], PRESETS["mlperf"]["deadline_s"]),
        (["--mlperf", "--deadline", "60"], 60.0),
    ],
)
def test_turns_have_the_deadline_of_a_job(
    config: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], deadline_s: float
) -> None:
    """After a bench, and in Python. What would be measured is made up."""
    before, after = (
        dataclasses.replace(
            timed("host", "net", number, verdict=Verdict.NOISY), model_digest="m" * 64
        )
        for number in (1, 2)
    )
    loaded, limits = Farm.load(config), list[float]()
    (net := config.parent / "net.onnx").touch()
    loaded.record.add([before])
    loaded.record.save_baseline("then", [before])

    def measure(
        contests: list[Device],
        until: PairedStoppingRule,
        limit_s: Callable[[Device], float],
        **_: object,
    ) -> list[FarmError]:
        limits.append(limit_s(loaded.fleet.device("host")))
        return [FarmError("not measured")]

    monkeypatch.setattr(
        "farm.commands.measure.bench.run_jobs",
        lambda *_: JobsOutcome((after,), (), WallTimes(0.0, 0.0, {})),
    )
    monkeypatch.setattr("farm.pipeline.compare.pair_of_builds", lambda *_: None)
    monkeypatch.setattr("farm.pipeline.compare.measure_pairs", measure)
    command = [
        "bench",
        "--config",
        str(config),
        "--device",
        "host",
        str(net),
        *options,
        "--baseline",
        "then",
        "--in-turns",
        "--json",
    ]
    done = CliRunner().invoke(cli, command)
    assert json.loads(done.stdout)["comparison"][0]["failure"]["what"] == "not measured"
    loaded.compare(before, after, in_turns=True, deadline_s=deadline_s)
    assert limits == [deadline_s, deadline_s]


def test_an_option_that_is_given_goes_before_a_devices_own() -> None:
    own = {"threads": 4, "pinned": True}
    device = Device("pi5", Profile("rasp4-64", {}, ""), "ssh://pi5", options=own)
    asked = device_with_options(device, {"threads": 1, "cores": "big", "pinned": None})
    assert asked.options == {"threads": 1, "pinned": True, "cores": "big"}


def test_tries_are_counted_from_one(config: Path) -> None:
    with pytest.raises(UsageError, match="tries=0"):
        Farm.load(config).bench(config, device="host", tries=0)


def test_a_deadline_that_is_asked_for_goes_before_a_devices_own_and_that_before_the_plans() -> None:
    board = Device("pi5", Profile("rasp4-64", {}, ""), "ssh://pi5")
    slow = dataclasses.replace(board, name="slow", options={"deadline_s": 900})
    plan = MeasurementSettings(deadline_s=600.0)
    assert [
        job.plan.deadline_s for job in expand_jobs([board, slow], [Model("net", "net.onnx")], plan)
    ] == [600.0, 900.0]
    assert [
        job.plan.deadline_s
        for job in expand_jobs([board, slow], [Model("net", "net.onnx")], plan, 60.0)
    ] == [60.0, 60.0]
    asked = [
        deadline_from_options_or_preset(*given)
        for given in ((None, {}), ("quick", {}), ("mlperf", {}), ("mlperf", {"deadline_s": 60.0}))
    ]
    assert asked == [None, None, PRESETS["mlperf"]["deadline_s"], 60.0]


@pytest.mark.parametrize(
    "url",
    ["mysql://lab/farm", "sqlite:///runs.sqlite", "https://lab.example/runs", "file://runs.sqlite"],
)
def test_a_record_is_kept_in_a_file_or_on_a_postgresql_server_and_nowhere_else(
    config: Path, url: str
) -> None:
    with pytest.raises(UsageError) as given:
        Farm.load(config, store=url).record  # noqa: B018
    assert url.partition(":")[0] in given.value.what and "postgresql://" in given.value.fix
    config.write_text(f'store = "{url}"\n' + config.read_text())
    with pytest.raises(UsageError) as said:
        Farm.load(config).record  # noqa: B018
    assert "postgresql://" in str(said.value)


def test_a_command_reads_its_configuration_once(config: Path) -> None:
    session = Session(config, as_json=False, verbosity=0)
    fleet = session.fleet()
    config.unlink()
    assert session.fleet() is fleet and session.farm() is session.farm()
    assert session.record().path == RunStore.at(fleet.store).path


@pytest.mark.parametrize(
    "error", [DeviceError("what", "why", "fix"), Regression("slower"), FarmError("what")]
)
def test_a_failure_becomes_the_error_that_it_was(error: FarmError) -> None:
    again = error_from_failure(error.as_failure())
    assert (type(again), again.parts(), again.exit_code) == (
        type(error),
        error.parts(),
        error.exit_code,
    )


def test_a_failure_of_a_kind_that_is_none_is_an_error_all_the_same() -> None:
    assert type(error_from_failure(Failure("difflib", "what", "", "", 1))) is FarmError


def test_values_of_inputs_are_added_to_those_of_devices_toml() -> None:
    model = Model("voice", "/voice.onnx", values={"sr": 8000, "mode": 1}, shapes={"x": (1, 2)})
    made = model_with_input_shapes(
        model,
        {"y": [3, 4]},
        {
            "sr": 16000,
            "flags": np.array([True, False]),
            "rows": ((1, 2), (3, 4)),
            "gain": np.float32(2),
        },
    )
    assert made.values == {
        "sr": 16000,
        "mode": 1,
        "flags": [True, False],
        "rows": [[1, 2], [3, 4]],
        "gain": 2.0,
    }
    assert made.shapes == {"x": (1, 2), "y": (3, 4)}


@pytest.mark.parametrize("value", ["16000", None, [1, "2"], {"a": 1}])
def test_what_no_input_can_have_as_a_value_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"values={'sr': .*}: no value of an input") as caught:
        model_with_input_shapes(Model("voice", "/voice.onnx"), None, {"sr": value})  # type: ignore[dict-item]
    assert "a number, true, false" in caught.value.why


def test_only_runs_that_were_timed_and_right_are_compared_with_later_ones() -> None:
    good = timed("host", "net", 1)
    wrong, untimed = (
        dataclasses.replace(good, **changes)
        for changes in ({"verdict": Verdict.WRONG}, {"latency": None})
    )
    assert comparable_runs([wrong, failed("host", "net", 2), good, untimed]) == [good]
