"""Baselines, comparisons and the exit code of what became slower: real runs, and copies of them
that are made slower or steadier.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from farm_processes import Farm


@pytest.fixture
def measured(farm: Farm) -> dict[str, Any]:
    """A kept run of digits on this machine, as its line of JSON."""
    done = farm.run("bench", "--device", "host", "digits", "--quick", "--json")
    assert done.code == 0, done.err
    (line,) = farm.run("runs", "export").out.splitlines()
    found: dict[str, Any] = json.loads(line)
    assert found["id"] == done.json["runs"][0]["id"]
    return found


def steady(run: dict[str, Any], name: str, factor: float, day: int) -> dict[str, Any]:
    """The run as it would be on a machine of its own, this much slower, on a day of July."""
    draw = random.Random(day)
    seconds = [1e-5 * factor * draw.gauss(1, 0.01) for _ in range(200)]
    verdict = {
        "id": name,
        "started_at": f"2026-07-{day:02}T12:00:00+00:00",
        "verdict": "STABLE",
        "reason": "steady",
    }
    latency = {**run["latency"], "p50_ms": 1e-2 * factor, "count": 200}
    return {**run, **verdict, "samples": {**run["samples"], "seconds": seconds}, "latency": latency}


def import_runs(farm: Farm, folder: Path, *runs: dict[str, Any]) -> None:
    file = folder / "runs.jsonl"
    file.write_text("".join(json.dumps(run) + "\n" for run in runs))
    done = farm.run("runs", "import", str(file))
    assert (done.code, done.out) == (0, f"{len(runs)} runs, {len(runs)} of them new\n"), done.err
    assert farm.run("runs", "import", str(file), "--json").json["new"] == 0


def test_a_run_has_its_ledger_its_facts_and_its_blocks(measured: dict[str, Any]) -> None:
    told = measured["samples"]
    assert told["wall_s"] - sum(told["ledger"].values()) < 0.02 * told["wall_s"] + 0.05
    assert {
        "build",
        "process",
        "connect",
        "upload",
        "load",
        "first run",
        "warm-up",
        "compute",
        "RPC",
        "read-back",
    } <= set(told["ledger"])
    assert len(told["facts_during"]) >= 2 and float(told["facts_during"][0]["host_s"]) > 0
    assert told["block"] > 1 and told["warm"] in (
        True,
        False,
    )  # digits takes far less than a millisecond
    assert (measured["latency"]["block"], measured["latency"]["p90_ms"]) == (told["block"], None)


def test_slower_faster_and_the_same_are_told_apart(
    farm: Farm, measured: dict[str, Any], tmp_path: Path
) -> None:
    import_runs(
        farm,
        tmp_path,
        steady(measured, "aaa1", 1.0, 1),
        steady(measured, "bbb2", 1.0, 2),
        steady(measured, "ccc3", 1.1, 3),
    )
    assert farm.run("compare", "aaa", "bbb", "--fail-on", "5%").code == 0
    slower = farm.run("compare", "aaa", "ccc", "--fail-on", "5%", "--json")
    assert slower.code == 8
    (pair,) = slower.json["pairs"]
    assert pair["change"] == "slower" and pair["interval"][0] < 1.1 < pair["interval"][1]
    assert f"digits on host: slower by +{100 * (pair['ratio'] - 1):.1f} %" in slower.error["why"]
    assert farm.run("compare", "aaa", "ccc", "--fail-on", "15%").code == 0
    assert "faster by -" in " ".join(
        farm.run("compare", "ccc", "aaa", "--fail-on", "5%").out.split()
    )


def test_a_baseline_is_saved_listed_used_and_removed(
    farm: Farm, measured: dict[str, Any], tmp_path: Path
) -> None:
    import_runs(farm, tmp_path, steady(measured, "aaa1", 1.0, 1), steady(measured, "ccc3", 1.2, 3))
    assert farm.run("baseline", "save", "newest").out.startswith(
        f"digits on host: {measured['id']}"
    )
    assert farm.run("baseline", "list").out == "newest: 1 run\n"
    done = farm.run(
        "bench",
        "--device",
        "host",
        "digits",
        "--quick",
        "--baseline",
        "newest",
        "--save-baseline",
        "next",
        "--json",
    )
    assert done.code in (0, 8), done.err
    assert [pair["first"] for pair in done.json["comparison"]] == [measured["id"]]
    assert done.json["comparison"][0]["second"] == done.json["runs"][0]["id"]
    assert farm.run("baseline", "list", "--json").json["baselines"] == {"newest": 1, "next": 1}
    assert farm.run("baseline", "remove", "newest").code == 0
    assert farm.run("baseline", "list").out == "next: 1 run\n"


def test_history_draws_a_line_and_names_the_step(
    farm: Farm, measured: dict[str, Any], tmp_path: Path
) -> None:
    runs = [steady(measured, f"run{day:02}", 1.0 if day < 10 else 1.3, day) for day in range(1, 19)]
    runs[9:] = [{**run, "artifact_digest": "f" * 64} for run in runs[9:]]
    import_runs(farm, tmp_path, *runs)
    assert (
        farm.run("history", "net", "--device", "host").err
        == "no runs of net on host among those that are kept: farm history\n"
    )
    assert "no runs on pi5 among those that are kept" in farm.run("report", "--device", "pi5").err
    out = farm.run("history", "digits", "--device", "host").out
    drawn = re.search(
        r"([▁-█])\1{8}([▁-█])\2{8}", out
    )  # the real run before them may be faster or slower
    assert drawn and drawn[1] < drawn[2], out
    assert "step at 2026-07-10 12:00, run run10: 0.0100 → 0.0130 ms (+30 %): artifact:" in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("compare", "aaa", "bbb"), "there is no baseline and no run 'aaa'"),
        (("bench", "--all", "--baseline", "none"), "there is no baseline 'none'"),
        (("bench", "--all", "--fail-on", "5%"), "--fail-on is told nothing to compare with"),
        (("compare", "a", "b", "--fail-on", "much"), "no share such as 5%"),
        (("baseline", "save", "x"), "there is no run to name"),
        (("baseline", "remove", "x"), "there is no baseline 'x'"),
        (("runs", "import", "missing.jsonl"), "missing.jsonl cannot be read"),
        (("runs", "import", "devices.toml"), "devices.toml, line 2: no run"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(
    farm: Farm, words: tuple[str, ...], complaint: str
) -> None:
    done = farm.run(*words)
    assert done.code == 2
    assert complaint in done.error["error"]
