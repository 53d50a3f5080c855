"""Python programs and pytest, on a real device of this machine."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from farm_processes import Farm
from onnx_models import graph, node, save
from timeouts import LIMIT_S

PLUGIN = (
    []
    if any(one.value == "farm.pytest_plugin" for one in entry_points(group="pytest11"))
    else ["-p", "farm.pytest_plugin"]
)
ROOT = Path(__file__).parents[3]

PROGRAM = """
import numpy as np
from farm import Farm
from farm.errors import FarmError, UntrustedNumber

farm = Farm.load("devices.toml")
result = farm.bench("digits", device="host", count=64, minimum_s=0.0)
print(result.verdict.value, result.right, result.accuracy > 0.9, result.run.latency.count >= 64, result.run.id == farm.history()[0].id)
answer = farm.run("digits", {"image": np.zeros((1, 1, 8, 8), "float32")}, device="host")
print(answer[answer.specs[0].name].shape, answer.release, len(answer.labels))
deployed = farm.deploy("digits", device="host")
print(deployed.verdict.value)
answer = farm.run("digits", {"image": np.zeros((1, 1, 8, 8), "float32")}, device="host")
print(answer.release.number == deployed.run.samples.release)
[pair] = farm.compare(result, result)
print(pair.found.change.value)
try:
    farm.bench("digits", device="nowhere")
except FarmError as error:
    print(error.what)
"""  # noqa: E501


def python(farm: Farm, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**farm.env, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=farm.folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_a_python_program_benches_runs_deploys_and_compares(farm: Farm) -> None:
    farm.run(
        "undeploy", "--device", "host", "digits"
    )  # another test's; the program's own comes later
    done = python(farm, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[1:] == ["True", "True", "True", "True"]
    assert lines[1] == "(1, 10) None 10"
    assert lines[2:4] == ["RIGHT", "True"]
    assert lines[4] in ("same", "unsure")
    assert lines[5] == "unknown device 'nowhere'"
    farm.assert_nothing_is_left()


CONSTANT = """
import numpy as np
from farm import Farm
from farm.errors import ModelError

farm, x = Farm.load("devices.toml"), np.array([[1, -2, 3, 4]], "float32")
answer = farm.run("scaled.onnx", {"x": x}, device="host", values={"gain": 3})
print(answer[answer.specs[0].name].tolist())
print(farm.bench("scaled.onnx", device="host", values={"gain": [2.0]}, count=8, minimum_s=0.0).right)
print(farm.deploy("scaled.onnx", device="host", values={"gain": 5}).verdict.value)
answer = farm.run("scaled", {"x": x}, device="host")
print(answer[answer.specs[0].name].tolist())
try:
    farm.bench("scaled.onnx", device="host", values={"gian": 2})
except ModelError as error:
    print(error.what)
"""  # noqa: E501


def test_a_python_program_states_the_values_of_inputs(farm: Farm) -> None:
    body = graph([node("Mul", ["x", "gain"], ["y"])], {"x": [1, 4], "gain": [1]}, {"y": [1, 4]})
    save(farm.folder / "scaled.onnx", body)
    done = python(farm, "-c", CONSTANT)
    farm.run("undeploy", "--device", "host", "scaled")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[[3.0, -6.0, 9.0, 12.0]]",
        "True",
        "RIGHT",
        "[[5.0, -10.0, 15.0, 20.0]]",
        "scaled.onnx has no input 'gian'",
    ]


# What a bench gives is fixed here: a busy machine's verdict is left to chance, the plugin's
# behaviour is not.
CONFTEST = """
import dataclasses
import pytest
from farm.api import Result
from farm.types import Verdict

@pytest.fixture
def judged(farm):
    def judge(verdict):
        run = farm.bench("digits", device="host", count=20, minimum_s=0.0).run
        return Result(dataclasses.replace(run, verdict=verdict, reason="by the test"))
    return judge
"""
TESTS = """
import pytest
from farm.types import Verdict

def test_fast(judged):
    assert judged(Verdict.STABLE).p50_ms < 10_000

def test_slow(judged):
    assert judged(Verdict.STABLE).p50_ms < 1e-9

@pytest.mark.parametrize("verdict", ["NOISY", "WRONG"])
def test_untrusted(judged, verdict):
    assert judged(Verdict(verdict)).p50_ms < 10_000
"""


def pytest_run(
    farm: Farm, text: str, *arguments: str, **files: str
) -> subprocess.CompletedProcess[str]:
    (farm.folder / "test_model.py").write_text(text)
    (farm.folder / "conftest.py").write_text(CONFTEST)
    return python(
        farm,
        "-m",
        "pytest",
        *PLUGIN,
        "-p",
        "no:cacheprovider",
        "-q",
        "--rootdir",
        str(farm.folder),
        *arguments,
    )


def test_the_fixture_measures_and_a_figure_not_to_be_relied_on_fails_with_its_reason(
    farm: Farm,
) -> None:
    done = pytest_run(farm, TESTS)
    assert "3 failed, 1 passed" in done.stdout
    assert "digits on host is NOISY: no p50_ms to rely on" in done.stdout
    assert "why: by the test" in done.stdout
    assert done.stdout.count("digits on host: ") == 4  # the summary's runs


def test_untrusted_figures_can_be_skips_but_a_wrong_answer_never(farm: Farm) -> None:
    done = pytest_run(farm, TESTS, "-o", "farm_untrusted=skip", "-rs", "-k", "untrusted")
    assert "1 failed, 1 skipped" in done.stdout
    assert "digits on host is NOISY: no p50_ms to rely on: by the test" in done.stdout
    assert "digits on host is WRONG" in done.stdout


@pytest.mark.usefixtures("emulators")
def test_an_emulated_board_gives_no_figure(farm: Farm) -> None:
    done = pytest_run(
        farm, 'def test_it(farm):\n    assert farm.bench("digits", device="pi3").p50_ms < 1e9\n'
    )
    assert "digits on pi3 is EMULATED" in done.stdout
    assert done.returncode == 1


def test_a_setting_of_the_plugin_that_means_nothing_is_refused(farm: Farm) -> None:
    done = pytest_run(farm, TESTS, "-o", "farm_untrusted=perhaps")
    assert "farm_untrusted is 'perhaps'; it is one of fail, skip" in done.stderr
    assert done.returncode == 4
