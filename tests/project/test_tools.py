"""The tools that are run by hand do run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from timeouts import LIMIT_S

import farm

ROOT = Path(farm.__file__).parents[1]


def test_a_model_is_measured_beside_another_engine(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        sys.executable,
        ROOT / "tools" / "bench-engines",
        ROOT / "farm/zoo/digits/digits.onnx",
        "--threads",
        "1",
        "--rounds",
        "3",
        "--engines",
        "onnxruntime",
    ]
    done = subprocess.run(
        [*command, "--json", report], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    [result] = json.loads(report.read_text())
    assert (
        result["right"]
        and result["times_ms"]["1"]["onnxruntime"] > 0
        and result["ratios"]["1"]["onnxruntime"] > 0
    )


def test_models_of_one_operator_are_written_and_valid(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "operator-models", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    written = sorted(tmp_path.glob("*.onnx"))
    assert len(written) > 250
    for path in written:
        onnx.checker.check_model(onnx.load(path))


@pytest.mark.parametrize("tool", ["fuzz-lab", "fuzz-door"])
def test_a_fuzzer_of_the_lab_finds_nothing_in_a_moment(tool: str) -> None:
    done = subprocess.run([ROOT / "tools" / tool, "--runs", "1000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d000 inputs", done.stdout)


def test_the_fuzzer_of_models_finds_nothing_in_a_moment_and_seldom_breaks_an_archive(
    tmp_path: Path,
) -> None:
    command = [sys.executable, ROOT / "tools" / "fuzz-models", "--runs", "150"]
    done = subprocess.run(
        [*command, "--keep", tmp_path], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "150 inputs" in line]
    assert [line.partition(":")[0] for line in lines] == ["pt2", "script", "weights", "tflite"]
    for line in lines:
        numbers = re.search(r"(\d+) refused as archives, (\d+) accepted, (\d+) refused for", line)
        assert numbers, line
        as_archives, accepted, others = map(int, numbers.groups())
        assert as_archives < 0.2 * 150 and accepted > 0 and others > 0.3 * 150, line


def test_the_fuzzer_of_configurations_finds_nothing_in_a_moment(tmp_path: Path) -> None:
    command = [
        sys.executable,
        ROOT / "tools" / "fuzz-config",
        "--runs",
        "200",
        "--findings",
        tmp_path,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("200 inputs in ") and done.stdout.endswith("0 findings\n")
    assert list(tmp_path.iterdir()) == []


def test_a_board_that_attacks_gets_through_neither_by_a_tracker_nor_by_a_lab() -> None:
    command = [ROOT / "tools" / "attack", "--boards", "--modes", "popen"]
    done = subprocess.run(
        [*command, "--routes", "tracker", "lab"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 attacks, 2 commands, 0 got through" in done.stdout


def test_a_build_whose_worker_is_killed_by_the_tool_is_right_and_made_once() -> None:
    command = [ROOT / "tools" / "bench-cluster", "--kill", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("1 builds whose worker was killed: 1 right and built once\n")
