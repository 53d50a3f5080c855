"""The check of a board: what its report means, and what it leaves behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from timeouts import wait_until

from farm.lab.care.board_checks import RunningCheck, parse_check_result
from farm.lab.care.health_state_machine import RIGHT, UNREACHABLE, WRONG, Health
from farm.processes import subprocesses

FACTS = {"agent": "1.2", "machine": "aarch64", "cores": 4}


def run(model: str, verdict: str, seconds: list[float], reason: str = "") -> dict[str, Any]:
    samples = {"seconds": seconds, "facts_before": {**FACTS, "load_1m": 0.5}}
    return {"model": model, "verdict": verdict, "reason": reason, "samples": samples}


def report(*runs: dict[str, Any]) -> str:
    return json.dumps({"runs": list(runs)})


def test_a_board_whose_models_are_all_right_or_noisy_is_right_with_its_latency_and_facts() -> None:
    said = report(
        run("digits", "STABLE", [0.001, 0.5, 0.001]), run("resnet18", "NOISY", [0.1, 0.1, 9.0])
    )
    found = parse_check_result(f"building\n{said}\n", Health(), 7.0)
    assert (found.at, found.verdict, found.why) == (7.0, RIGHT, "")
    assert found.median_s is not None and abs(found.median_s - 0.01) < 1e-9
    assert found.facts == FACTS


def test_a_board_is_wrong_by_one_model_whose_name_and_reason_are_told() -> None:
    said = report(
        run("digits", "STABLE", [0.001]), run("resnet18", "WRONG", [0.1], "12 dB, 40 asked")
    )
    found = parse_check_result(said, Health(), 7.0)
    assert (found.verdict, found.why) == (WRONG, "resnet18: 12 dB, 40 asked")


def test_a_board_that_one_model_did_not_reach_is_unreachable_whatever_the_others_gave() -> None:
    said = report(
        run("digits", "WRONG", [0.001], "0 dB"), run("resnet18", "FAILED", [], "no answer")
    )
    found = parse_check_result(said, Health(), 7.0)
    assert (found.verdict, found.why) == (UNREACHABLE, "resnet18: no answer")


def test_a_check_that_has_ended_leaves_its_result_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "check-1"
    folder.mkdir()
    said = report(run("digits", "WRONG", [0.001], "0 dB"))
    child = subprocesses.start_program(
        [sys.executable, "-c", f"print({said!r})"], log=folder / "log"
    )
    check = RunningCheck("pi5-07", 1, child, folder, 0.0)
    wait_until(lambda: check.done, "the check has ended")
    assert check.result(Health(), 7.0).verdict == WRONG
    assert not folder.exists()
