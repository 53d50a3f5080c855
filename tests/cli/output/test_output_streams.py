"""Who hears what: data on stdout, everything else on stderr, one JSON document, no colours where
nobody sees them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from farm_processes import Farm
from PIL import Image

import farm as package

ZOO = Path(package.__file__).parent / "zoo" / "digits"


@pytest.mark.parametrize(
    ("arguments", "schema", "code"),
    [
        (("devices",), "farm/devices/1", 0),
        (("bench", "--device", "host"), "farm/bench/1", 0),
        (("bench", "--all", "--dry-run"), "farm/jobs/1", 0),
        (("deploy", "--device", "host", "digits"), "farm/deploy/1", 0),
        (("compile", "digits"), "farm/artifact/1", 0),
        (("history",), "farm/history/1", 0),
        (("deploy", "--device", "host", "none.onnx"), "farm/error/1", 3),
        (("deploy", "--device", "host", "--colour"), "farm/error/1", 2),
        (("bnch",), "farm/error/1", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_json_is_one_document_on_stdout(
    farm: Farm, arguments: tuple[str, ...], schema: str, code: int
) -> None:
    done = farm.run(*arguments, "--json")
    assert done.code == code, done.err
    assert done.json["schema"] == schema
    if schema == "farm/error/1":
        assert done.json["error"]["exit_code"] == code
        assert done.json["error"]["what"] == done.error["error"]


def test_json_of_a_failed_job_is_its_document_too(farm: Farm) -> None:
    (farm.folder / "bad.onnx").write_bytes(b"no model")
    done = farm.run("deploy", "--device", "host", "bad.onnx", "--json")
    assert done.code == 3
    assert done.json["schema"] == "farm/deploy/1"
    assert done.json["runs"][0]["failure"]["exit_code"] == 3


@pytest.mark.parametrize("command", ["bench", "deploy"])
def test_quiet_prints_no_progress(farm: Farm, command: str) -> None:
    done = farm.run(command, "--device", "host", "digits", "--quiet")
    assert done.code == 0
    assert done.err == ""
    assert "digits" in done.out


def test_quiet_still_prints_errors(farm: Farm) -> None:
    done = farm.run("deploy", "--device", "host", "none.onnx", "--quiet")
    assert "none.onnx" in done.error["error"]


def test_off_a_terminal_there_are_no_escape_codes(farm: Farm) -> None:
    done = farm.run("bench", "--device", "host")
    assert done.code == 0
    assert "\x1b" not in done.out + done.err
    assert "host digits: measuring" in done.err, "progress in lines instead"


def test_no_color_shows_the_live_display_without_colours(farm: Farm) -> None:
    farm.environment = {"NO_COLOR": "1"}
    terminal = farm.start_on_terminal("bench", "--device", "host").end()
    assert terminal.code == 0
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|4[0-7]|9[0-7])m", terminal.err)


def test_a_reader_that_has_enough_ends_the_command_quietly(farm: Farm) -> None:
    words = {
        "bench": "bench --all --dry-run",
        "devices": "devices",
        "history": "history --json",
        "help": "--help",
    }
    assert farm.run("deploy", "--device", "host", "digits").code == 0
    for line in words.values():
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as closed:
            done = farm.run(*line.split(), stdout=closed)
        assert done.err == "", line
        assert done.code == 141, "128 + SIGPIPE, as other programs"


def test_progress_that_nobody_reads_any_more_ends_a_bench_without_leftovers(farm: Farm) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        assert farm.run("bench", "--device", "host", stderr=closed).code == 141
    farm.assert_nothing_is_left()


def test_a_full_disk_under_stdout_is_an_error_of_one_line(farm: Farm) -> None:
    with Path("/dev/full").open("wb") as full:
        done = farm.run("devices", stdout=full)
    assert done.code == 1
    assert done.error["error"] == "the output cannot be written"
    assert "No space left" in done.error["why"]


def test_a_dry_run_starts_nothing(fresh: Farm) -> None:
    done = fresh.run("bench", "--all", "--dry-run")
    assert done.code == 0
    assert re.findall("^digits on (host|pi3|rk3399) ", done.out, re.MULTILINE) == [
        "host",
        "pi3",
        "rk3399",
    ]
    assert "3 jobs, 3 builds" in done.out
    assert done.err == ""
    assert sorted(path.name for path in fresh.cache.iterdir()) == ["agents"], "nothing was made"
    assert not fresh.data.exists()


def test_without_emulators_the_rest_runs_and_each_missing_one_names_its_cure(farm: Farm) -> None:
    farm.environment = {"PATH": str(farm.folder / "bin")}
    (farm.folder / "bin").mkdir()
    done = farm.run("devices", "--json")
    assert done.code == 0
    states = {device["name"]: device for device in done.json["devices"]}
    assert states["host"]["state"] == "ready"
    assert states["pi3"]["state"] == "unavailable" and "qemu-arm" in states["pi3"]["why"]
    assert states["pi3"]["fix"] == "sudo apt-get install qemu-user"
    assert "sudo apt-get install qemu-user" in " ".join(farm.run("devices").out.split())
    bench = farm.run("bench", "--all", "--json")
    assert bench.code == 1, "some of several jobs failed"
    verdicts = {run["device"]: run["verdict"] for run in bench.json["runs"]}
    assert verdicts["host"] in ("STABLE", "NOISY")
    assert verdicts["pi3"] == verdicts["rk3399"] == "UNAVAILABLE"
    only = farm.run("deploy", "--device", "pi3", "digits")
    assert only.code == 5
    assert only.error["fix"] == "sudo apt-get install qemu-user"
    farm.assert_nothing_is_left()


@pytest.mark.parametrize("kind", ["npz", "png"])
def test_run_shows_the_five_best_labels_and_saves_the_outputs(farm: Farm, kind: str) -> None:
    with np.load(ZOO / "digits-test.npz") as dataset:
        picture, label = dataset["inputs"][0], int(dataset["labels"][0])
    if kind == "npz":
        np.savez(farm.folder / "x.npz", image=picture[None])
    else:
        Image.fromarray((picture[0] * 255 / picture.max()).astype("uint8"), "L").save(
            farm.folder / "x.png"
        )
    done = farm.run(
        "run", "--device", "host", "digits", "--input", f"x.{kind}", "--output", "y.npz"
    )
    assert done.code == 0, done.err
    rows = re.findall(r"^ *(-?[\d.]+)  (\d)$", done.out, re.MULTILINE)
    assert len(rows) == 5 and int(rows[0][1]) == label
    with np.load(farm.folder / "y.npz") as outputs:
        (scores,) = (outputs[name] for name in outputs.files)
    assert scores.shape == (1, 10) and scores.dtype == np.float32
    assert int(scores.argmax()) == label
    assert [float(score) for score, _ in rows] == pytest.approx(
        sorted(scores[0].tolist(), reverse=True)[:5], abs=1e-4
    )
    farm.assert_nothing_is_left()


def test_two_benches_at_once_share_a_cache(fresh: Farm) -> None:
    commands = [fresh.start("bench", "--device", "host", "--json") for _ in range(2)]
    for running in commands:
        done = running.end()
        assert done.code == 0, done.err
        assert done.json["runs"][0]["samples"]["agreement"]["right"]
    assert len(list((fresh.cache / "artifacts").iterdir())) == 1
    assert len(fresh.run("history", "--json").json["runs"]) == 2
    fresh.assert_nothing_is_left()
