"""A check of a board: the golden models on it, by `farm bench` in a process of its own."""

from __future__ import annotations

import json
import secrets
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import sanitize
from farm.lab.care.health_state_machine import (
    UNREACHABLE,
    CheckResult,
    Health,
    golden_models_check_result,
)
from farm.processes import subprocesses

if TYPE_CHECKING:
    from subprocess import Popen

CHECK_S = 600.0  # of a check with its builds
_GOLDEN = {
    "digits": 'source = "package:zoo/digits/digits.onnx"\npreprocess = "grey"\n'
    'dataset = "package:zoo/digits/digits-test.npz"',
    "mobilenet_v2": 'source = "python:farm.zoo:mobilenet_v2"\npreprocess = "imagenet"',
    "resnet18": 'source = "python:farm.zoo:resnet18"\npreprocess = "imagenet"',
}
MODELS = tuple(_GOLDEN)
# What numbers depend on: before and after a change of it they do not compare.
_FACTS = ("agent", "machine", "kernel", "cpu", "cores", "memory_total_bytes", "max_frequency_khz")
_DEVICES = """
[devices.board]
profile = {profile}
url = {url}
[bench]
count = 30
minimum_s = 0.5
{models}
"""


@dataclass(slots=True)
class RunningCheck:
    """A check that runs: its process, its folder, its lease, and when it has begun."""

    board: str
    lease: int
    child: Popen[bytes]
    folder: Path
    began_at: float

    @property
    def done(self) -> bool:
        """Return whether the process of the check has ended."""
        return self.child.poll() is not None

    def stop(self) -> None:
        """End it, and remove its folder."""
        subprocesses.end_program(self.child)
        shutil.rmtree(self.folder, ignore_errors=True)

    def result(self, health: Health, now: float) -> CheckResult:
        """Return what it has found, and remove its folder."""
        try:
            said = (self.folder / "log").read_text(errors="replace")
        finally:
            self.stop()
        return parse_check_result(said, health, now)


def begin_check(
    folder: Path, board: str, lease: int, profile: str, url: str, models: Sequence[str], now: float
) -> RunningCheck:
    """Begin a check of the board that a tracker lends at a url."""
    place = folder / f"check-{secrets.token_hex(4)}"
    place.mkdir(mode=0o700, parents=True)
    golden = "\n".join(f"[models.{name}]\n{_GOLDEN[name]}" for name in models)
    text = _DEVICES.format(profile=json.dumps(profile), url=json.dumps(url), models=golden)
    (place / "devices.toml").write_text(text, "utf-8")
    command = [
        sys.executable,
        "-P",
        "-m",
        "farm",
        "bench",
        "--json",
        "--quiet",
        "--device",
        "board",
    ]
    command += ["--config", str(place / "devices.toml"), *models]
    kept = {"FARM_DATA": str(folder / "checks")}  # the runs of checks are nobody's
    child = subprocesses.start_program(command, log=place / "log", env=kept)
    return RunningCheck(board, lease, child, place, now)


def parse_check_result(said: str, health: Health, now: float) -> CheckResult:
    """Return the verdict by the output of `farm bench --json`, some of which a board has said."""
    try:
        return _parsed_result(said, health, now)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        why = f"its check reports what none does: {type(exc).__name__}"
        return CheckResult(now, UNREACHABLE, why)


def _parsed_result(said: str, health: Health, now: float) -> CheckResult:
    document: Any = None
    if (at := said.find("{")) >= 0:
        try:
            document, _ = json.JSONDecoder().raw_decode(said[at:])
        except ValueError:
            document = None
    runs = document.get("runs") if isinstance(document, dict) else None
    if not runs:
        return CheckResult(
            now, UNREACHABLE, sanitize.sanitized_line(subprocesses.last_lines(said))[:300]
        )
    for run in runs:
        if run["verdict"] in ("UNAVAILABLE", "FAILED", "SKIPPED"):
            why = sanitize.sanitized_line(f"{run['model']}: {run['reason']}")[:300]
            return CheckResult(now, UNREACHABLE, why)
    wrong = [run for run in runs if run["verdict"] == "WRONG"]
    why = (
        sanitize.sanitized_line(f"{wrong[0]['model']}: {wrong[0]['reason']}")[:300] if wrong else ""
    )
    medians = [statistics.median(run["samples"]["seconds"]) for run in runs if run["samples"]]
    median_s = statistics.geometric_mean(medians) if medians else 0.0
    return golden_models_check_result(not wrong, why, median_s, _facts(runs[0]), health, now)


def _facts(run: Mapping[str, Any]) -> dict[str, Any]:
    facts = (run.get("samples") or {}).get("facts_before") or {}
    return {name: facts[name] for name in _FACTS if facts.get(name) is not None}
