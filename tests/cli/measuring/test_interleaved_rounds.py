"""farm compare --in-turns and farm bench --baseline --in-turns: builds of kept runs, measured again
on this machine. The slower model has
further layers that change nothing, and takes several times as long: so much shows on the busiest
machine."""

from __future__ import annotations

import json
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from farm_processes import DEVICES, Done, Farm
from onnx_models import graph, node, save

CHANNELS, SIZE = 32, 28
GONE = '[devices.gone]\nprofile = "x86"\nurl = "rpc://127.0.0.1:9"\n'
NOISY = {"verdict": "NOISY", "reason": "a neighbour"}
_TRIES = 4


def write_model(path: Path, identities: int = 0, seed: int = 0) -> None:
    """A convolution, and products by the identity matrix, which change nothing."""
    weights = {
        "w": (np.random.default_rng(seed).standard_normal((CHANNELS, CHANNELS, 3, 3)) / 17).astype(
            "float32"
        ),
        "i": np.eye(CHANNELS, dtype="float32")[..., None, None],
    }
    names = ["a", *(f"t{number}" for number in range(1, identities)), "y"] if identities else ["y"]
    nodes = [node("Conv", ["x", "w"], [names[0]], pads=[1, 1, 1, 1])]
    nodes += [
        node("Conv", [before, "i"], [after])
        for before, after in zip(names, names[1:], strict=False)
    ]
    shape = [1, CHANNELS, SIZE, SIZE]
    save(
        path,
        graph(nodes, {"x": shape}, {"y": shape}, weights if identities else {"w": weights["w"]}),
    )


@pytest.fixture(scope="module")
def built(agents: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Farm:
    """A farm in which three models were measured: net, the slower one, and one of the same shape
    with other weights.
    """
    folder = tmp_path_factory.mktemp("turns")
    (folder / "cache").mkdir()
    (folder / "cache" / "agents").symlink_to(agents("x86_64").parents[1])
    farm = Farm(folder, folder / "cache", uuid.uuid4().hex)
    farm.configure(DEVICES + GONE)
    write_model(folder / "net.onnx")
    write_model(folder / "slower.onnx", identities=24)
    write_model(folder / "other.onnx", seed=1)
    done = farm.run(
        "bench",
        "--device",
        "host",
        "net.onnx",
        "slower.onnx",
        "other.onnx",
        "--quick",
        "--threads",
        "1",
    )
    assert done.code == 0, done.err
    return farm


@pytest.fixture
def farm(built: Farm) -> Iterator[Farm]:
    yield built
    built.end()


def kept(farm: Farm, model: str) -> dict[str, Any]:
    """The first run of a model, as its line of JSON."""
    lines = [json.loads(line) for line in farm.run("runs", "export").out.splitlines()]
    return next(
        line
        for line in sorted(lines, key=lambda line: line["started_at"])
        if line["model"] == model
    )


def keep(farm: Farm, run: dict[str, Any], **changes: Any) -> str:
    """Keep the run as it would be with changes; its id."""
    changed = {**run, "id": uuid.uuid4().hex[:12], **changes}
    (farm.folder / "run.jsonl").write_text(json.dumps(changed) + "\n")
    assert farm.run("runs", "import", "run.jsonl").code == 0
    return str(changed["id"])


def in_turns(farm: Farm, first: str, second: str, *words: str) -> Done:
    return farm.run("compare", "--in-turns", "--seconds", "3", first, second, *words)


def told(compare: Callable[[], Done]) -> Done:
    """A comparison that finds a difference: beside other tests it may be unable to tell, which
    passes, and is made again.
    """
    for _ in range(_TRIES):
        if (done := compare()).code:
            break
    return done


def test_noisy_runs_of_one_build_do_not_differ(farm: Farm) -> None:
    first, second = (keep(farm, kept(farm, "net"), **NOISY) for _ in range(2))
    plain = farm.run("compare", first, second)
    assert f"farm compare --in-turns {first} {second}" in plain.out
    done = in_turns(farm, first, second, "--fail-on", "5%", "--json")
    assert done.code == 0, done.err
    assert "in turns: loading, net (1 thread) on host\n" in done.err
    (pair,) = done.json["pairs"]
    assert pair["change"] in ("same", "unsure") and pair["failure"] is None
    turns = pair["in_turns"]
    assert len(turns["loads"]) == 3 and sum(turns["loads"]) >= 10
    assert len(turns["before_s"]) == len(turns["after_s"]) == sum(turns["loads"])
    assert min(turns["before_s"]) > 0
    assert farm.run("compare", first, second, "--json").json["pairs"][0]["in_turns"] is None
    farm.assert_nothing_is_left()


def test_a_slowdown_is_found_though_both_kept_runs_are_noisy(farm: Farm) -> None:
    first, second = (keep(farm, kept(farm, model), **NOISY) for model in ("net", "slower"))
    assert farm.run("compare", first, second, "--fail-on", "5%").code == 0  # it cannot tell
    done = told(lambda: in_turns(farm, first, second, "--fail-on", "5%", "--json"))
    assert done.code == 8
    (pair,) = done.json["pairs"]
    assert pair["change"] == "slower" and pair["interval"][0] > 1.05 and pair["p"] < 0.01
    assert "slower by" in done.error["why"]
    back = in_turns(farm, second, first, "--fail-on", "5%")
    assert back.code == 0 and "faster by" in " ".join(back.out.split())


def test_bench_measures_in_turns_what_a_noisy_baseline_cannot_tell(farm: Farm) -> None:
    run = kept(farm, "net")
    keep(farm, run, **NOISY, started_at="2099-01-01T00:00:00+00:00")
    assert farm.run("baseline", "save", "then", "net").code == 0
    shutil.copy(farm.folder / "slower.onnx", farm.folder / "net.onnx")
    try:
        words = (
            "bench",
            "--device",
            "host",
            "net.onnx",
            "--quick",
            "--threads",
            "1",
            "--baseline",
            "then",
            "--fail-on",
            "5%",
        )
        plain = farm.run(*words)
        assert plain.code == 0 and "in turns: farm compare --in-turns" in plain.out
        done = told(lambda: farm.run(*words, "--in-turns", "--json"))
    finally:
        write_model(farm.folder / "net.onnx")
    assert done.code == 8, done.err
    (pair,) = done.json["comparison"]
    assert pair["change"] == "slower" and pair["in_turns"]["loads"]
    assert any(words.startswith("import: ") for words in pair["differences"])


def test_builds_that_are_gone_are_told_before_anything_is_measured(farm: Farm) -> None:
    run = kept(farm, "other")
    first = keep(farm, run)
    folder = farm.cache / "artifacts" / run["artifact_digest"]
    folder.rename(farm.folder / "away")
    try:
        assert farm.run("baseline", "save", "gone", "other").code == 0
        for done in (
            in_turns(farm, first, keep(farm, run)),
            farm.run(
                "bench",
                "--device",
                "host",
                "other.onnx",
                "--threads",
                "1",
                "--baseline",
                "gone",
                "--in-turns",
            ),
        ):
            assert done.code == 2
            assert "is no longer in the cache" in done.error["error"]
            assert run["artifact_digest"][:12] in done.error["why"]
            assert (
                "farm compile other --profile x86" in done.error["fix"]
                and "farm bench --device host other" in done.error["fix"]
            )
            assert "measuring" not in done.err
    finally:
        (farm.folder / "away").rename(folder)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"device": "pi3", "profile": "rasp3b", "url": "qemu:"}, "different devices"),
        ({"threads": 2}, "different threads or cores"),
        ({"pinned": True}, "different threads or cores"),
        ({"profile": "rasp3b"}, "different kinds of board"),
        ({"artifact_digest": None, "verdict": "FAILED"}, "does not say which build"),
        ({"model_digest": None}, "does not say which build"),
    ],
)
def test_runs_that_cannot_be_measured_in_turns(
    farm: Farm, changes: dict[str, Any], complaint: str
) -> None:
    run = kept(farm, "net")
    first, second = keep(farm, run, **NOISY), keep(farm, run, **{**NOISY, **changes})
    done = in_turns(farm, first, second)
    assert done.code == 2 and complaint in done.error["error"]
    plain = farm.run("compare", first, second)
    assert "cannot tell" in " ".join(plain.out.split()) and "--in-turns" not in plain.out


def test_an_emulated_device_gives_no_figures(farm: Farm) -> None:
    emulated = {"device": "pi3", "profile": "rasp3b", "url": "qemu:"}
    done = in_turns(farm, *(keep(farm, kept(farm, "net"), **emulated) for _ in range(2)))
    assert done.code == 2 and "pi3 is emulated" in done.error["error"]


def test_a_device_that_is_gone_fails_its_pair(farm: Farm) -> None:
    away = {"device": "gone", "url": "rpc://127.0.0.1:9"}
    done = in_turns(farm, *(keep(farm, kept(farm, "net"), **away) for _ in range(2)), "--json")
    assert done.code == 5 and "gone is offline" in done.error["error"]
    (pair,) = done.json["pairs"]
    assert (
        pair["change"] == "unsure"
        and pair["failure"]["kind"] == "DeviceError"
        and pair["in_turns"] is None
    )


def test_a_build_that_answers_wrong_is_said(farm: Farm) -> None:
    wrong = keep(farm, kept(farm, "net"), model_digest=kept(farm, "other")["model_digest"])
    done = in_turns(farm, keep(farm, kept(farm, "net")), wrong)
    assert done.code == 7 and "answers wrong on host" in done.error["error"]


def test_ctrl_c_leaves_nothing_behind(farm: Farm) -> None:
    first, second = (keep(farm, kept(farm, "net")) for _ in range(2))
    running = farm.start("compare", "--in-turns", "--seconds", "60", first, second)
    running.says("measuring")
    running.send(signal.SIGINT)
    assert running.end().code == 130
    farm.assert_nothing_is_left()


def test_options_that_need_in_turns_say_so(farm: Farm) -> None:
    assert "--seconds" in farm.run("compare", "a", "b", "--seconds", "5").error["error"]
    assert (
        "--in-turns"
        in farm.run("bench", "--device", "host", "net.onnx", "--in-turns").error["error"]
    )
